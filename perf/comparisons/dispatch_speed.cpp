// Times programs of one controller: a chain of functions, each with a small all-reduce, by each way of dispatch, beside the
// same all-reduces in a loop that every rank runs by itself. dispatch.py runs this program and reads its line.
#include <CLI/CLI.hpp>

#include <cstdio>
#include <numeric>
#include <vector>

#include "apps/common/median.hpp"
#include "stretto/launch.hpp"
#include "stretto/program.hpp"

namespace {

using namespace stretto;

using apps::median;

void add_up(const Communicator& group, const Tensor& from, const Tensor& to) {
  group.all_reduce(from.raw(), to.raw(), 1, DType::f64, ReduceOp::sum, Stream::inline_()).wait();
}

// Microseconds of a function in a loop without a controller, on each of these ranks.
double by_loop(const Communicator& group, int functions, int runs) {
  const Tensor from = Tensor::zeros({1}, DType::f64), to({1}, DType::f64);
  std::vector<double> found;
  for (int run = 0; run < runs; ++run) {
    const double begin = now_seconds();
    for (int f = 0; f < functions; ++f) add_up(group, from, to);
    found.push_back((now_seconds() - begin) / functions * 1e6);
  }
  return median(found);
}

void measure(const Communicator& world, int functions, int runs) {
  const int executors = world.size() - 1;
  std::vector<int> ranks(static_cast<std::size_t>(executors));
  std::iota(ranks.begin(), ranks.end(), 0);
  const Communicator group = world.subgroup(ranks, "loop");
  double loop = group ? by_loop(group, functions, runs) : 0;
  // On rank 0: the times between the end of a function and the begin of the next one of a run.
  std::vector<double> gaps;
  double end = 0;
  const auto function = [&](const FunctionCall& call) {
    if (call.argument > 0 && gaps.size() < gaps.capacity()) gaps.push_back((now_seconds() - end) * 1e6);
    add_up(call.group, call.inputs[0], call.outputs[0]);
    end = now_seconds();
  };
  gaps.reserve(static_cast<std::size_t>(functions - 1) * static_cast<std::size_t>(runs));  // of the first, parallel runs
  double took[3] = {};
  {
    ProgramRuntime runtime(world, {{"add up", function}}, {});
    if (runtime.is_executor()) {
      runtime.serve();
    } else {
      const ValueType type{DType::f64, {executors}, ValuePlacement::along(0)};
      Program program("chain");
      const Program::Group all = program.group(executors);
      Program::Value value = program.input(all, type);
      for (int f = 0; f < functions; ++f) value = program.call("add up", all, {value}, {type}, f).front();
      const Tensor zeros = Tensor::zeros({executors}, DType::f64);
      for (const Dispatch dispatch : {Dispatch::parallel, Dispatch::sequential, Dispatch::op_by_op}) {
        const CompiledProgram compiled = runtime.compile(program, dispatch);
        std::vector<double> found;
        for (int run = 0; run < runs; ++run) {
          const double begin = now_seconds();
          compiled.run(1, {zeros}).wait();
          found.push_back((now_seconds() - begin) / functions * 1e6);
        }
        took[static_cast<int>(dispatch)] = median(found);
      }
      runtime.leave();
    }
  }
  double between = world.rank() == 0 ? median(gaps) : 0;
  world.broadcast(&between, &between, 1, DType::f64, 0, Stream::inline_()).wait();
  world.broadcast(&loop, &loop, 1, DType::f64, 0, Stream::inline_()).wait();
  if (world.rank() == executors) {
    std::printf(R"({"loop_us": %.3f, "parallel_us": %.3f, "sequential_us": %.3f, "op_by_op_us": %.3f, "between_us": %.3f})"
                "\n",
                loop, took[0], took[1], took[2], between);
  }
}

}  // namespace

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): CLI11's, of flags that are wrong here
  int executors = 2, functions = 64, runs = 50;
  CLI::App app("Times the ways in which a controller's functions reach executors");
  app.add_option("--executors", executors, "Ranks that do functions; one more is the client")->check(CLI::PositiveNumber);
  app.add_option("--functions", functions, "Of the program")->check(CLI::Range(2, 100'000));
  app.add_option("--runs", runs, "Timed runs of each way")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  return launch(executors + 1, [&](const Communicator& world) { measure(world, functions, runs); });
}
