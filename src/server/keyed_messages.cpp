#include "server/keyed_messages.hpp"

#include <cstring>
#include <numeric>

#include "core/fail.hpp"
#include "server/filters/filter_chain.hpp"
#include "server/message_kinds.hpp"

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

Tensor packed(const KeyedRows& rows) {
  if (rows.keys.empty()) return rows.rows;
  std::vector<std::int64_t> places(rows.keys.size());
  std::iota(places.begin(), places.end(), 0);
  return packed(rows.keys, places, rows.rows);
}

KeyedRows unpacked(const Tensor& message, const ServedTable& table, bool has_rows) {
  const auto bytes = message ? static_cast<std::int64_t>(message.bytes()) : 0;
  const auto element = static_cast<std::int64_t>(size_of(table.dtype));
  KeyedRows result;
  if (bytes == 0) return result;
  if (table.width == 0) {
    result.rows = message.view(std::size_t{0}, {bytes / element}, table.dtype);
    return result;
  }
  const auto key = static_cast<std::int64_t>(sizeof(std::uint64_t));
  const std::int64_t of_one = key + (has_rows ? table.width * element : 0);
  ensure(bytes % of_one == 0, "{} bytes came for keys of {}.", bytes, of_one);
  result.keys.resize(static_cast<std::size_t>(bytes / of_one));
  std::memcpy(result.keys.data(), message.raw(), result.keys.size() * sizeof(std::uint64_t));
  if (has_rows) {
    result.rows =
        message.view(result.keys.size() * sizeof(std::uint64_t), {std::ssize(result.keys), table.width}, table.dtype);
  }
  return result;
}

KeyRange keys_in(const Tensor& message, const ServedTable& table, bool has_rows) {
  const std::size_t bytes = message ? message.bytes() : 0;
  if (!has_rows || table.filters.empty()) {
    const std::size_t row = has_rows ? static_cast<std::size_t>(table.width) * size_of(table.dtype) : 0;
    return {0, bytes / (sizeof(std::uint64_t) + row)};
  }
  std::uint64_t key_bytes = 0;
  ensure(bytes >= FilterChain::keys_begin, "A filtered push came with {} bytes.", bytes);
  std::memcpy(&key_bytes, static_cast<const std::byte*>(message.raw()) + FilterChain::keys_begin - sizeof key_bytes,
              sizeof key_bytes);
  ensure(key_bytes <= bytes - FilterChain::keys_begin, "A filtered push of {} bytes came with {} of keys.", bytes,
         key_bytes);
  return {FilterChain::keys_begin, key_bytes / sizeof(std::uint64_t)};
}

MessageHead head_of(const PartUpdate& update) {
  const std::uint64_t worker = static_cast<std::uint32_t>(update.worker);
  return {
      .kind = update_of_part, .clock = update.number, .request = worker << 32 | static_cast<std::uint32_t>(update.pushes)};
}

PartUpdate update_of(const ReceivedMessage& message, const ServedTable& table) {
  return {.number = message.head.clock,
          .worker = static_cast<int>(message.head.request >> 32),
          .pushes = static_cast<int>(message.head.request & 0xffffffff),
          .pushed = unpacked(message.bytes, table, true)};
}

}  // namespace stretto
