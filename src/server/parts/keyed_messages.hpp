#pragma once
#include <cstdint>
#include <vector>

#include "server/mailbox.hpp"
#include "server/parts/served_part.hpp"

namespace stretto {

// Keys ascend, so that servers and workers agree on the order of rows without sending it. Throws Error(invalid_argument)
// with the place of the first key that does not.
void check_keys(const std::vector<std::uint64_t>& keys);

// The bytes of a message: the keys at some places of a list, and their rows, if it has some. begins: KeyedRows::begins() of
// the list. In a table with rows of any_length the number of keys precedes them, and lengths follow them.
Tensor packed(const KeyedRows& rows, const std::vector<std::int64_t>& places, const std::vector<std::int64_t>& begins);
Tensor packed(const KeyedRows& rows);  // all of them; of a dense table its elements, without keys
// The content of a message to a part of a table: elements, or keys with or without rows.
KeyedRows unpacked(const Tensor& bytes, const ServedTable& table, bool has_rows);

// The place of the keys in a message of a sparse table.
struct KeyRange {
  std::size_t begin = 0, count = 0;
};
KeyRange keys_in(const Tensor& message, const ServedTable& table, bool has_rows);

// An update as a message to the next copy, and back.
MessageHead head_of(const PartUpdate& update);
PartUpdate update_of(const ReceivedMessage& message, const ServedTable& table);

}  // namespace stretto
