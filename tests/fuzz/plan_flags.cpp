// The command lines of stretto-plan, an argument a line; the first says which of its plans. Nothing is planned.
#include "fuzz.hpp"
#include "plan/plan_attention.hpp"
#include "plan/plan_layout.hpp"
#include "plan/plan_options.hpp"
#include "plan/plan_pipeline.hpp"
#include "plan/plan_step.hpp"

namespace {

template <class Line>
bool takes(stretto::fuzz::Arguments& arguments, Line& line) {
  return parse(arguments.count(), arguments.values(), line);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto;
  fuzz::Arguments arguments(fuzz::text(data, size));
  const std::string what = arguments.values()[0];
  fuzz::parse([&] {
    plan_tool::StepLine step;
    plan_tool::PipelineLine pipeline;
    plan_tool::AttentionLine attention;
    plan_tool::LayoutLine layout;
    plan_tool::CommandLine collective;
    if (what == "step") {
      takes(arguments, step);
    } else if (what == "pipeline") {
      takes(arguments, pipeline);
    } else if (what == "attention") {
      takes(arguments, attention);
    } else if (what == "layout") {
      takes(arguments, layout);
    } else if (takes(arguments, collective) && !collective.verify && collective.last_size <= 16) {
      plan_tool::methods_of(collective, plan_tool::call_of(collective).request);
    }
  });
  return 0;
}
