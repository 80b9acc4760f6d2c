// The norm of sharded gradients, the state of optimizers and the learning rate.
#include "stretto/layers/optimizer.hpp"

#include <gmock/gmock.h>

#include <map>
#include <set>

#include "saved_checkpoint.hpp"
#include "stretto/planning/training_memory.hpp"

namespace stretto {
namespace {

// All gradients are 1, so the squared norm is the number of elements of the whole model, each counted once.
TEST(GradientNorm, CountsEveryElementOnce) {
  for (const ZeroStage stage : zero_stages) {
    for (const MeshShape shape : {MeshShape{},
                                  {{Axis::tensor, 2}},
                                  {{Axis::data, 3}},
                                  {{Axis::tensor, 3}, {Axis::data, 2}},
                                  {{Axis::tensor, 4}, {Axis::data, 2}}}) {
      run_threads(static_cast<int>(shape.ranks()), [&](const Communicator& world) {
        const Mesh mesh(world, shape);
        Parameters parameters;
        add_parameters(parameters, mesh);
        ShardedParameters sharded(parameters, mesh, {.zero = stage, .dtype = DType::f64});
        sum_gradients(sharded, parameters, [](const std::string&, std::int64_t) { return 1; });
        EXPECT_EQ(gradient_norm(sharded), 7) << "sqrt(40 + 9)";
      });
    }
  }
}

// The control: a record that says that each tensor-parallel rank has computed a part of the gradient.
TEST(GradientNorm, GoesByTheRecord) {
  run_threads(2, [&](const Communicator& world) {
    const Mesh mesh(world, {{Axis::tensor, 2}});
    Parameters parameters;
    add_parameters(parameters, mesh);
    parameters.all()[1]->sum_gradient_over = token_axes | Axis::tensor;
    ShardedParameters sharded(parameters, mesh, {.dtype = DType::f64});
    sum_gradients(sharded, parameters, [](const std::string&, std::int64_t) { return 1; });
    EXPECT_DOUBLE_EQ(gradient_norm(sharded), std::sqrt(40 + 2 * 2 * 9));
  });
}

TEST(CosineSchedule, WarmsUpThenFallsToTheFloor) {
  const CosineSchedule schedule{.peak = 1, .floor = 0.2, .warmup_steps = 4, .total_steps = 12};
  EXPECT_DOUBLE_EQ(schedule.at(0), 0.25);
  EXPECT_DOUBLE_EQ(schedule.at(1), 0.5);
  EXPECT_DOUBLE_EQ(schedule.at(3), 1);
  EXPECT_DOUBLE_EQ(schedule.at(4), 1);
  EXPECT_DOUBLE_EQ(schedule.at(6), 0.2 + 0.8 * 0.5 * (1 + std::sqrt(0.5)));
  EXPECT_DOUBLE_EQ(schedule.at(8), 0.6);
  EXPECT_DOUBLE_EQ(schedule.at(12), 0.2);
  EXPECT_DOUBLE_EQ(schedule.at(1000), 0.2);
  EXPECT_DOUBLE_EQ(CosineSchedule{.peak = 3}.at(0), 3);  // without a warm-up
}

const std::vector<OptimizerOptions> optimizers = {AdamW::Options{}, SGD::Options{.weight_decay = 0.1},
                                                  SGD::Options{.momentum = 0}, Muon::Options{}};

// How elements are divided over ranks changes no bit, also where a share begins inside a SIMD vector. The control: another
// learning rate.
TEST(Optimizer, GivesTheSameBitsAtEveryStageOnAnyNumberOfRanks) {
  for (const OptimizerOptions& options : optimizers) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const auto trained = [&](int ranks, ZeroStage stage, double lr = 1e-2) {
        std::vector<std::vector<double>> numbers(static_cast<std::size_t>(ranks));
        run_threads(ranks, [&](const Communicator& world) {
          const Mesh mesh(world, {{Axis::data, ranks}});
          Parameters parameters;
          add_parameters(parameters, mesh);
          ShardedParameters sharded(parameters, mesh, {.zero = stage, .dtype = dtype});
          sharded.initialise(1);
          const std::unique_ptr<Optimizer> optimizer = make_optimizer(sharded, options);
          for (int step = 0; step < 3; ++step) {
            sum_gradients(sharded, parameters, [&](const std::string& name, std::int64_t i) {
              return random_normal(3, name, static_cast<std::uint64_t>(i + step));
            });
            optimizer->step(lr, 0.7);
          }
          for (const Tensor& value : sharded.whole_values()) {
            for (std::int64_t i = 0; i < value.size(); ++i)
              numbers[static_cast<std::size_t>(world.rank())].push_back(value.at(i));
          }
        });
        for (const auto& each : numbers) EXPECT_EQ(each, numbers.front());
        return numbers.front();
      };
      const std::vector<double> expected = trained(1, ZeroStage::none);
      for (const ZeroStage stage : zero_stages) {
        for (const int ranks : {1, 2, 3, 5})
          EXPECT_EQ(trained(ranks, stage), expected) << ranks << " " << static_cast<int>(stage);
      }
      EXPECT_NE(trained(2, ZeroStage::optimizer, 2e-2), expected);
    }
  }
}

