#include "server/keyed_messages.hpp"

#include <cstring>

#include "core/fail.hpp"

namespace stretto {

void check_keys(const std::vector<std::uint64_t>& keys) {
  for (std::size_t i = 1; i < keys.size(); ++i) {
    require(keys[i - 1] < keys[i],
            "Key {} at place {} does not ascend from key {} before it; give keys in order, each once.", keys[i], i,
            keys[i - 1]);
  }
}

Tensor packed(const std::vector<std::uint64_t>& keys, const std::vector<std::int64_t>& places, const Tensor& rows) {
  const std::size_t row_bytes = rows && rows.size() > 0 ? rows.bytes() / keys.size() : 0;
  const auto bytes = static_cast<std::int64_t>(places.size() * (sizeof(std::uint64_t) + row_bytes));
  if (bytes == 0) return {};
  Tensor message({bytes}, DType::u8);
  auto* to_key = static_cast<std::byte*>(message.raw());
  std::byte* to_row = to_key + places.size() * sizeof(std::uint64_t);
  for (const std::int64_t place : places) {
    std::memcpy(to_key, &keys[static_cast<std::size_t>(place)], sizeof(std::uint64_t));
    to_key += sizeof(std::uint64_t);
    if (row_bytes == 0) continue;
    std::memcpy(to_row, static_cast<const std::byte*>(rows.raw()) + static_cast<std::size_t>(place) * row_bytes, row_bytes);
    to_row += row_bytes;
  }
  return message;
}

KeyedRows unpacked(const ReceivedMessage& message, const ServedTable& table, bool has_rows) {
  KeyedRows result;
  result.keys.resize(static_cast<std::size_t>(message.head.part));
  const std::size_t key_bytes = result.keys.size() * sizeof(std::uint64_t);
  if (key_bytes > 0) std::memcpy(result.keys.data(), message.bytes.raw(), key_bytes);
  if (has_rows && key_bytes > 0) result.rows = message.bytes.view(key_bytes, {message.head.part, table.width}, table.dtype);
  return result;
}

}  // namespace stretto
