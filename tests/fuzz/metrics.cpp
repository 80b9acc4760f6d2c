// metrics.jsonl of a run that goes on. The curve of what is kept is drawn.
#include "fuzz.hpp"
#include "report.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto;
  fuzz::write("metrics.jsonl", fuzz::text(data, size));
  fuzz::parse([&] {
    gpt::Reporter reporter(fuzz::directory(), 10);
    reporter.begin_after(1000);
    reporter.finish({});
  });
  return 0;
}
