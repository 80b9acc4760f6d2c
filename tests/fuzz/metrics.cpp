// metrics.jsonl of a run that goes on. The curve of what is kept is drawn.
#include "apps/train/report/report.hpp"
#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto;
  fuzz::write("metrics.jsonl", fuzz::text(data, size));
  fuzz::parse([&] {
    apps::Reporter reporter(fuzz::directory(), 10);
    reporter.begin_after(1000);
    reporter.finish({});
  });
  return 0;
}
