// Replicas that agree every H steps (DiLoCo), beside the same replicas computed in turn.
#include "stretto/layers/diloco.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <span>

#include "replicated.hpp"
#include "support/error.hpp"

namespace parity {
namespace {

// The oracle: ordinary trainers, one for each replica, take the same step in turn on the ranks of one replica; outer steps
// are loops. `sign`: of the change.
template <class T>
class InTurn {
 public:
  InTurn(const Replicated& how, T sign) : how_(how), sign_(sign) {}

  Trained train(std::int64_t steps) {
    Trained trained;
    trained.states.resize(static_cast<std::size_t>(how_.ranks()));
    run_threads(how_.layout.ranks(), [&](const Communicator& world) {
      const Mesh mesh(world, how_.layout.mesh());
      Ranks ranks;
      TrainingOptions alone = how_.options();
      alone.diloco = {};
      alone.global_batch = how_.options().replica_batch();
      for (int r = 0; r < how_.diloco.replicas; ++r) ranks.trainers.push_back(std::make_unique<Trainer>(mesh, alone));
      begin(ranks);
      for (std::int64_t step = 0; step < steps; ++step) {
        double loss = 0;
        for (int r = 0; r < how_.diloco.replicas; ++r) {
          const FillSlot text = text_of_step(how_.options(), step);
          const std::int64_t first = r * alone.global_batch;
          loss += ranks.trainers[static_cast<std::size_t>(r)]
                      ->step([&](std::int64_t slot, std::int32_t* tokens,
                                 std::int32_t* targets) { text(first + slot, tokens, targets); },
                             inner_rate)
                      .loss;
        }
        if (world.rank() == 0) trained.losses.push_back(loss / how_.diloco.replicas);
        outer_steps(ranks, step + 1);
      }
      for (int r = 0; r < how_.diloco.replicas; ++r) {
        const auto rank = static_cast<std::size_t>(r * how_.layout.ranks() + world.rank());
        trained.states[rank] =
            state_of(*ranks.trainers[static_cast<std::size_t>(r)], kind_of(alone.optimizer).slots.size(), how_.measures);
      }
    });
    return trained;
  }

 private:
  struct Ranks {  // the state on one rank, by range
    std::vector<std::unique_ptr<Trainer>> trainers;
    std::vector<std::vector<T>> outer, momentum, change;
    std::vector<int> fragment;
  };

  static std::vector<T> numbers(const Tensor& tensor) {
    return {tensor.template data<T>(), tensor.template data<T>() + tensor.size()};
  }

  void begin(Ranks& ranks) const {
    const ShardedParameters& sharded = ranks.trainers.front()->sharded();
    const std::vector<int> fragments = fragments_of(sharded.parameters(), how_.diloco.fragments);
    for (std::size_t i = 0; i < sharded.ranges().size(); ++i) {
      ranks.outer.push_back(numbers(ranks.trainers.front()->optimizer().states()[i].master));
      ranks.momentum.emplace_back(ranks.outer.back().size(), T(0));
      ranks.fragment.push_back(fragments[sharded.ranges()[i].parameter]);
    }
    ranks.change.resize(ranks.outer.size());
  }

  void outer_steps(Ranks& ranks, std::int64_t step) const {
    const DiLoCoOptions& diloco = how_.diloco;
    const auto replicas = static_cast<T>(diloco.replicas);
    const auto fragment_at = [&](std::int64_t at) { return (at / diloco.interval() - 1) % diloco.fragments; };
    const std::int64_t sent = step - diloco.fragment_sync_delay;
    for (std::size_t i = 0; i < ranks.outer.size(); ++i) {
      std::vector<T>&outer = ranks.outer[i], &momentum = ranks.momentum[i], &change = ranks.change[i];
      if (step % diloco.interval() == 0 && fragment_at(step) == ranks.fragment[i]) {
        change.assign(outer.size(), T(0));
        for (std::size_t r = 0; r < ranks.trainers.size(); ++r) {
          const std::vector<T> local = numbers(ranks.trainers[r]->optimizer().states()[i].master);
          for (std::size_t k = 0; k < outer.size(); ++k) {
            const T its = sign_ * (outer[k] - local[k]);
            change[k] = r == 0 ? its : change[k] + its;
          }
        }
        for (T& each : change) each /= replicas;
      }
      if (sent <= 0 || sent % diloco.interval() != 0 || fragment_at(sent) != ranks.fragment[i]) continue;
      for (std::size_t k = 0; k < outer.size(); ++k) {
        momentum[k] = std::fma(static_cast<T>(diloco.momentum), momentum[k], change[k]);
        outer[k] = std::fma(-static_cast<T>(diloco.lr * diloco.momentum), momentum[k], outer[k]);
        outer[k] = std::fma(-static_cast<T>(diloco.lr), change[k], outer[k]);
      }
      for (const auto& trainer : ranks.trainers) {
        T* const local = trainer->optimizer().states()[i].master.template data<T>();
        const auto alpha = static_cast<T>(diloco.fragment_update_alpha);
        for (std::size_t k = 0; k < outer.size(); ++k) {
          local[k] = alpha == 0 ? outer[k] : static_cast<T>(1 - diloco.fragment_update_alpha) * outer[k] + alpha * local[k];
        }
      }
    }
    for (const auto& trainer : ranks.trainers) trainer->optimizer().restore(trainer->optimizer().steps());
  }

