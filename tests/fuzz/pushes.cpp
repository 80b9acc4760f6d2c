// Filtered pushes, of a dense and of a sparse table.
#include "fuzz.hpp"
#include "server/filters/filter_chain.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto;
  static const ServedTable tables[] = {
      {.name = "dense", .elements = 50, .filters = {push_filters::random_skip(0.5), push_filters::fixed_point(2)}},
      {.name = "dense", .elements = 50, .filters = {push_filters::quantized(QuantizedFormat::int4)}},
      {.name = "sparse", .width = 2, .filters = {push_filters::significantly_modified(1)}}};
  const Tensor bytes({static_cast<std::int64_t>(size)}, DType::u8);
  bytes.copy_from_host(data);
  for (const ServedTable& table : tables) {
    fuzz::parse([&] { FilterChain(table, table.elements).decoded(bytes); });
  }
  return 0;
}
