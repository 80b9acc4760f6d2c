// Cluster files of the layout planner, and how a program trains. What is read can be written and read again.
#include "fuzz.hpp"
#include "stretto/planning/training_cluster.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto;
  const std::string text = fuzz::text(data, size);
  fuzz::parse([&] {
    const std::string written = to_text(training_cluster_from_text(text));
    if (to_text(training_cluster_from_text(written)) != written) std::abort();
  });
  fuzz::parse([&] { training_system_from_text(text); });
  return 0;
}