  Replicated how_;
  T sign_;
};

Trained in_turn(const Replicated& how, std::int64_t steps, int sign = 1) {
  if (how.dtype == DType::f64) return InTurn<double>(how, sign).train(steps);
  return InTurn<float>(how, static_cast<float>(sign)).train(steps);
}

const std::vector<Replicated>& replicated_layouts() {
  const DiLoCoOptions two{.replicas = 2, .sync_every = 5}, three{.replicas = 3, .sync_every = 2};
  const DiLoCoOptions streaming{
      .replicas = 2, .sync_every = 4, .fragments = 2, .fragment_sync_delay = 1, .fragment_update_alpha = 0.25};
  static const std::vector<Replicated> layouts = {
      {two, {}},
      {three, {}},
      {two, {.data = 2}},
      {two, {.data = 2}, ZeroStage::none, DType::bf16},
      {two, {.data = 2}, ZeroStage::none, DType::bf16, true},
      {two, {.data = 2}, ZeroStage::optimizer, DType::bf16},
      {two, {.data = 2}, ZeroStage::gradients, DType::f64},
      {two, {.data = 2}, ZeroStage::gradients, DType::f16},
      {three, {.data = 2}, ZeroStage::values},
      {two, {.data = 2}, ZeroStage::values, DType::bf16},
      {two, {.tensor = 2}, ZeroStage::none},
      {two, {.pipeline = 2}, ZeroStage::optimizer},
      {two, {.data = 2, .tensor = 2}, ZeroStage::optimizer, DType::bf16},
      {two, {.data = 2, .pipeline = 2}, ZeroStage::none, DType::bf16},
      {streaming, {}},
      {streaming, {.data = 2}, ZeroStage::none, DType::bf16},
      {streaming, {.data = 2}, ZeroStage::values},
      {streaming, {.data = 2, .tensor = 2}, ZeroStage::gradients},
      {streaming, {.tensor = 2, .pipeline = 2}, ZeroStage::optimizer},
      {{.replicas = 2, .sync_every = 6, .fragments = 3, .fragment_update_alpha = 0.5}, {.pipeline = 2}},
      {{.replicas = 2, .sync_every = 3, .momentum = 0, .fragment_sync_delay = 2}, {.data = 2}},
  };
  return layouts;
}

// In every layout the bits of the values, the masters and the inner state of every rank are those of the replicas in turn.
TEST(DiLoCo, EqualsReplicasInTurn) {
  for (const Replicated& how : replicated_layouts()) {
    constexpr std::int64_t steps = 11;
    const Trained found = train_replicas(how, steps), expected = in_turn(how, steps);
    for (std::size_t rank = 0; rank < expected.states.size(); ++rank) {
      EXPECT_EQ(found.states[rank] == expected.states[rank], true) << how.text() << ", rank " << rank;
    }
    for (std::size_t step = 0; step < steps; ++step) {
      EXPECT_NEAR(found.losses[step] / expected.losses[step], 1, 1e-12) << how.text() << ", step " << step;
    }
  }
}

// Changes that are added instead of taken away, a round that is a step longer, and a delay that is a step shorter.
TEST(DiLoCo, ControlsDiffer) {
  const Replicated how = replicated_layouts()[14];
  const Trained expected = in_turn(how, 7);
  EXPECT_EQ(train_replicas(how, 7).states, expected.states);
  EXPECT_NE(train_replicas(how, 7).states, in_turn(how, 7, -1).states);
  Replicated other = how;
  other.diloco.fragment_sync_delay = 0;
  EXPECT_NE(train_replicas(other, 7).states, expected.states);
  other = how;
  other.diloco.sync_every = 6;
  EXPECT_NE(train_replicas(other, 7).states, expected.states);
  other = how;
  other.diloco.fragment_update_alpha = 0;
  EXPECT_NE(train_replicas(other, 7).states, expected.states);
}

// One round is a step of gradient descent on the mean gradient, to 2 units in the last place of a value of the tensor's
// size.
TEST(DiLoCo, IsDataParallelDescentWhereReplicasAgreeInEachStep) {
  const auto descent = [](int replicas, Layout layout, double outer_rate) {
    Replicated how{{.replicas = replicas, .sync_every = 1, .lr = outer_rate, .momentum = 0}, layout};
    TrainingOptions options = how.options();
    options.global_batch = 4;
    options.clip_norm = 0;
    options.optimizer = SGD::Options{.momentum = 0};
    Trace trace;
    run_threads(how.ranks(), [&](const Communicator& world) {
      const ReplicaGroups groups = replicas > 1 ? split_into_replicas(world, replicas) : ReplicaGroups{world, {}};
      Trainer trainer(Mesh(groups.replica, layout.mesh()), options, groups.peers);
      trainer.step(text_of_step(trainer.options(), 0), 0.1);
      const Pieces values = pieces_of(trainer, trainer.sharded().whole_values());
      if (world.rank() == 0) trace.parameters = values;
    });
    return trace;
  };
  const Trace expected = descent(1, {.data = 2}, 1);
  Comparer ulps(2 * std::ldexp(1.0, -23)), control(2 * std::ldexp(1.0, -23));
  EXPECT_EQ(ulps.pieces(expected.parameters, descent(2, {}, 1).parameters, ""), "");
  EXPECT_NE(control.pieces(expected.parameters, descent(2, {}, 0.9).parameters, ""), "");
}

// What is no number in one replica is left out by all, so that they stay in step.
TEST(DiLoCo, LeavesOutAStepThatOverflowsInOneReplica) {
  const Replicated how{{.replicas = 2, .sync_every = 2}, {.data = 2}};
  std::vector<std::vector<bool>> updated(4);
  run_threads(how.ranks(), [&](const Communicator& world) {
    const ReplicaGroups groups = split_into_replicas(world, 2);
    Trainer trainer(Mesh(groups.replica, how.layout.mesh()), how.options(), groups.peers);
    for (std::int64_t step = 0; step < 5; ++step) {
      const Tensor value = trainer.sharded().ranges().front().value;
      const double before = value.at(0);
      if (step == 2 && groups.peers.rank() == 1) value.set(0, std::numeric_limits<double>::infinity());
      const StepResult result = trainer.step(text_of_step(trainer.options(), step), inner_rate);
      if (step == 2 && groups.peers.rank() == 1) value.set(0, before);
      updated[static_cast<std::size_t>(world.rank())].push_back(result.updated);
    }
    EXPECT_EQ(trainer.optimizer().steps(), 4);
  });
  for (const std::vector<bool>& each : updated) EXPECT_THAT(each, testing::ElementsAre(true, true, false, true, true));
}

// Norms and biases are copies, which tensor-parallel ranks update beside other elements each.
TEST(DiLoCo, CopiesOfTensorParallelRanksStayEqualInAnyFormat) {
  for (const QuantizedFormat format : {QuantizedFormat::none, QuantizedFormat::int8, QuantizedFormat::int4}) {
    Replicated how = in_format(format);
    how.layout = {.tensor = 2};
    train_replicas(how, 10, [&](Trainer& trainer, std::int64_t step) {
      if (step < 9) return;
      trainer.sharded().wait_for_values();
      int compared = 0;
      for (const auto& parameter : trainer.parameters().all()) {
        if (!parameter->replicated_over.contains(Axis::tensor)) continue;
        const Numbers mine = [&] {
          Numbers numbers;
          append(numbers, parameter->value);
          return numbers;
        }();
        Numbers both(2 * mine.size());
        trainer.mesh()
            .over(Axis::tensor)
            .all_gather(mine.data(), both.data(), static_cast<std::int64_t>(mine.size()), DType::f64, Stream::inline_())
            .wait();
        EXPECT_TRUE(std::ranges::equal(std::span(both).first(mine.size()), std::span(both).last(mine.size())))
            << parameter->name << ", " << name(format);
        ++compared;
      }
      EXPECT_GT(compared, 0);
    });
  }
}

}  // namespace
}  // namespace parity
