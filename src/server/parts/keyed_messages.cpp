#include "server/parts/keyed_messages.hpp"

#include <cstring>
#include <numeric>

#include "core/fail.hpp"
#include "server/filters/filter_chain.hpp"
#include "server/message_kinds.hpp"

namespace stretto {
namespace {

// Writes what a message consists of, piece by piece.
class MessageWriter {
 public:
  explicit MessageWriter(std::size_t bytes)
      : message_({static_cast<std::int64_t>(bytes)}, DType::u8), at_(static_cast<std::byte*>(message_.raw())) {}
  void put(const void* from, std::size_t bytes) {
    std::memcpy(at_, from, bytes);
    at_ += bytes;
  }
  const Tensor& message() const { return message_; }

 private:
  Tensor message_;
  std::byte* at_;
};

// Takes `count` values out of a message, `begin` bytes behind its start; throws Error(internal) if the message is too short.
template <class T>
std::vector<T> values_at(const Tensor& message, std::size_t begin, std::uint64_t count) {
  ensure(begin <= message.bytes() && count <= (message.bytes() - begin) / sizeof(T),
         "A message of {} bytes has no {} numbers behind {} bytes.", message.bytes(), count, begin);
  std::vector<T> values(count);
  if (count > 0) std::memcpy(values.data(), static_cast<const std::byte*>(message.raw()) + begin, count * sizeof(T));
  return values;
}

KeyedRows unpacked_of_any_length(const Tensor& message, DType dtype, bool has_rows) {
  const std::uint64_t count = values_at<std::uint64_t>(message, 0, 1).front();
  const std::size_t key_bytes = sizeof count * (1 + count);
  KeyedRows result{.keys = values_at<std::uint64_t>(message, sizeof count, count), .rows = {}};
  result.lengths = values_at<std::int64_t>(message, key_bytes, count);
  const std::size_t begin = key_bytes + sizeof(std::int64_t) * count;
  const auto elements = static_cast<std::int64_t>((message.bytes() - begin) / size_of(dtype));
  std::int64_t all = 0;
  for (const std::int64_t length : result.lengths) {
    ensure(length > 0 && (!has_rows || length <= elements - all), "A row of {} elements came with {}.", length, elements);
    all += has_rows ? length : 0;
  }
  ensure(begin + static_cast<std::size_t>(all) * size_of(dtype) == message.bytes(), "{} elements came in {} bytes.", all,
         message.bytes() - begin);
  if (all > 0) result.rows = message.view(begin, {all}, dtype);
  return result;
}

}  // namespace

void check_keys(const std::vector<std::uint64_t>& keys) {
  for (std::size_t i = 1; i < keys.size(); ++i) {
    require(keys[i - 1] < keys[i],
            "Key {} at place {} does not ascend from key {} before it; give keys in order, each once.", keys[i], i,
            keys[i - 1]);
  }
}

Tensor packed(const KeyedRows& rows, const std::vector<std::int64_t>& places, const std::vector<std::int64_t>& begins) {
  if (places.empty()) return {};
  const bool any_length = !rows.lengths.empty();
  const std::size_t element = rows.rows ? size_of(rows.rows.dtype()) : 0;
  const auto row_bytes = [&](std::size_t at) { return static_cast<std::size_t>(begins[at + 1] - begins[at]) * element; };
  const std::uint64_t count = places.size();
  std::size_t bytes = count * sizeof(std::uint64_t);
  if (any_length) bytes += sizeof count + count * sizeof(std::int64_t);
  for (const std::int64_t place : places) bytes += row_bytes(static_cast<std::size_t>(place));
  MessageWriter writer(bytes);
  if (any_length) writer.put(&count, sizeof count);
  for (const std::int64_t place : places) writer.put(&rows.keys[static_cast<std::size_t>(place)], sizeof(std::uint64_t));
  for (const std::int64_t place : places) {
    if (any_length) writer.put(&rows.lengths[static_cast<std::size_t>(place)], sizeof(std::int64_t));
  }
  const auto* const from = static_cast<const std::byte*>(rows.rows.raw());
  for (const std::int64_t place : places) {
    const auto at = static_cast<std::size_t>(place);
    if (element > 0) writer.put(from + static_cast<std::size_t>(begins[at]) * element, row_bytes(at));
  }
  return writer.message();
}

Tensor packed(const KeyedRows& rows) {
  if (rows.keys.empty()) return rows.rows;
  std::vector<std::int64_t> places(rows.keys.size());
  std::iota(places.begin(), places.end(), 0);
  return packed(rows, places, rows.begins());
}

KeyedRows unpacked(const Tensor& message, const ServedTable& table, bool has_rows) {
  const auto bytes = message ? static_cast<std::int64_t>(message.bytes()) : 0;
  const auto element = static_cast<std::int64_t>(size_of(table.dtype));
  if (bytes == 0) return {};
  if (!table.is_sparse()) return {{}, message.view(std::size_t{0}, {bytes / element}, table.dtype)};
  if (table.width == ServedTable::any_length) return unpacked_of_any_length(message, table.dtype, has_rows);
  const auto key = static_cast<std::int64_t>(sizeof(std::uint64_t));
  const std::int64_t of_one = key + (has_rows ? table.width * element : 0);
  ensure(bytes % of_one == 0, "{} bytes came for keys of {}.", bytes, of_one);
  const std::int64_t count = bytes / of_one;
  KeyedRows result{values_at<std::uint64_t>(message, 0, static_cast<std::uint64_t>(count)), {}};
  if (has_rows) result.rows = message.view(static_cast<std::size_t>(count * key), {count, table.width}, table.dtype);
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
