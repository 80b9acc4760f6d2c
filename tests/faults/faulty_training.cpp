// One of four ranks that train until one of them does what it must not, for fault_matrix_test.py:
//   faulty_training LAYOUT FAULT RANK
// A launcher's variables say which rank this is. The rank that goes wrong says so before, in the midst of its second step.
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "../parity/by_hand.hpp"

namespace {

using namespace parity;

TrainingOptions options_of(const Layout& layout, bool divides_values) {
  TrainingOptions options = tiny(layout);
  options.model.layers = 4;
  options.global_batch = 4L * layout.data;
  if (divides_values) options.sharding.zero = ZeroStage::values;
  return options;
}

void go_wrong(const std::string& fault, const Communicator& world) {
  std::puts("now");
  std::fflush(stdout);
  if (fault == "stopped") raise(SIGSTOP);
  if (fault == "killed") raise(SIGKILL);
  if (fault == "throws") throw std::runtime_error("the disk burns");
  if (fault == "exits") std::exit(0);
  while (fault == "loops") std::this_thread::sleep_for(std::chrono::milliseconds(10));
  float values[3] = {};
  if (fault == "mismatch") world.all_reduce(values, values, 3, DType::f32, ReduceOp::sum, Stream::inline_()).wait();
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, Layout> layouts{{"dp", {.data = 4}},     {"zero3", {.data = 4}}, {"tp", {.tensor = 4}},
                                              {"pp", {.pipeline = 4}}, {"ring", {.ring = 4}},  {"ulysses", {.ulysses = 4}}};
  if (argc != 4 || layouts.count(argv[1]) == 0) return 2;
  const std::string name = argv[1];
  return launch(0, [&](const Communicator& world) {
    const Layout& layout = layouts.at(name);
    int actions = 0;
    const Fault fault{.in_stage = [&](PipelineStage& stage, const Action& action, Tensor input) {
      constexpr int of_a_step = 8;  // forward and backward of four microbatches
      if (world.rank() == std::atoi(argv[3]) && ++actions == of_a_step + 3) go_wrong(argv[2], world);
      return stage.compute(action, std::move(input));
    }};
    train_by_hand(world, layout, options_of(layout, name == "zero3"), fault, 1000000);
  });
}
