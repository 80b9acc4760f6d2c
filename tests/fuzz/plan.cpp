// Plans of one's own. What is read is checked, too, and written again.
#include "stretto/plan.hpp"

#include "collectives/calls/user_plan.hpp"
#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto;
  fuzz::parse([&] {
    const Plan plan = plan_from_text(fuzz::text(data, size));
    if (!(plan_from_text(to_text(plan)) == plan)) std::abort();
    if (plan.request.size > 64) return;  // the caller's group has as many
    check_shape(plan.request);
    check_plan(plan);
  });
  return 0;
}
