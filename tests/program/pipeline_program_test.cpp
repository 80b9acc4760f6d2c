// A step of a pipeline, 2 stages x 2 data-parallel ranks, as a program of one controller and by Pipeline: the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "stretto/launch.hpp"
#include "stretto/overlap/pipeline.hpp"
#include "stretto/program.hpp"

namespace stretto {
namespace {

constexpr int stages = 2, replicas = 2, microbatches = 6, steps = 3;
constexpr std::int64_t rows = 5, width = 7;

float some(int a, int b, std::int64_t i) {
  return std::sin(static_cast<float>(a * 31 + b * 7) + 0.37F * static_cast<float>(i));
}

// A stage multiplies by its weights. The last one wants zeros.
class Stage {
 public:
  Stage(int stage, int replica) : stage_(stage), replica_(replica) {
    for (std::int64_t i = 0; i < width * width; ++i) weights_.data<float>()[i] = some(stage, 3, i) / 3;
  }

  // Empty input: the data of the microbatch.
  Tensor forward(int microbatch, const Tensor& input) {
    Tensor x = input ? input.clone() : Tensor({rows, width}, DType::f32);
    for (std::int64_t i = 0; !input && i < x.size(); ++i)
      x.data<float>()[i] = some(step_ * microbatches + microbatch, replica_, i);
    Tensor y = Tensor::zeros({rows, width}, DType::f32);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t k = 0; k < width; ++k) {
        for (std::int64_t c = 0; c < width; ++c) {
          y.data<float>()[r * width + c] += x.data<float>()[r * width + k] * weights_.data<float>()[k * width + c];
        }
      }
    }
    kept_[microbatch] = {x, y};
    return y;
  }
  // Empty gradient: that of half the squares of the output.
  Tensor backward(int microbatch, const Tensor& gradient) {
    const auto [x, y] = kept_.at(microbatch);
    kept_.erase(microbatch);
    const float* const dy = (gradient ? gradient : y).data<float>();
    Tensor dx = Tensor::zeros({rows, width}, DType::f32);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t k = 0; k < width; ++k) {
        for (std::int64_t c = 0; c < width; ++c) {
          dx.data<float>()[r * width + k] += dy[r * width + c] * weights_.data<float>()[k * width + c];
          gradient_.data<float>()[k * width + c] += x.data<float>()[r * width + k] * dy[r * width + c];
        }
      }
    }
    return dx;
  }
  void update(const Communicator& replicas_of_stage) {
    replicas_of_stage.all_reduce(gradient_, ReduceOp::sum, Stream::inline_()).wait();
    for (std::int64_t i = 0; i < weights_.size(); ++i) weights_.data<float>()[i] -= 0.01F * gradient_.data<float>()[i];
    gradient_.zero();
    ++step_;
  }
  std::vector<float> weights() const { return {weights_.data<float>(), weights_.data<float>() + weights_.size()}; }

 private:
  int stage_, replica_, step_ = 0;
  Tensor weights_{{width, width}, DType::f32};
  Tensor gradient_ = Tensor::zeros({width, width}, DType::f32);
  std::map<int, std::pair<Tensor, Tensor>> kept_;  // by microbatch: input, output
};

using Weights = std::vector<std::vector<float>>;  // by rank: stage * replicas + replica

Weights by_pipeline(const Schedule& schedule) {
  struct Computations : PipelineStage {
    explicit Computations(Stage& its) : stage(its) {}
    Tensor compute(const Action& action, Tensor input) override {
      return action.kind == ActionKind::forward ? stage.forward(action.microbatch, input)
                                                : stage.backward(action.microbatch, input);
    }
    Stage& stage;
  };
  Weights result(stages * replicas);
  run_threads(stages * replicas, [&](const Communicator& world) {
    const int stage = world.rank() / replicas, replica = world.rank() % replicas;
    const Communicator of_pipeline = world.split(replica, stage, "stages"),
                       of_stage = world.split(stage, replica, "replicas");
    Stage own(stage, replica);
    Computations computations(own);
    Pipeline pipeline(of_pipeline, schedule, {});
    for (int step = 0; step < steps; ++step) {
      pipeline.run(computations, {rows, width}, DType::f32);
      own.update(of_stage);
    }
    result[static_cast<std::size_t>(world.rank())] = own.weights();
  });
  return result;
}