// An optimizer of one's own: p -= lr a for an average a of gradients, in 16 bits, which begins at 3. Without a slot, the
// class keeps a itself, where no checkpoint finds it.
class Averaging : public Optimizer {
 public:
  Averaging(ShardedParameters& parameters, bool has_slot)
      : Optimizer(parameters, {.name = "averaging", .slots = has_slot ? slot : std::vector<StateSlot>()}) {}

 private:
  void update(const ShardedParameters::Range& range, const Parameter& /*parameter*/, const State& state,
              const Step& step) override {
    Tensor average = state.slots.empty() ? own_[&range] : state.slots[0];
    if (!average) {
      own_[&range] = average = Tensor({range.count}, DType::bf16);
      for (std::int64_t i = 0; i < range.count; ++i) average.set(i, 3);
    }
    for (std::int64_t i = 0; i < range.count; ++i) {
      average.set(i, (average.at(i) + range.gradient.at(i) * step.gradient_scale) / 2);
      state.master.set(i, state.master.at(i) - step.lr * average.at(i));
      range.value.set(i, state.master.at(i));
    }
  }

  inline static const std::vector<StateSlot> slot = {{.name = "average", .dtype = DType::bf16, .initial = 3}};
  std::map<const ShardedParameters::Range*, Tensor> own_;
};

// Saves after three of six steps, with or without a resume there.
std::map<std::string, double> averaged(bool has_slot, bool resumes) {
  const TemporaryDirectory directory;
  std::map<std::string, double> values;
  on_ranks_of({{{Axis::data, 2}}}, [&](const Communicator& world) {
    const Layout layout{{{Axis::data, 2}}, ZeroStage::gradients, DType::bf16};
    std::optional<Training> training;
    const auto begin = [&](std::uint64_t seed) {
      training.reset();
      training.emplace(world, layout, seed);
      training->take(std::make_unique<Averaging>(training->sharded(), has_slot));
    };
    begin(3);
    training->advance(0, 3);
    training->save(directory.path(), 3);
    if (resumes) {
      begin(99);
      training->load(find_checkpoint(directory.path()));
    }
    training->advance(3, 3);
    const auto here = training->values();
    if (world.rank() == 0) values = here;
  });
  return values;
}

// The control: a slot that the kind does not name is lost.
TEST(Optimizer, OfOnesOwnIsSavedByItsSlots) {
  const std::map<std::string, double> expected = averaged(true, false);
  EXPECT_EQ(averaged(false, false), expected);
  EXPECT_EQ(averaged(true, true), expected);
  EXPECT_NE(averaged(false, true), expected);
}

TEST(Optimizer, RefusesTwoSlotsOfOneName) {
  class Twins : public Optimizer {
   public:
    explicit Twins(ShardedParameters& parameters) : Optimizer(parameters, {.name = "twins", .slots = {{"a"}, {"a"}}}) {}

   private:
    void update(const ShardedParameters::Range&, const Parameter&, const State&, const Step&) override {}
  };
  run_threads(1, [](const Communicator& world) {
    Training training(world, {});
    EXPECT_THROW(Twins{training.sharded()}, Error);
  });
}

// The control: no two of these kinds need as much.
TEST(Optimizer, TakesTheMemoryOfItsFormula) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const ZeroStage stage : {ZeroStage::none, ZeroStage::values}) {
      std::set<std::int64_t> needed;
      for (const OptimizerOptions& options : optimizers) {
        const OptimizerKind kind = kind_of(options);
        std::int64_t found = 0, planned = 0, units = 0;
        on_ranks_of({{{Axis::data, 2}}}, [&](const Communicator& world) {
          Training training(world, {{{Axis::data, 2}}, stage, dtype, false, options});
          const ShardedParameters& sharded = training.sharded();
          const std::int64_t bytes = bytes_of_both(world, MemoryKind::optimizer);
          if (world.rank() != 0) return;
          found = bytes;
          units = static_cast<std::int64_t>(sharded.unit_count());
          planned = 2 * state_memory(sharded.parameters(), sharded.mesh().shape(), sharded.options(), kind).optimizer;
        });
        EXPECT_LE(found, planned) << to_string(kind);
        EXPECT_GE(found, planned - units * kind.state_bytes(dtype)) << to_string(kind);
        needed.insert(planned);
      }
      EXPECT_EQ(needed.size(), optimizers.size());
    }
  }
}

TEST(Optimizer, CopiesTheBytesOfItsFormulaToSaveThem) {
  for (const OptimizerOptions& options : optimizers) {
    const OptimizerKind kind = kind_of(options);
    on_ranks_of({{{Axis::data, 2}}}, [&](const Communicator& world) {
      Training training(world, {{{Axis::data, 2}}, ZeroStage::optimizer, DType::bf16, false, options});
      const ShardedParameters& sharded = training.sharded();
      const std::int64_t before = bytes_of_both(world, MemoryKind::buffers);
      const CheckpointSaver saver(sharded, training.optimizer(), ".", {.in_background = true});
      const std::int64_t found = bytes_of_both(world, MemoryKind::buffers) - before;
      const std::int64_t planned =
          2 * snapshot_memory(sharded.parameters(), sharded.mesh().shape(), sharded.options(), kind);
      const auto units = static_cast<std::int64_t>(sharded.unit_count());
      EXPECT_LE(found, planned) << to_string(kind);
      EXPECT_GE(found, planned - units * (4 + kind.state_bytes(DType::f32))) << to_string(kind);
    });
  }
}

}  // namespace
}  // namespace stretto
