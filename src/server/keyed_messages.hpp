#pragma once
#include <cstdint>
#include <vector>

#include "server/mailbox.hpp"
#include "server/served_rows.hpp"

namespace stretto {

// Keys ascend, so that servers and workers agree on the order of rows without sending it. Throws Error(invalid_argument)
// with the place of the first key that does not.
void check_keys(const std::vector<std::uint64_t>& keys);

// A message of a sparse table: the keys at some places of a list, and in a push their rows. The head's `part` is the number
// of keys.
Tensor packed(const std::vector<std::uint64_t>& keys, const std::vector<std::int64_t>& places, const Tensor& rows);
KeyedRows unpacked(const ReceivedMessage& message, const ServedTable& table, bool has_rows);

}  // namespace stretto
