// Two clients on the same two executors. One trains a model of two stages, each of which has functions of its own; the other
// asks for sums, with half the first one's weight, until one of its functions fails. Neither notices the other.
#include <cstdio>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include "stretto/error.hpp"
#include "stretto/launch.hpp"
#include "stretto/program.hpp"

using namespace stretto;

constexpr std::int64_t examples = 64, features = 8;
const ValueType data{DType::f32, {examples, features}}, column{DType::f32, {examples}}, number{DType::f32, {1}};

// y = data w + bias: the first stage has w, the second has the bias. What outlives a run is the functions' own.
FunctionTable functions() {
  auto weights = std::make_shared<std::vector<float>>(features);
  auto bias = std::make_shared<float>(0.0F);
  const auto forward = [weights](const FunctionCall& call) {
    const float *x = call.inputs[0].data<float>(), *w = weights->data();
    for (std::int64_t i = 0; i < examples; ++i) {
      float sum = 0;
      for (std::int64_t f = 0; f < features; ++f) sum += x[i * features + f] * w[f];
      call.outputs[0].data<float>()[i] = sum;
    }
  };
  const auto loss = [bias](const FunctionCall& call) {  // inputs: product, labels; outputs: loss, gradient
    float sum = 0, all = 0;
    for (std::int64_t i = 0; i < examples; ++i) {
      const float error = call.inputs[0].data<float>()[i] + *bias - call.inputs[1].data<float>()[i];
      call.outputs[1].data<float>()[i] = error / examples;
      sum += error * error / 2 / examples;
      all += error / examples;
    }
    *bias -= 0.3F * all;
    call.outputs[0].data<float>()[0] = sum;
  };
  const auto backward = [weights](const FunctionCall& call) {  // inputs: data, gradient
    const float *x = call.inputs[0].data<float>(), *g = call.inputs[1].data<float>();
    for (std::int64_t i = 0; i < examples; ++i) {
      for (std::int64_t f = 0; f < features; ++f) (*weights)[f] -= 0.3F * x[i * features + f] * g[i];
    }
  };
  const auto rank = [](const FunctionCall& call) {
    if (call.run == call.argument && call.group.rank() == 1) throw std::runtime_error("this run is unlucky");
    call.outputs[0].data<float>()[0] = static_cast<float>(call.group.rank() + 1);
  };
  return {{"forward", forward}, {"loss", loss}, {"backward", backward}, {"rank", rank}};
}

void train(ProgramRuntime& runtime) {
  Program step("step");
  const Program::Group first = step.group(1), second = step.group(1);
  const Program::Value x = step.input(first, data), labels = step.input(second, column);
  const Program::Value product = step.call("forward", first, {x}, {column}).front();
  const Program::Value there = step.move(product, second, ValuePlacement::replicated());
  const std::vector<Program::Value> results = step.call("loss", second, {there, labels}, {number, column});
  step.call("backward", first, {x, step.move(results[1], first, ValuePlacement::replicated())}, {});
  step.output(results[0]);

  const Tensor inputs(data.shape, DType::f32), wanted(column.shape, DType::f32);
  std::mt19937 draw(1);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < examples; ++i) {
    wanted.data<float>()[i] = 2;
    for (std::int64_t f = 0; f < features; ++f) {
      const float value = inputs.data<float>()[i * features + f] = normal(draw);
      wanted.data<float>()[i] += value * static_cast<float>(f);
    }
  }
  const CompiledProgram compiled = runtime.compile(step);
  const float before = compiled.run(1, {inputs, wanted}).wait().front().data<float>()[0];
  const float after = compiled.run(200, {inputs, wanted}).wait().front().data<float>()[0];
  std::printf("trainer: loss %.3f, after 200 runs %.6f\n", before, after);
}

void visit(ProgramRuntime& runtime) {
  Program program("sums");
  const Program::Group both = program.group(2);
  const Program::Value ranks = program.call("rank", both, {}, {{DType::f32, {2}, ValuePlacement::along(0)}}, 150)
                                   .front();  // run 150, counted from 0, is to fail
  program.output(program.reduce(ranks, ReduceOp::sum, ValuePlacement::replicated()));
  const CompiledProgram compiled = runtime.compile(program);
  for (int i = 0; i < 3; ++i) {
    try {
      std::printf("visitor: sum %g\n", compiled.run(100).wait().front().at(0));
    } catch (const Error& error) {
      std::printf("visitor: %s\n", error.what());
    }
  }
}

int main() {
  return launch(4, [](const Communicator& world) {
    const bool is_trainer = world.rank() == 2;
    ProgramRuntime runtime(world, functions(),
                           {.clients = 2, .client = is_trainer ? "trainer" : "visitor", .weight = is_trainer ? 2.0 : 1.0});
    if (runtime.is_executor()) return runtime.serve();
    is_trainer ? train(runtime) : visit(runtime);
    runtime.leave();
  });
}
