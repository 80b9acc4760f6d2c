// A training whose state moves to another layout in memory goes on as if it had stayed in its own.
#include "stretto/layers/state_move.hpp"

#include <gmock/gmock.h>

#include <mutex>
#include <numeric>

#include "adapted.hpp"
#include "parity.hpp"
#include "stretto/kernels.hpp"
#include "support/error.hpp"
#include "support/tiers.hpp"

namespace parity {
namespace {

struct MoveLayout {
  Layout layout;
  ZeroStage zero = ZeroStage::none;
  const char* schedule = "1f1b";
  bool own_rows = false;

  std::string text() const {
    return fmt::format("dp {} tp {} pp {} cp {} ulysses {} zero {} {}{}", layout.data, layout.tensor, layout.pipeline,
                       layout.ring, layout.ulysses, static_cast<int>(zero), schedule, own_rows ? " sp" : "");
  }
};

// Of 4 ranks each.
const MoveLayout data_of_4{{.data = 4}};
const MoveLayout tensor_pipeline_of_4{{.tensor = 2, .pipeline = 2}};

struct MovedTraining {
  DType dtype = DType::f64;
  OptimizerOptions optimizer = AdamW::Options();
  AdapterOptions adapters = {};
  int delay = 0;

  // Every layout divides this model and its batch.
  TrainingOptions on(const MoveLayout& where) const {
    TrainingOptions options = tiny({}, dtype);
    options.model.layers = 4;
    options.model.kv_heads = 4;
    options.global_batch = 12;
    options.optimizer = optimizer;
    options.adapters = adapters;
    options.divides_rows = where.own_rows;
    options.stages.schedule_name = where.schedule;
    options.sharding.zero = where.zero;
    options.sharding.delay = delay;
    return options;
  }
};

MoveLayout at_stage(MoveLayout layout, ZeroStage zero) {
  layout.zero = zero;
  return layout;
}

std::unique_ptr<Trainer> trainer_on(const Communicator& world, const MoveLayout& where, const MovedTraining& training) {
  auto trainer = std::make_unique<Trainer>(Mesh(world, where.layout.mesh()), training.on(where));
  if (training.adapters.any()) begin_apart(*trainer);
  return trainer;
}

constexpr std::int64_t steps_in_each = 2;

// What a control does to a trainer whose state has been moved.
using Harm = std::function<void(Trainer&)>;

// Losses of a training that makes two steps in each of the layouts; it stays where the next one is the same.
std::vector<double> losses_over(const std::vector<MoveLayout>& layouts, const MovedTraining& training,
                                const Harm& harm = {}) {
  std::vector<double> losses;
  run_threads(layouts.front().layout.ranks(), [&](const Communicator& world) {
    auto trainer = trainer_on(world, layouts.front(), training);
    for (std::size_t i = 0; i < layouts.size(); ++i) {
      if (i > 0 && layouts[i].text() != layouts[i - 1].text()) {
        StateMove state(trainer->sharded(), trainer->optimizer());
        const auto notes = trainer->notes();
        trainer.reset();
        trainer = std::make_unique<Trainer>(Mesh(world, layouts[i].layout.mesh()), training.on(layouts[i]));
        state.into(trainer->sharded(), trainer->optimizer());
        trainer->restore(notes);
        if (harm) harm(*trainer);
      }
      for (std::int64_t k = 0; k < steps_in_each; ++k) {
        const auto step = static_cast<std::int64_t>(i) * steps_in_each + k;
        const double loss = trainer->step(text_of_step(trainer->options(), step), 3e-3).loss;
        if (world.rank() == 0) losses.push_back(loss);
      }
    }
  });
  return losses;
}

double difference_from_stay(const std::vector<double>& moved, const std::vector<double>& stayed) {
  EXPECT_EQ(moved.size(), stayed.size());
  double largest = 0;
  for (std::size_t i = 0; i < moved.size(); ++i) largest = std::max(largest, std::abs(moved[i] / stayed[i] - 1));
  return largest;
}

TEST(StateMove, DataToTensorAndPipelineAndBackKeepsTheLosses) {
  const std::vector<double> stayed = losses_over({data_of_4, data_of_4, data_of_4}, {});
  for (const ZeroStage zero : zero_stages) {
    const std::vector<MoveLayout> there_and_back = {at_stage(data_of_4, zero), at_stage(tensor_pipeline_of_4, zero),
                                                    at_stage(data_of_4, zero)};
    EXPECT_LT(difference_from_stay(losses_over(there_and_back, {}), stayed), parity_tolerance)
        << "ZeRO stage " << static_cast<int>(zero);
  }
}

// Each layout comes after each of two others.
TEST(StateMove, AllLayoutsFollowEachOther) {
  const std::vector<MoveLayout> layouts = {at_stage(data_of_4, ZeroStage::values),
                                           {{.tensor = 4}, ZeroStage::none, "1f1b", true},
                                           {{.data = 2, .tensor = 2}, ZeroStage::gradients},
                                           {{.data = 2, .pipeline = 2}, ZeroStage::values, "zb-v"},
                                           {{.tensor = 2, .pipeline = 2}, ZeroStage::none, "interleaved", true},
                                           {{.data = 2, .ring = 2}, ZeroStage::optimizer},
                                           {{.tensor = 2, .ulysses = 2}, ZeroStage::values, "1f1b", true},
                                           {{.pipeline = 4}, ZeroStage::none, "gpipe"},
                                           {{.pipeline = 2, .ring = 2}, ZeroStage::gradients, "zb-h1"}};
  std::vector<MoveLayout> order;
  for (const std::size_t stride : {std::size_t{1}, std::size_t{2}}) {
    for (std::size_t i = 0; i < layouts.size(); ++i) order.push_back(layouts[i * stride % layouts.size()]);
  }
  const std::vector<double> stayed = losses_over(std::vector<MoveLayout>(order.size(), data_of_4), {});
  EXPECT_LT(difference_from_stay(losses_over(order, {}), stayed), 1e-9);  // after 36 steps
}

TEST(StateMove, EveryOptimizerAndLateGradientsGoAlong) {
  const std::vector<MoveLayout> there_and_back = {at_stage(data_of_4, ZeroStage::optimizer),
                                                  at_stage(tensor_pipeline_of_4, ZeroStage::none),
                                                  at_stage(data_of_4, ZeroStage::gradients)};
  for (const MovedTraining& training :
       {MovedTraining{.optimizer = SGD::Options()}, MovedTraining{.optimizer = Muon::Options()}, MovedTraining{.delay = 1},
        MovedTraining{.adapters = all_linear()}, MovedTraining{.adapters = all_linear(), .delay = 1}}) {
    const std::vector<double> stayed = losses_over({data_of_4, data_of_4, data_of_4}, training);
    EXPECT_LT(difference_from_stay(losses_over(there_and_back, training), stayed), parity_tolerance)
        << training.optimizer.index() << " " << training.delay << " " << training.adapters.any();
  }
}

TEST(StateMove, ControlsFail) {
  const std::vector<double> stayed = losses_over({data_of_4, data_of_4}, {});
  const std::vector<MoveLayout> moved = {data_of_4, tensor_pipeline_of_4};
  const auto forget_steps = [](Trainer& trainer) { trainer.optimizer().restore(0); };
  EXPECT_GT(difference_from_stay(losses_over(moved, {}, forget_steps), stayed), parity_tolerance);
  for (const std::size_t slot : {std::size_t{0}, std::size_t{1}}) {
    const auto forget_slot = [&](Trainer& trainer) {
      for (const Optimizer::State& state : trainer.optimizer().states()) state.slots[slot].zero();
    };
    EXPECT_GT(difference_from_stay(losses_over(moved, {}, forget_slot), stayed), parity_tolerance) << slot;
  }
  const auto forget_value = [](Trainer& trainer) {
    if (trainer.mesh().world().rank() == 3) trainer.sharded().ranges().back().value.set(0, 0);
  };
  EXPECT_GT(difference_from_stay(losses_over(moved, {}, forget_value), stayed), parity_tolerance);
}

// The elements of tensors of the state, by the tensors' names and the elements' places in the whole.
using StateElements = std::map<std::string, std::map<std::int64_t, double>>;

StateElements elements_of(Trainer& trainer, bool owned_only) {
  StateElements result;
  for (std::size_t i = 0; i < trainer.sharded().ranges().size(); ++i) {
    const ShardedParameters::Range& range = trainer.sharded().ranges()[i];
    if (owned_only && !range.owned) continue;
    const Parameter& parameter = *trainer.parameters().all()[range.parameter];
    std::vector<std::pair<std::string, Tensor>> tensors = {{"", trainer.optimizer().weights(i)}, {"late.", range.late}};
    const std::vector<Tensor>& slots = trainer.optimizer().states()[i].slots;
    for (std::size_t s = 0; s < slots.size(); ++s) {
      tensors.emplace_back(trainer.optimizer().kind().slots[s].name + ".", slots[s]);
    }
    for (const auto& [prefix, tensor] : tensors) {
      if (!tensor) continue;
      std::map<std::int64_t, double>& its = result[prefix + parameter.global_name()];
      for_each_run(parameter, range.first, range.count,
                   [&, &values = tensor](std::int64_t at, std::int64_t whole, std::int64_t count) {
                     for (std::int64_t k = 0; k < count; ++k) its[whole + k] = values.at(at + k);
                   });
    }
  }
  return result;
}

struct MovedElements {
  StateElements before, after;            // of all ranks; of copies, the last rank's
  std::int64_t differing = 0;             // copies that are not the element before
  std::int64_t lacked = 0, received = 0;  // bytes
};

MovedElements moved_elements(const MoveLayout& from, const MoveLayout& to, const MovedTraining& training) {
  MovedElements result;
  std::mutex mutex;
  run_threads(from.layout.ranks(), [&](const Communicator& world) {
    auto trainer = trainer_on(world, from, training);
    for (std::int64_t step = 0; step < 2; ++step) trainer->step(text_of_step(trainer->options(), step), 3e-3);
    trainer->sharded().wait_for_late();
    const StateElements owned = elements_of(*trainer, true);
    const std::int64_t steps = trainer->optimizer().steps();
    {
      const std::lock_guard lock(mutex);
      for (const auto& [name, elements] : owned) result.before[name].insert(elements.begin(), elements.end());
    }
    StateMove state(trainer->sharded(), trainer->optimizer());
    trainer = trainer_on(world, to, training);
    const std::int64_t received = state.into(trainer->sharded(), trainer->optimizer());
    EXPECT_EQ(trainer->optimizer().steps(), steps);
    EXPECT_THAT(sentence_of(ErrorCode::invalid_argument, [&] { state.into(trainer->sharded(), trainer->optimizer()); }),
                testing::HasSubstr("has been moved"));
    const StateElements held = elements_of(*trainer, false);
    const std::lock_guard lock(mutex);
    result.received += received;
    for (const auto& [name, elements] : held) {
      const auto mine = owned.find(name);
      const std::map<std::int64_t, double>& whole = result.before.at(name);
      for (const auto& [place, value] : elements) {
        result.after[name][place] = value;
        if (std::bit_cast<std::uint64_t>(value) != std::bit_cast<std::uint64_t>(whole.at(place))) ++result.differing;
        if (mine == owned.end() || !mine->second.contains(place)) {
          result.lacked += static_cast<std::int64_t>(size_of(kernels::accumulator(training.dtype)));
        }
      }
    }
  });
  return result;
}

class StateMoveTypes : public testing::TestWithParam<DType> {};

TEST_P(StateMoveTypes, KeepsAllBitsAndSendsWhatIsLacking) {
  const std::vector<MoveLayout> layouts = {data_of_4,
                                           at_stage(data_of_4, ZeroStage::values),
                                           at_stage(tensor_pipeline_of_4, ZeroStage::optimizer),
                                           {{.data = 2, .tensor = 2}, ZeroStage::none}};
  for (const MoveLayout& from : of_today(layouts)) {
    for (const MoveLayout& to : of_today(layouts, 3)) {
      const MovedElements moved = moved_elements(from, to, {.dtype = GetParam()});
      EXPECT_EQ(moved.before, moved.after) << from.text() << " to " << to.text();
      EXPECT_EQ(moved.differing, 0) << from.text() << " to " << to.text();
      EXPECT_EQ(moved.received, moved.lacked) << from.text() << " to " << to.text();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, StateMoveTypes, testing::Values(DType::f64, DType::bf16),
                         [](const auto& cell) { return std::string(name(cell.param)); });

TEST(StateMove, KeepsTheBitsOfLateGradientsAndOfMuon) {
  for (const MovedTraining& training : {MovedTraining{.delay = 1}, MovedTraining{.optimizer = Muon::Options()}}) {
    const MovedElements moved = moved_elements(at_stage(data_of_4, ZeroStage::optimizer), tensor_pipeline_of_4, training);
    EXPECT_EQ(moved.before, moved.after);
    EXPECT_EQ(moved.differing, 0);
    EXPECT_EQ(moved.received, moved.lacked);
  }
}

TEST(StateMove, RanksThatJoinGetTheBitsToo) {
  const MoveLayout of_two{{.data = 2}, ZeroStage::optimizer};
  for (const MoveLayout& to : {data_of_4, tensor_pipeline_of_4}) {
    for (const MovedTraining& training : {MovedTraining{.dtype = DType::bf16}, MovedTraining{.delay = 1}}) {
      StateElements before, after;
      std::mutex mutex;
      const auto add = [&](StateElements& all, const StateElements& its) {
        const std::lock_guard lock(mutex);
        for (const auto& [name, elements] : its) all[name].insert(elements.begin(), elements.end());
      };
      run_threads(4, [&](const Communicator& world) {
        const Communicator two = world.subgroup({0, 1}, "two");
        auto state = std::make_unique<StateMove>();
        if (two) {
          const auto trainer = trainer_on(two, of_two, training);
          for (std::int64_t step = 0; step < 2; ++step) trainer->step(text_of_step(trainer->options(), step), 3e-3);
          trainer->sharded().wait_for_late();
          add(before, elements_of(*trainer, true));
          state = std::make_unique<StateMove>(trainer->sharded(), trainer->optimizer());
        }
        const auto trainer = trainer_on(world, to, training);
        state->into(trainer->sharded(), trainer->optimizer());
        EXPECT_EQ(trainer->optimizer().steps(), 2 - training.delay);
        add(after, elements_of(*trainer, false));
      });
      EXPECT_EQ(before, after) << to.text();
    }
  }
}

std::string refusal_of(const std::function<void(TrainingOptions&)>& change, Layout layout = {.data = 2}) {
  std::string sentence;
  run_threads(layout.ranks(), [&](const Communicator& world) {
    TrainingOptions options = MovedTraining{.dtype = DType::f32}.on({layout, ZeroStage::optimizer});
    change(options);
    Trainer trainer(Mesh(world, layout.mesh()), options);
    trainer.sharded().store();
    const std::string its =
        sentence_of(ErrorCode::invalid_argument, [&] { StateMove(trainer.sharded(), trainer.optimizer()); });
    if (world.rank() == 0) sentence = its;
  });
  return sentence;
}

TEST(StateMove, RefusesStateOfOneLayout) {
  using testing::HasSubstr;
  EXPECT_THAT(refusal_of([](TrainingOptions& options) {
                options.sharding.zero = ZeroStage::values;
                options.sharding.qgz = QuantizedFormat::int8;
                options.sharding.qgz_error_feedback = true;
              }),
              HasSubstr("errors of quantized sums"));
  EXPECT_THAT(refusal_of([](TrainingOptions& options) {
                options.sharding.zero = ZeroStage::values;
                options.sharding.qgz = QuantizedFormat::int8;
                options.sharding.qgz_rounding = Rounding::stochastic;
              }),
              HasSubstr("random numbers"));
  EXPECT_THAT(refusal_of([](TrainingOptions& options) { options.optimizer = OneBitAdam::Options(); }),
              HasSubstr("momentum exchange"));
  EXPECT_THAT(refusal_of([](TrainingOptions& options) { options.sharding.powersgd.rank = 2; }), HasSubstr("of PowerSGD"));
  EXPECT_THAT(refusal_of(
                  [](TrainingOptions& options) {
                    options.stages.schedule_name = "2bw";
                    options.model.tied = false;
                  },
                  {.pipeline = 2}),
              HasSubstr("older versions"));
  EXPECT_THAT(refusal_of([](TrainingOptions& options) {
                options.adapters = all_linear();
                options.adapters.base = StoredFormat::int8;
              }),
              HasSubstr("stored format"));
}

TEST(StateMove, RefusesAnotherTraining) {
  const auto refusal = [](const MovedTraining& other, std::int64_t layers) {
    std::string sentence;
    run_threads(2, [&](const Communicator& world) {
      const MoveLayout where{{.data = 2}, ZeroStage::optimizer};
      auto trainer = trainer_on(world, where, {});
      StateMove state(trainer->sharded(), trainer->optimizer());
      TrainingOptions options = other.on(where);
      options.model.layers = layers;
      trainer = std::make_unique<Trainer>(Mesh(world, where.layout.mesh()), options);
      const std::string its =
          sentence_of(ErrorCode::invalid_argument, [&] { state.into(trainer->sharded(), trainer->optimizer()); });
      if (world.rank() == 0) sentence = its;
    });
    return sentence;
  };
  EXPECT_THAT(refusal({.optimizer = SGD::Options()}, 4), testing::HasSubstr("adamw (m, v), but this optimizer is sgd"));
  EXPECT_THAT(refusal({.dtype = DType::f32}, 4), testing::HasSubstr("the types of this training"));
  EXPECT_THAT(refusal({}, 2), testing::HasSubstr("parameters, but this model has"));
}

}  // namespace
}  // namespace parity