// The schedule's computations in an order that keeps each stage's own and follows the values; moves between the stages.
Program pipeline_program(const Schedule& schedule) {
  Program program("pipeline");
  const ValueType message{DType::f32, {replicas * rows, width}, ValuePlacement::along(0)};
  std::vector<Program::Group> groups(stages);
  for (Program::Group& group : groups) group = program.group(replicas);
  std::map<Action, Program::Value> arrived;  // by the computation that takes it
  std::vector<std::vector<Action>> left(stages);
  for (std::size_t s = 0; s < stages; ++s) {
    for (const ActionGroup& group : schedule.lists[s]) {
      if (!is_message(group.front().kind)) left[s].insert(left[s].end(), group.begin(), group.end());
    }
    std::ranges::reverse(left[s]);
  }
  std::set<std::pair<int, Action>> done;
  while (std::ranges::any_of(left, [](const auto& list) { return !list.empty(); })) {
    for (int s = 0; s < stages; ++s) {
      auto& list = left[static_cast<std::size_t>(s)];
      if (list.empty()) continue;
      const Action action = list.back();
      const bool forward = action.kind == ActionKind::forward;
      const int from = forward ? s - 1 : s + 1, to = forward ? s + 1 : s - 1;
      const bool has_input = from >= 0 && from < stages;
      if (has_input && !done.contains({from, action})) continue;
      list.pop_back();
      done.insert({s, action});
      const bool has_output = to >= 0 && to < stages;
      std::vector<Program::Value> inputs;
      if (has_input) inputs.push_back(arrived.at(action));
      const auto outputs = program.call(forward ? "forward" : "backward", groups[static_cast<std::size_t>(s)], inputs,
                                        has_output ? std::vector{message} : std::vector<ValueType>(), action.microbatch);
      if (!has_output) continue;
      arrived[action] = program.move(outputs.front(), groups[static_cast<std::size_t>(to)], ValuePlacement::along(0));
    }
  }
  for (const Program::Group group : groups) program.call("update", group, {}, {});
  return program;
}

Weights by_program(const Schedule& schedule, Dispatch dispatch) {
  Weights result(stages * replicas);
  run_threads(stages * replicas + 1, [&](const Communicator& world) {
    Stage own(world.rank() / replicas, world.rank() % replicas);
    const auto give = [](const FunctionCall& call, const Tensor& computed) {
      if (!call.outputs.empty()) call.outputs[0].copy_from(computed);
    };
    const auto taken = [](const FunctionCall& call) { return call.inputs.empty() ? Tensor() : call.inputs[0]; };
    const FunctionTable functions = {
        {"forward",
         [&](const FunctionCall& call) { give(call, own.forward(static_cast<int>(call.argument), taken(call))); }},
        {"backward",
         [&](const FunctionCall& call) { give(call, own.backward(static_cast<int>(call.argument), taken(call))); }},
        {"update", [&](const FunctionCall& call) { own.update(call.group); }}};
    ProgramRuntime runtime(world, functions, {});
    if (runtime.is_executor()) {
      runtime.serve();
      result[static_cast<std::size_t>(world.rank())] = own.weights();
      return;
    }
    const CompiledProgram compiled = runtime.compile(pipeline_program(schedule), dispatch);
    ASSERT_EQ(compiled.plan().groups, (std::vector<std::vector<int>>{{0, 1}, {2, 3}}));
    compiled.run(steps).wait();
    runtime.leave();
  });
  return result;
}

TEST(PipelineProgram, HasTheBitsOfPipeline) {
  for (const ScheduleKind kind : {ScheduleKind::one_forward_one_backward, ScheduleKind::gpipe}) {
    const Schedule schedule = make_schedule(kind, stages, microbatches);
    const Weights expected = by_pipeline(schedule);
    EXPECT_EQ(by_program(schedule, Dispatch::parallel), expected) << name(kind);
    EXPECT_EQ(by_program(schedule, Dispatch::op_by_op), expected) << name(kind);
  }
}

TEST(PipelineProgram, AnotherOrderOfSumsHasOtherBits) {
  const Schedule schedule = make_schedule(ScheduleKind::gpipe, stages, microbatches);
  Schedule backwards = schedule;  // microbatches in the opposite order
  for (auto& list : backwards.lists) {
    for (ActionGroup& group : list) {
      for (Action& action : group) {
        if (action.kind != ActionKind::forward) action.microbatch = microbatches - 1 - action.microbatch;
      }
    }
  }
  EXPECT_NE(by_program(backwards, Dispatch::parallel), by_pipeline(schedule)) << "the control";
}

}  // namespace
}  // namespace stretto
