// Pushes, of a dense and of a sparse table: filtered, plain, with keys that are not sent again; and copies of parts.
#include "fuzz.hpp"
#include "server/filters/filter_chain.hpp"
#include "server/filters/key_cache.hpp"
#include "server/parts/keyed_messages.hpp"
#include "server/parts/served_part.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto;
  static const ServedTable tables[] = {
      {.name = "dense", .elements = 50, .filters = {push_filters::random_skip(0.5), push_filters::fixed_point(2)}},
      {.name = "dense", .elements = 50, .filters = {push_filters::quantized(QuantizedFormat::int4)}},
      {.name = "sparse", .width = 2, .filters = {push_filters::significantly_modified(1)}},
      {.name = "sparse", .width = 2},
      {.name = "sparse", .width = ServedTable::any_length}};
  const Tensor bytes({static_cast<std::int64_t>(size)}, DType::u8);
  bytes.copy_from_host(data);
  const auto* const begin = reinterpret_cast<const std::byte*>(data);
  for (const ServedTable& table : tables) {
    fuzz::parse([&] {
      const KeyedRows rows =
          table.filters.empty() ? unpacked(bytes, table, true) : FilterChain(table, table.elements).decoded(bytes);
      if (table.is_sparse() && !table.filters.empty()) sum_by_key({rows, rows});
    });
    fuzz::parse([&] { unpacked(bytes, table, false); });
    fuzz::parse([&] {
      make_served_part(table, 0, table.elements, 2, Consistency::sequential(), true)->load(Bytes(begin, begin + size));
    });
    if (table.width <= 0) continue;
    fuzz::parse([&] {
      KeyCache known;
      const KeyRange keys = keys_in(bytes, table, true);
      known.note({0, 0}, bytes, keys.begin, keys.count);
      known.restored({0, 0}, bytes, keys.begin);
    });
  }
  return 0;
}
