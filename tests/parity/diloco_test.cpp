// Replicas that agree every H steps (DiLoCo), beside the same replicas computed in turn, and what they send, keep and save.
#include "stretto/layers/diloco.hpp"

#include <gmock/gmock.h>

#include <limits>
#include <numeric>
#include <optional>

#include "parity.hpp"
#include "stretto/layers/checkpoint.hpp"
#include "stretto/planning/stage_plan.hpp"
#include "support/error.hpp"
#include "support/temporary_directory.hpp"

namespace parity {
namespace {

struct Replicated {
  DiLoCoOptions diloco;
  Layout layout;  // of a replica
  ZeroStage zero = ZeroStage::none;
  DType dtype = DType::f32;
  bool measures = false;  // ZeRO 0: whether times choose units that are updated by share, whose state elsewhere is stale

  int ranks() const { return diloco.replicas * layout.ranks(); }
  std::string text() const {
    return fmt::format("{} replicas of dp {} tp {} pp {}, zero {}, {}, H {} in {}, delay {}, alpha {}", diloco.replicas,
                       layout.data, layout.tensor, layout.pipeline, static_cast<int>(zero), name(dtype), diloco.sync_every,
                       diloco.fragments, diloco.fragment_sync_delay, diloco.fragment_update_alpha);
  }
  TrainingOptions options() const {
    TrainingOptions options = tiny(layout, dtype);
    options.sharding.zero = zero;
    options.sharding.measured_steps = measures ? 1 : 0;
    options.global_batch = 4L * diloco.replicas;
    options.loss_scale.initial = 1024;  // which no step overflows
    options.diloco = diloco;
    return options;
  }
};

using Numbers = std::vector<double>;

void append(Numbers& numbers, const Tensor& tensor) {
  for (std::int64_t i = 0; tensor && i < tensor.size(); ++i) numbers.push_back(tensor.at(i));
}

// What the inner training has made: the values that the rank computes with, those of all owners, and the state of the
// elements that the rank updates, or of its share of them.
Numbers state_of(Trainer& trainer, std::size_t inner_slots, bool of_share) {
  Numbers numbers;
  trainer.sharded().wait_for_values();
  for (const auto& parameter : trainer.parameters().all()) append(numbers, parameter->value);
  for (const Tensor& value : trainer.sharded().whole_values()) append(numbers, value);
  for (std::size_t i = 0; i < trainer.sharded().ranges().size(); ++i) {
    const Optimizer::State& state = trainer.optimizer().states()[i];
    if (of_share && !trainer.sharded().ranges()[i].in_share) continue;
    append(numbers, state.master);
    for (std::size_t slot = 0; slot < inner_slots; ++slot) append(numbers, state.slots[slot]);
  }
  return numbers;
}

using States = std::vector<Numbers>;  // by rank of the job
constexpr double inner_rate = 3e-3;

struct Trained {
  States states;
  std::vector<double> losses;
};

using Prepare = std::function<void(Trainer& trainer, std::int64_t step)>;

Trained train_replicas(const Replicated& how, std::int64_t steps, const Prepare& before_step = {}) {
  Trained trained;
  trained.states.resize(static_cast<std::size_t>(how.ranks()));
  run_threads(how.ranks(), [&](const Communicator& world) {
    const ReplicaGroups groups = split_into_replicas(world, how.diloco.replicas);
    Trainer trainer(Mesh(groups.replica, how.layout.mesh()), how.options(), groups.peers);
    const std::size_t inner = kind_of(how.options().optimizer).slots.size();
    for (std::int64_t step = 0; step < steps; ++step) {
      if (before_step) before_step(trainer, step);
      const double loss = trainer.step(text_of_step(trainer.options(), step), inner_rate).loss;
      if (world.rank() == 0) trained.losses.push_back(loss);
    }
    trained.states[static_cast<std::size_t>(world.rank())] = state_of(trainer, inner, how.measures);
  });
  return trained;
}

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

// ---- what is sent

struct Sent {
  std::vector<std::int64_t> bytes;  // of changes of weights, by step
  std::vector<std::int64_t> counts;
  std::vector<std::int64_t> elements;  // of a rank's fragments
  std::int64_t gradients = 0;          // of a step
  std::string stream;
};

Sent sent_by(const Replicated& how, std::int64_t steps) {
  Sent sent;
  run_threads(how.ranks(), [&](const Communicator& world) {
    const bool alone = how.diloco.replicas == 1;
    const ReplicaGroups groups = alone ? ReplicaGroups{world, {}} : split_into_replicas(world, how.diloco.replicas);
    Trainer trainer(Mesh(groups.replica, how.layout.mesh()), how.options(), groups.peers);
    for (std::int64_t step = 0; step < steps; ++step) {
      const std::uint64_t since = world.job().ledger().next_sequence();
      trainer.step(text_of_step(trainer.options(), step), inner_rate);
      if (world.rank() != 0) continue;
      sent.bytes.push_back(0);
      sent.gradients = 0;
      for (const Record& record : world.job().ledger().records(since)) {
        if (record.group == "dp" && record.tag != "loss") sent.gradients += static_cast<std::int64_t>(record.bytes_sent);
        if (record.tag != "changes of weights") continue;
        EXPECT_EQ(record.group, "diloco");
        sent.bytes.back() += static_cast<std::int64_t>(record.bytes_sent);
        sent.counts.push_back(record.count);
        sent.stream = record.stream;
      }
    }
    if (world.rank() == 0 && !alone) sent.elements = trainer.diloco()->elements();
    if (!alone) trainer.diloco()->settle();
  });
  return sent;
}

// A round sends what data-parallel ranks send in one step, so that a step sends 1/H of it.
TEST(DiLoCo, SendsInARoundWhatDataParallelRanksSendInAStep) {
  constexpr std::int64_t rounds = 2, steps = 4;
  const Sent sent = sent_by({{.replicas = 2, .sync_every = steps}, {}}, rounds * steps);
  Replicated data_parallel{{.replicas = 1}, {.data = 2}};
  const Sent gradients = sent_by(data_parallel, 4);
  EXPECT_THAT(sent.bytes, testing::ElementsAre(0, 0, 0, gradients.gradients, 0, 0, 0, gradients.gradients));
  const std::int64_t elements = sent.elements.front();
  EXPECT_EQ(sent.bytes[3], 2 * (2 - 1) * elements * 4 / 2);
  EXPECT_EQ(elements, parameters_of(data_parallel.options().model));
}

// Each fragment travels once a round, all of its tensors as one, and the largest of them is the most that a step sends.
TEST(DiLoCo, SendsEachFragmentOnceARound) {
  DiLoCoOptions streaming{.replicas = 2, .sync_every = 6, .fragments = 3, .fragment_sync_delay = 1};
  const Sent sent = sent_by({streaming, {.data = 2}, ZeroStage::optimizer}, 12);
  ASSERT_EQ(sent.elements.size(), 3U);
  EXPECT_THAT(sent.counts, testing::ElementsAre(sent.elements[0], sent.elements[1], sent.elements[2], sent.elements[0],
                                                sent.elements[1], sent.elements[2]));
  EXPECT_EQ(sent.stream, "diloco");
  for (std::size_t step = 0; step < 12; ++step) EXPECT_EQ(sent.bytes[step] > 0, step % 2 == 1) << step;
  const auto peak = [](const Sent& of) { return static_cast<double>(*std::ranges::max_element(of.bytes)); };
  streaming.fragments = 1;
  const Sent whole = sent_by({streaming, {.data = 2}, ZeroStage::optimizer}, 12);
  EXPECT_NEAR(peak(whole) / peak(sent), 3, 0.75);  // parameters are not cut
  EXPECT_EQ(std::accumulate(sent.bytes.begin(), sent.bytes.end(), std::int64_t{0}),
            std::accumulate(whole.bytes.begin(), whole.bytes.end(), std::int64_t{0}));
}

// ---- formats

Replicated in_format(QuantizedFormat format, DType dtype = DType::f32) {
  return {{.replicas = 2, .sync_every = 4, .fragments = 2, .fragment_sync_delay = 1, .format = format},
          {.data = 2},
          ZeroStage::optimizer,
          dtype};
}

// In 8 and 4 bits all replicas still agree on the same bits, sent in a quarter and an eighth, and stay near the exact ones.
TEST(DiLoCo, ExchangesInFewerBits) {
  const double exact = train_replicas(in_format(QuantizedFormat::none), 12).losses.back();
  std::int64_t plain = 0;
  for (const std::int64_t bytes : sent_by(in_format(QuantizedFormat::none), 8).bytes) plain += bytes;
  for (const auto& [format, share] : {std::pair{QuantizedFormat::int8, 1.016 / 4}, {QuantizedFormat::int4, 0.531 / 4}}) {
    Replicated at_end = in_format(format);  // behind a step in which both fragments have been merged
    at_end.diloco = {.replicas = 2, .sync_every = 4, .format = format};
    const Trained trained = train_replicas(at_end, 4);
    const std::size_t values = static_cast<std::size_t>(parameters_of(at_end.options().model));
    for (const Numbers& state : trained.states) {
      EXPECT_TRUE(std::equal(state.begin(), state.begin() + static_cast<std::ptrdiff_t>(values), trained.states[0].begin()));
    }
    EXPECT_NE(trained.states.front(),
              train_replicas({{.replicas = 2, .sync_every = 4}, {.data = 2}, ZeroStage::optimizer}, 4).states.front());
    EXPECT_NEAR(train_replicas(in_format(format), 12).losses.back() / exact, 1, 0.01) << name(format);
    std::int64_t sent = 0;
    for (const std::int64_t bytes : sent_by(in_format(format), 8).bytes) sent += bytes;
    EXPECT_NEAR(static_cast<double>(sent) / static_cast<double>(plain), share, 0.01) << name(format);
  }
}

// ---- checkpoints

void save(Trainer& trainer, const Communicator& all, const std::string& directory, std::int64_t step) {
  CheckpointSaver(trainer.sharded(), trainer.optimizer(), directory, {.ranks = all}).save(step);
}

// Saves after `saved` steps, or goes on from there; `settles`: before it is saved.
Trained resumed(const Replicated& how, std::int64_t steps, const std::string& directory, std::optional<std::int64_t> saved,
                bool settles = true) {
  Trained trained;
  trained.states.resize(static_cast<std::size_t>(how.ranks()));
  run_threads(how.ranks(), [&](const Communicator& world) {
    const ReplicaGroups groups = split_into_replicas(world, how.diloco.replicas);
    Trainer trainer(Mesh(groups.replica, how.layout.mesh()), how.options(), groups.peers);
    std::int64_t step = 0;
    if (!saved) {
      const LoadedCheckpoint loaded =
          load_checkpoint(trainer.sharded(), trainer.optimizer(), find_checkpoint(directory), true, groups.peers.rank());
      EXPECT_EQ(loaded.replicas, how.diloco.replicas);
      trainer.optimizer().restore(loaded.optimizer_steps);
      step = loaded.step;
    }
    for (; step < steps; ++step) {
      if (saved && step == *saved) {
        if (settles) trainer.diloco()->settle();
        save(trainer, world, directory, step);
      }
      const double loss = trainer.step(text_of_step(trainer.options(), step), inner_rate).loss;
      if (world.rank() == 0) trained.losses.push_back(loss);
    }
    trained.states[static_cast<std::size_t>(world.rank())] =
        state_of(trainer, kind_of(how.options().optimizer).slots.size(), how.measures);
  });
  return trained;
}

// From every step of a round, also while a fragment is in flight, with and without errors that are fed back.
TEST(DiLoCo, GoesOnFromACheckpointBitForBit) {
  for (const QuantizedFormat format : {QuantizedFormat::none, QuantizedFormat::int8}) {
    for (std::int64_t saved = 3; saved < 7; ++saved) {
      const Replicated how = in_format(format);
      const TemporaryDirectory directory;
      const Trained whole = resumed(how, 10, directory.path(), saved);
      EXPECT_EQ(whole.states, train_replicas(how, 10).states) << "saving changes nothing";
      EXPECT_EQ(resumed(how, 10, directory.path(), std::nullopt).states, whole.states) << name(format) << ", step " << saved;
    }
  }
}

TEST(DiLoCo, ControlDiffersWhereAnExchangeInFlightWasNotSettled) {
  const Replicated how = in_format(QuantizedFormat::none);
  const TemporaryDirectory directory;
  const Trained whole = resumed(how, 10, directory.path(), 4, false);
  EXPECT_NE(resumed(how, 10, directory.path(), std::nullopt).states, whole.states);
}

// The layout inside replicas may change; their number may not, but a job may begin with the first one's values.
TEST(DiLoCo, GoesOnInAnotherLayoutOfReplicas) {
  Replicated from{{.replicas = 2, .sync_every = 4, .fragments = 2, .fragment_sync_delay = 1},
                  {.data = 2},
                  ZeroStage::optimizer,
                  DType::f64};
  Replicated to = from;
  to.layout = {.tensor = 2};
  to.zero = ZeroStage::none;
  const TemporaryDirectory directory;
  const Trained whole = resumed(from, 8, directory.path(), 4);
  const Trained rest = resumed(to, 8, directory.path(), std::nullopt);
  ASSERT_EQ(rest.losses.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(rest.losses[i] / whole.losses[4 + i], 1, parity_tolerance) << i;
  run_threads(1, [&](const Communicator& world) {
    TrainingOptions alone = from.options();
    alone.diloco = {};
    Trainer trainer(Mesh(world, {}), on_one_rank(alone));
    const std::string checkpoint = find_checkpoint(directory.path());
    const LoadedCheckpoint loaded = load_checkpoint(trainer.sharded(), trainer.optimizer(), checkpoint, false);
    EXPECT_EQ(loaded.replicas, 2);
    expect_refusal([&] { load_checkpoint(trainer.sharded(), trainer.optimizer(), checkpoint, true); },
                   "adamw (m, v, outer, outer_momentum)");
    EXPECT_THAT(
        sentence_of(ErrorCode::io, [&] { load_checkpoint(trainer.sharded(), trainer.optimizer(), checkpoint, false, 2); }),
        testing::HasSubstr("has 2 replicas, and not one of number 2"));
  });
}

// ---- by formula

// The bytes of one kind that all ranks of the job hold behind a round, without those that were there before.
std::int64_t held_by(const Replicated& how, MemoryKind kind) {
  std::int64_t held = 0;
  run_threads(how.ranks(), [&](const Communicator& world) {
    const auto bytes = [&] {
      world.barrier(Stream::inline_()).wait();
      const auto now = static_cast<std::int64_t>(memory_use(kind).bytes);
      world.barrier(Stream::inline_()).wait();
      return now;
    };
    const ReplicaGroups groups = split_into_replicas(world, how.diloco.replicas);
    const std::int64_t before = bytes();
    Trainer trainer(Mesh(groups.replica, how.layout.mesh()), how.options(), groups.peers);
    for (std::int64_t step = 0; step < 4; ++step) trainer.step(text_of_step(trainer.options(), step), inner_rate);
    const std::int64_t now = bytes();
    if (world.rank() != 0) return;
    held = now - before;
    EXPECT_EQ(trainer.diloco()->elements(),
              outer_elements(trainer.parameters(), how.layout.mesh(), how.options().sharding, how.diloco.fragments));
  });
  return held;
}

// Two more slots of what a rank updates, errors of what it sends, and the bytes of a round in the mean of its steps.
TEST(DiLoCo, NeedsTheMemoryAndSendsTheBytesOfThePlan) {
  for (const Layout layout : {Layout{}, {.data = 2}}) {
    for (const int fragments : {1, 2}) {
      Replicated how{{.replicas = 2, .sync_every = 4, .fragments = fragments}, layout, ZeroStage::optimizer};
      const auto planned = [&] {
        const TrainingOptions options = how.options().on(layout.mesh());
        return plan_stage(options, options.check(), 0);
      };
      const StagePlan plain = planned();
      const auto near = [&](std::int64_t found, std::int64_t formula) {
        EXPECT_NEAR(static_cast<double>(found) / static_cast<double>(how.ranks() * formula), 1, 0.01) << how.text();
      };
      near(held_by(how, MemoryKind::optimizer), plain.memory.optimizer);
      Replicated alone = how;
      alone.diloco.momentum = 0;  // the control
      EXPECT_LT(held_by(alone, MemoryKind::optimizer), 0.8 * static_cast<double>(how.ranks() * plain.memory.optimizer));
      const auto sends = [&](const StagePlan& plan) {
        std::int64_t sent = 0;
        for (const std::int64_t bytes : sent_by(how, 4).bytes) sent += bytes;
        EXPECT_NEAR(static_cast<double>(plan.sent.at("diloco")), static_cast<double>(sent) / 4, 1) << how.text();
      };
      sends(plain);
      const std::int64_t buffers = held_by(how, MemoryKind::buffers);
      how.diloco.format = QuantizedFormat::int8;
      const StagePlan quantized = planned();
      std::int64_t errors = 0;  // of two replicas
      for (const std::int64_t n : sent_by(how, 1).elements) errors += 4 * n + 4 * n / 2;
      near(held_by(how, MemoryKind::buffers) - buffers, errors);
      sends(quantized);
    }
  }
}

}  // namespace
}  // namespace parity
