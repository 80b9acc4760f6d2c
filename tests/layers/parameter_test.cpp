// The cut of parameters into slices, and initial values that do not depend on it.
#include "stretto/layers/parameter.hpp"

#include <gmock/gmock.h>

#include <map>

#include "layers/allocated.hpp"
#include "saved_training.hpp"
#include "stretto/planning/training_memory.hpp"
#include "stretto/stretto.hpp"

namespace stretto {
namespace {

// Whoever gives no size of units gets that of the device, in plans and in training.
TEST(ShardedParameterOptions, HaveLargerUnitsOnAGpu) {
  ShardedParameters::Options options;
  EXPECT_EQ(options.bytes_of_unit(), std::size_t{1} << 20);
  EXPECT_EQ(ShardedParameters::Options::usual_unit_bytes(Device::cuda), std::size_t{25} << 20);
  options.unit_bytes = 64;
  EXPECT_EQ(options.bytes_of_unit(), 64U);
}

TEST(ShareOf, CutsEverythingIntoSharesThatDifferByAtMostOne) {
  for (const std::int64_t count : {0, 1, 2, 5, 16, 61}) {
    for (const int parts : {1, 2, 3, 4, 7, 8}) {
      std::int64_t next = 0;
      for (int i = 0; i < parts; ++i) {
        const Share share = share_of(count, parts, i);
        EXPECT_EQ(share.first, next);
        EXPECT_GE(share.count, count / parts);
        EXPECT_LE(share.count, (count + parts - 1) / parts);
        next += share.count;
      }
      EXPECT_EQ(next, count);
    }
  }
}

TEST(ForEachRun, VisitsTheSlicesPlaceInTheWhole) {
  struct Run {
    std::int64_t here, there, count;
    bool operator==(const Run&) const = default;
  };
  const auto runs = [](const Shape& global_shape, const Shape& first, const Shape& extents) {
    std::vector<Run> result;
    for_each_run(global_shape, first, extents, [&](std::int64_t here, std::int64_t there, std::int64_t count) {
      result.push_back({here, there, count});
    });
    return result;
  };
  using testing::ElementsAre;
  EXPECT_THAT(runs({10}, {4}, {3}), ElementsAre(Run{0, 4, 3}));
  EXPECT_THAT(runs({4, 5}, {1, 0}, {2, 5}), ElementsAre(Run{0, 5, 5}, Run{5, 10, 5}));
  EXPECT_THAT(runs({4, 5}, {0, 2}, {2, 2}), ElementsAre(Run{0, 2, 2}, Run{2, 7, 2}));
  EXPECT_THAT(runs({3, 4, 2}, {0, 1, 0}, {2, 2, 2}), ElementsAre(Run{0, 2, 2}, Run{2, 4, 2}, Run{4, 10, 2}, Run{6, 12, 2}));
  EXPECT_THAT(runs({4, 5}, {4, 0}, {0, 5}), ElementsAre());
}

// Part i of one parameter that is cut along a dimension.
std::unique_ptr<Parameters> part_of(const Shape& global_shape, std::size_t dimension, int parts, int i, std::uint64_t seed,
                                    Initial initial) {
  auto parameters = std::make_unique<Parameters>();
  const Share share = share_of(global_shape[dimension], parts, i);
  Shape first(global_shape.size(), 0);
  Shape extents = global_shape;
  first[dimension] = share.first;
  extents[dimension] = share.count;
  parameters->add({.name = "w", .global_shape = global_shape, .first = first, .extents = extents, .initial = initial});
  allocate(*parameters, DType::f64);
  initialise(*parameters, seed);
  return parameters;
}

TEST(Initialise, DoesNotDependOnTheLayout) {
  const Shape shape{3, 10, 7};
  const Initial initial{0.5, 0.02};
  const auto whole = part_of(shape, 0, 1, 0, 1, initial);
  const Tensor& expected = whole->all()[0]->value;
  for (std::size_t dimension = 0; dimension < shape.size(); ++dimension) {
    for (const int parts : {2, 3, 8}) {
      std::int64_t covered = 0;
      for (int i = 0; i < parts; ++i) {
        const auto part = part_of(shape, dimension, parts, i, 1, initial);
        const Parameter& parameter = *part->all()[0];
        for_each_run(shape, parameter.first, parameter.extents,
                     [&](std::int64_t here, std::int64_t there, std::int64_t count) {
                       for (std::int64_t k = 0; k < count; ++k) {
                         EXPECT_EQ(parameter.value.at(here + k), expected.at(there + k));
                       }
                       covered += count;
                     });
      }
      EXPECT_EQ(covered, expected.size());
    }
  }
}

TEST(Initialise, DrawsFromTheNormalDistributionThatWasAskedFor) {
  const std::int64_t count = 100000;
  const auto drawn = part_of({count}, 0, 1, 0, 1, {3, 0.5});
  const Tensor& value = drawn->all()[0]->value;
  double sum = 0;
  double squares = 0;
  std::int64_t beyond_two = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const double deviate = (value.at(i) - 3) / 0.5;
    sum += deviate;
    squares += deviate * deviate;
    beyond_two += std::abs(deviate) > 2 ? 1 : 0;
  }
  // Five standard errors of each estimate.
  EXPECT_NEAR(sum / count, 0, 5 / std::sqrt(count));
  EXPECT_NEAR(squares / count, 1, 5 * std::sqrt(2.0 / count));
  EXPECT_NEAR(static_cast<double>(beyond_two) / count, 0.0455, 0.0033);
  EXPECT_NE(part_of({count}, 0, 1, 0, 2, {3, 0.5})->all()[0]->value.at(0), value.at(0)) << "another seed";
  EXPECT_EQ(part_of({5}, 0, 1, 0, 1, {3, 0})->all()[0]->value.at(4), 3) << "a constant";
}

TEST(RandomUniform, LiesBetweenZeroAndOneAndDependsOnAllItIsGiven) {
  double sum = 0;
  for (std::uint64_t i = 0; i < 100000; ++i) {
    const double u = random_uniform(1, "a", i);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
  }
  EXPECT_NEAR(sum / 100000, 0.5, 0.005);
  EXPECT_EQ(random_uniform(1, "a", 7), random_uniform(1, "a", 7));
  EXPECT_NE(random_uniform(1, "a", 7), random_uniform(1, "a", 8));
  EXPECT_NE(random_uniform(1, "a", 7), random_uniform(2, "a", 7));
  EXPECT_NE(random_uniform(1, "a", 7), random_uniform(1, "b", 7));
}

TEST(Parameters, CountElements) {
  Parameters parameters;
  parameters.add({.name = "first", .global_shape = {4, 3}, .first = {0, 0}, .extents = {2, 3}, .initial = {}});
  const Parameter& second =
      parameters.add({.name = "second", .global_shape = {5}, .first = {0}, .extents = {5}, .initial = {}});
  EXPECT_EQ(parameters.global_elements(), 17);
  EXPECT_EQ(parameters.local_elements(), 11);
  EXPECT_EQ(second.index, 1U);
}

TEST(Parameters, RefuseRecordsThatCannotBe) {
  Parameters parameters;
  parameters.add({.name = "taken", .global_shape = {5}, .first = {0}, .extents = {5}});
  for (const Parameter& record : std::vector<Parameter>{
           {.name = "taken", .global_shape = {5}, .first = {0}, .extents = {5}},
           {.name = "scalar"},
           {.name = "beyond", .global_shape = {5}, .first = {3}, .extents = {3}},
           {.name = "before", .global_shape = {5}, .first = {-1}, .extents = {3}},
           {.name = "flat", .global_shape = {5, 2}, .first = {0}, .extents = {10}},
       }) {
    EXPECT_THAT([&] { parameters.add(record); }, testing::ThrowsMessage<Error>(testing::HasSubstr(record.name)));
  }
  EXPECT_EQ(parameters.all().size(), 1U);
}

// 7 rows over 3 ranks: 3, 2 and 2.
TEST(Parameter, IsDividedAlongADimensionOrWhole) {
  const Parameter rows = Parameter::divided("w", {4, 7, 5}, 1, 3, 1, {.initial = {1, 2}, .overwrites_gradient = true});
  EXPECT_EQ(rows.first, (Shape{0, 3, 0}));
  EXPECT_EQ(rows.extents, (Shape{4, 2, 5}));
  EXPECT_EQ(rows.replicated_over, token_axes);
  EXPECT_EQ(rows.sum_gradient_over, token_axes);
  EXPECT_EQ(rows.initial.deviation, 2);
  EXPECT_TRUE(rows.decays && rows.overwrites_gradient);
  const Parameter whole = Parameter::whole("b", {7}, token_axes | Axis::tensor, {.decays = false});
  EXPECT_EQ(whole.extents, (Shape{7}));
  EXPECT_EQ(whole.replicated_over, token_axes | Axis::tensor);
  EXPECT_EQ(whole.sum_gradient_over, token_axes | Axis::tensor);
  EXPECT_FALSE(whole.decays || whole.overwrites_gradient);
  EXPECT_THROW(Parameter::divided("w", {4}, 1, 2, 0, {}), Error);
}

// Two ranks, of which each has half of a parameter's values at stage 3. The control: both are trained.
TEST(ShardedParameters, KeepNoGradientsAndNoStateOfFrozenParameters) {
  for (const ZeroStage stage : zero_stages) {
    std::map<std::string, std::int64_t> optimizer_bytes;
    for (const std::string frozen : {"divided", "replicated", "none"}) {
      const Layout layout{{{Axis::data, 2}}, stage, DType::bf16, false, {}, frozen};
      on_ranks_of(layout, [&](const Communicator& world) {
        Training training(world, layout);
        ShardedParameters& sharded = training.sharded();
        const TrainingMemory plan =
            state_memory(sharded.parameters(), sharded.mesh().shape(), sharded.options(), training.optimizer().kind());
        EXPECT_EQ(bytes_of_both(world, MemoryKind::values), 2 * plan.values);
        EXPECT_EQ(bytes_of_both(world, MemoryKind::gradients), 2 * plan.gradients);
        const std::int64_t optimizer = bytes_of_both(world, MemoryKind::optimizer);
        EXPECT_LE(optimizer, 2 * plan.optimizer);
        EXPECT_GE(optimizer, 2 * plan.optimizer - 12 * static_cast<std::int64_t>(sharded.unit_count()));
        if (world.rank() == 0) optimizer_bytes[frozen] = plan.optimizer;
        for (std::size_t i = 0; i < sharded.ranges().size(); ++i) {
          const ShardedParameters::Range& range = sharded.ranges()[i];
          const bool trains = sharded.parameters().all()[range.parameter]->name != frozen;
          EXPECT_EQ(bool(range.gradient), trains);
          EXPECT_EQ(training.optimizer().states()[i].slots.size(), trains ? 2U : 0U);
        }
        training.advance(0, 2);
        EXPECT_GT(gradient_norm(sharded), 0);
      });
    }
    EXPECT_LT(optimizer_bytes["divided"], optimizer_bytes["replicated"]);
    EXPECT_LT(optimizer_bytes["replicated"], optimizer_bytes["none"]);
  }
}

// Two sets; the control: one set has half the bytes.
TEST(ShardedParameters, KeepTwoSetsOfGradientsWithADelay) {
  for (const ZeroStage stage : zero_stages) {
    std::vector<std::int64_t> bytes;
    for (const int delay : {0, 1}) {
      const Layout layout{.mesh = {{Axis::data, 2}}, .stage = stage, .dtype = DType::bf16, .delay = delay};
      on_ranks_of(layout, [&](const Communicator& world) {
        Training training(world, layout);
        ShardedParameters& sharded = training.sharded();
        training.advance(0, 2);
        const TrainingMemory plan =
            state_memory(sharded.parameters(), sharded.mesh().shape(), sharded.options(), training.optimizer().kind());
        EXPECT_EQ(bytes_of_both(world, MemoryKind::gradients), 2 * plan.gradients);
        if (world.rank() == 0) bytes.push_back(plan.gradients);
      });
    }
    EXPECT_EQ(bytes[1], 2 * bytes[0]);
  }
}

TEST(ShardedParameters, StoreFrozenValuesInFewerBits) {
  for (const ZeroStage stage : zero_stages) {
    for (const StoredFormat format : {StoredFormat::nf4, StoredFormat::int8}) {
      const Layout layout{
          .mesh = {{Axis::data, 2}}, .stage = stage, .dtype = DType::f32, .frozen = "divided", .stored = format};
      on_ranks_of(layout, [&](const Communicator& world) {
        Training training(world, layout);
        ShardedParameters& sharded = training.sharded();
        const std::map<std::string, double> before = training.values();
        sharded.store();
        const TrainingMemory plan =
            state_memory(sharded.parameters(), sharded.mesh().shape(), sharded.options(), training.optimizer().kind());
        EXPECT_EQ(bytes_of_both(world, MemoryKind::values), 2 * plan.values);
        for (const ShardedParameters::Range& range : sharded.ranges()) {
          EXPECT_EQ(bool(range.value), sharded.parameters().all()[range.parameter]->name != layout.frozen);
        }
        training.advance(0, 2);
        sharded.restore();
        const std::map<std::string, double> after = training.values();
        double difference = 0, largest = 0;
        for (const auto& [element, value] : before) {
          if (!element.starts_with(layout.frozen)) continue;
          difference = std::max(difference, std::abs(after.at(element) - value));
          largest = std::max(largest, std::abs(value));
        }
        EXPECT_GT(difference, 0);
        EXPECT_LT(difference, 0.16 * largest);
      });
    }
  }
}

// A record of which rank r of two tensor-parallel ranks holds half of the rows, with one change.
Parameter halved(int rank, const std::function<void(Parameter&)>& change = {}) {
  Parameter record{.name = "w",
                   .global_shape = {4, 3},
                   .first = {2 * rank, 0},
                   .extents = {2, 3},
                   .replicated_over = token_axes,
                   .sum_gradient_over = token_axes};
  if (change) change(record);
  return record;
}

TEST(ShardedParameters, RefuseRecordsThatDoNotFitTheMesh) {
  const auto accept = [](const std::function<void(Parameter&)>& change) {
    run_threads(4, [&](const Communicator& world) {
      const Mesh mesh(world, {{Axis::tensor, 2}, {Axis::data, 2}});
      Parameters parameters;
      parameters.add(halved(mesh.rank(Axis::tensor), change));
      const ShardedParameters sharded(parameters, mesh);
    });
  };
  const auto whole = [](Parameter& record) { record.first = {0, 0}, record.extents = {4, 3}; };
  const auto without_data = [](Parameter& record) { record.sum_gradient_over = record.sum_gradient_over - Axis::data; };
  EXPECT_NO_THROW(accept({}));
  EXPECT_NO_THROW(accept([&](Parameter& record) {
    whole(record);
    record.replicated_over = token_axes | Axis::tensor;
  }));
  EXPECT_NO_THROW(accept([&](Parameter& record) {
    without_data(record);
    record.whole_gradient_over = Axis::data;
  }));
  const std::map<std::string, std::function<void(Parameter&)>> wrong = {
      {"not divided", whole},
      {"not replicated", [](Parameter& record) { record.replicated_over = token_axes | Axis::tensor; }},
      {"nor along data", [&](Parameter& record) { record.replicated_over = record.sum_gradient_over = {Axis::ring}; }},
      {"the same half",
       [](Parameter& record) {
         record.first = {0, 0};
       }},
      {"not summed", without_data},
      {"summed over slices", [](Parameter& record) { record.sum_gradient_over = token_axes | Axis::tensor; }},
  };
  for (const auto& [what, change] : wrong) {
    EXPECT_THAT([&] { accept(change); }, testing::ThrowsMessage<Error>(testing::HasSubstr("arameter w "))) << what;
  }
}

// What a layer that forgets its InUse does: values are not there at stage 3, and gradients are not there or stay unsummed.
TEST(ShardedParameters, SayWhatALayerThatForgotItsUseDid) {
  using testing::HasSubstr;
  using testing::ThrowsMessage;
  for (const ZeroStage stage : zero_stages) {
    run_threads(2, [&](const Communicator& world) {
      const Mesh mesh(world, {{Axis::data, 2}});
      Parameters parameters;
      Parameter& w = parameters.add(halved(0, [](Parameter& record) { record.extents = {4, 3}; }));
      const UsedParameters& used = parameters.used_together({&w});
      ShardedParameters sharded(parameters, mesh, {.zero = stage});
      const Tensor x = Tensor::zeros({3, 3}, DType::f32);
      const Tensor y = Tensor::zeros({4, 3}, DType::f32);
      const auto read = [&] {
        kernels::gemm(w.value, kernels::Transpose::no, x, kernels::Transpose::no, y);
        return w.value.data<float>()[0] + w.value.at(0);
      };
      const auto add = [&] { w.gradient.set(0, 1), kernels::add(y, w.gradient, w.gradient); };
      const auto step = [&](bool uses) {
        sharded.begin_step();
        {
          std::optional<InUse> use;
          if (uses) use.emplace(sharded, used, Pass::backward);
          read();
          add();
        }
        sharded.finish_sums();
      };
      if (stage == ZeroStage::values) {
        EXPECT_THAT(read, ThrowsMessage<Error>(HasSubstr("InUse")));
        EXPECT_THAT([&] { w.value.at(0); }, ThrowsMessage<Error>(HasSubstr("InUse")));
        EXPECT_THAT([&] { w.value.data<float>(); }, ThrowsMessage<Error>(HasSubstr("InUse")));
      }
      if (stage >= ZeroStage::gradients) {
        EXPECT_THAT(add, ThrowsMessage<Error>(HasSubstr("InUse")));
      }
      EXPECT_THAT([&] { step(false); }, ThrowsMessage<Error>(HasSubstr("InUse")));
      const UsedParameters& too_late = parameters.used_together({&w});
      EXPECT_THAT([&] { sharded.begin(too_late, Pass::forward); }, ThrowsMessage<Error>(HasSubstr("parameter w")));
    });
  }
}

// A model of three parts, of which this stage holds those that are `here`. The table is used by the first and the last.
std::unique_ptr<Parameters> stage_with(const std::vector<int>& here) {
  auto parameters = std::make_unique<Parameters>();
  const auto is_here = [&](int part) { return std::find(here.begin(), here.end(), part) != here.end(); };
  const auto add = [&](const std::string& name, std::int64_t rows) {
    parameters->add(Parameter::whole(name, {rows, 3}, token_axes, {.initial = {0, 1}}));
  };
  parameters->place_next({.part = 0, .is_here = is_here(0) || is_here(2), .at_both_ends = true});
  add("table", 4);
  for (int part = 0; part < 3; ++part) {
    parameters->place_next({.part = part, .is_here = is_here(part)});
    add("weight " + std::to_string(part), part + 1);
    add("bias " + std::to_string(part), 1);
  }
  allocate(*parameters, DType::f64);
  initialise(*parameters, 5);
  return parameters;
}

TEST(ParametersOfStages, EveryStageHasAllRecordsInOneOrderAndItsOwnSlices) {
  const auto whole = stage_with({0, 1, 2});
  EXPECT_EQ(whole->local_elements(), whole->global_elements());
  for (const std::vector<int>& here : {std::vector<int>{0}, {1}, {2}, {0, 2}}) {
    const auto stage = stage_with(here);
    ASSERT_EQ(stage->all().size(), whole->all().size());
    EXPECT_EQ(stage->global_elements(), whole->global_elements());
    std::int64_t elements = 0;
    for (std::size_t i = 0; i < whole->all().size(); ++i) {
      const Parameter& its = *stage->all()[i];
      const Parameter& all = *whole->all()[i];
      EXPECT_EQ(its.name, all.name);
      EXPECT_EQ(its.index, i);
      EXPECT_EQ(its.part, all.part);
      EXPECT_EQ(its.global_shape, all.global_shape);
      EXPECT_TRUE(all.is_here);
      EXPECT_EQ(its.elements(), its.is_here ? all.elements() : 0) << its.name;
      EXPECT_EQ(its.value.size(), its.elements());
      EXPECT_EQ(its.gradient.size(), its.elements());
      for (std::int64_t k = 0; k < its.value.size(); ++k) EXPECT_EQ(its.value.at(k), all.value.at(k)) << its.name;
      elements += its.elements();
    }
    EXPECT_EQ(stage->local_elements(), elements);
    EXPECT_LT(elements, whole->local_elements()) << "the control: a stage has not all of them";
  }
}

TEST(ParametersOfStages, OnlyWhatLiesAtBothEndsIsSharedByStages) {
  const auto stage = stage_with({0});
  for (const auto& parameter : stage->all()) {
    const bool shared = parameter->name == "table";
    EXPECT_EQ(parameter->replicated_over.contains(Axis::pipeline), shared) << parameter->name;
    EXPECT_EQ(parameter->sum_gradient_over.contains(Axis::pipeline), shared) << parameter->name;
    EXPECT_EQ(parameter->sum_gradient_over - Axis::pipeline, token_axes);
    EXPECT_EQ(parameter->replicated_over - Axis::pipeline, token_axes | Axis::tensor);
    EXPECT_EQ(parameter->is_here, shared || parameter->part == 0);
  }
}

}  // namespace
}  // namespace stretto
