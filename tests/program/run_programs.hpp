#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "program/value_parts.hpp"
#include "stretto/launch.hpp"
#include "stretto/program.hpp"

// Programs that tests run, and their oracle.
namespace stretto {

inline const ValueType four{DType::f64, {4}, ValuePlacement::along(0)};

// "scale" multiplies by its argument; "sum" gives each device three numbers of its part: its sum, its size, and the sum of
// the ranks of all devices of the group, for which it communicates.
inline FunctionTable program_functions() {
  return {{"scale",
           [](const FunctionCall& call) {
             for (std::int64_t i = 0; i < call.inputs[0].size(); ++i) {
               call.outputs[0].set(i, call.inputs[0].at(i) * static_cast<double>(call.argument));
             }
           }},
          {"sum",
           [](const FunctionCall& call) {
             double sum = 0;
             for (std::int64_t i = 0; i < call.inputs[0].size(); ++i) sum += call.inputs[0].at(i);
             double devices = call.group.rank();
             call.group.all_reduce(&devices, &devices, 1, DType::f64, ReduceOp::sum, Stream::inline_()).wait();
             const Tensor result = Tensor::of(std::vector{sum, static_cast<double>(call.inputs[0].size()), devices});
             for (std::int64_t i = 0; i < call.outputs[0].size(); ++i) call.outputs[0].set(i, result.at(i));
           }},
          {"fail", [](const FunctionCall& call) {
             if (call.argument == call.group.rank()) throw std::runtime_error("bad luck");
             double one = 1;
             call.group.all_reduce(&one, &one, 1, DType::f64, ReduceOp::sum, Stream::inline_()).wait();
           }}};
}

// The oracle: whole values in one process.
inline std::vector<Tensor> reference(const Program& program, const std::vector<Tensor>& inputs) {
  std::vector<Tensor> values(program.values().size());
  for (std::size_t i = 0; i < inputs.size(); ++i) values[static_cast<std::size_t>(program.inputs()[i])] = inputs[i];
  for (const Program::Step& step : program.steps()) {
    const Program::TypedValue& from = program.values()[static_cast<std::size_t>(step.inputs[0])];
    const auto out = static_cast<std::size_t>(step.outputs[0]);
    const Tensor& in = values[static_cast<std::size_t>(step.inputs[0])];
    const Tensor result(program.values()[out].type.shape, DType::f64);
    if (step.kind == Program::StepKind::move) {
      result.copy_from(in);
    } else if (step.kind == Program::StepKind::reduce) {
      for (std::int64_t i = 0; i < result.size(); ++i) {
        double most = in.at(i);
        for (std::int64_t r = 1; r < in.size() / result.size(); ++r) most = std::max(most, in.at(r * result.size() + i));
        result.set(i, most);
      }
    } else if (step.function == "scale") {
      for (std::int64_t i = 0; i < in.size(); ++i) result.set(i, in.at(i) * static_cast<double>(step.argument));
    } else {
      const int devices = program.groups()[static_cast<std::size_t>(step.group)];
      std::vector<int> all;
      for (int d = 0; d < devices; ++d) all.push_back(d);
      const Division division = division_of(from.type, all);
      for (int d = 0; d < devices; ++d) {
        double sum = 0;
        const Box& box =
            division.boxes[static_cast<std::size_t>(d)].empty() ? Box{} : division.boxes[static_cast<std::size_t>(d)][0];
        const std::int64_t columns = from.type.shape.size() > 1 ? from.type.shape[1] : 1;
        for (std::int64_t i = 0; i < in.size() && box.elements() > 0; ++i) {
          const bool row = box.begin[0] <= i / columns && i / columns < box.end[0];
          const bool column = columns == 1 || (box.begin[1] <= i % columns && i % columns < box.end[1]);
          if (row && column) sum += in.at(i);
        }
        result.set(std::int64_t{3} * d, sum);
        result.set(std::int64_t{3} * d + 1, static_cast<double>(division.elements(d)));
        result.set(std::int64_t{3} * d + 2, devices * (devices - 1) / 2.0);
      }
    }
    values[out] = result;
  }
  std::vector<Tensor> outputs;
  for (const int output : program.outputs()) outputs.push_back(values[static_cast<std::size_t>(output)]);
  return outputs;
}

inline std::vector<Tensor> numbered_inputs(const Program& program, int first) {
  std::vector<Tensor> inputs;
  for (const int input : program.inputs()) {
    const Tensor tensor(program.values()[static_cast<std::size_t>(input)].type.shape, DType::f64);
    for (std::int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, static_cast<double>(first + i));
    inputs.push_back(tensor);
  }
  return inputs;
}

inline void expect_equal(const std::vector<Tensor>& found, const std::vector<Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t o = 0; o < found.size(); ++o) {
    ASSERT_EQ(found[o].size(), expected[o].size());
    for (std::int64_t i = 0; i < found[o].size(); ++i) ASSERT_EQ(found[o].at(i), expected[o].at(i)) << "output " << o;
  }
}

// Runs client(runtime, number of the client) on the last ranks, and serves on the others.
inline void with_clients(int executors, int clients, const std::function<void(ProgramRuntime&, int)>& client,
                         const FunctionTable& table = program_functions(), const std::vector<double>& weights = {}) {
  run_threads(executors + clients, [&](const Communicator& world) {
    const int number = world.rank() - executors;
    ProgramRuntime::Options options{.clients = clients, .client = "client " + std::to_string(number)};
    if (number >= 0 && !weights.empty()) options.weight = weights[static_cast<std::size_t>(number)];
    ProgramRuntime runtime(world, table, options);
    if (runtime.is_executor()) return runtime.serve();
    client(runtime, number);
    runtime.leave();
  });
}

// "twice" on two devices, the result to two others, "twice" again, and back to the client.
inline Program two_stages_of(int devices) {
  Program program("two stages");
  const Program::Group a = program.group(devices), b = program.group(devices);
  const Program::Value x = program.input(a, four);
  const Program::Value y = program.call("scale", a, {x}, {four}, 2).front();
  program.output(program.call("scale", b, {program.move(y, b, ValuePlacement::along(0))}, {four}, 2).front());
  return program;
}

}  // namespace stretto
