// What replicas that agree every H steps (DiLoCo) send and keep, by formula, and what they lose in fewer bits.
#include <gmock/gmock.h>

#include <numeric>

#include "replicated.hpp"
#include "stretto/planning/stage_plan.hpp"

namespace parity {
namespace {

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
TEST(DiLoCoTraffic, SendsInARoundWhatDataParallelRanksSendInAStep) {
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
TEST(DiLoCoTraffic, SendsEachFragmentOnceARound) {
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

// In 8 and 4 bits all replicas still agree on the same bits, sent in a quarter and an eighth, and stay near the exact ones.
TEST(DiLoCoTraffic, ExchangesInFewerBits) {
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
    std::vector<std::int64_t> planned;
    for (const OuterElements& fragment :
         outer_elements(trainer.parameters(), how.layout.mesh(), how.options().sharding, how.diloco.fragments)) {
      planned.push_back(fragment.all);
    }
    EXPECT_EQ(trainer.diloco()->elements(), planned);
  });
  return held;
}

// Two more slots of what a rank updates, errors of what it sends, and the bytes of a round in the mean of its steps.
TEST(DiLoCoTraffic, NeedsTheMemoryAndSendsTheBytesOfThePlan) {
  for (const Layout layout : {Layout{}, {.data = 2}, {.tensor = 2}}) {
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
      sends(quantized);
      if (layout.tensor > 1) continue;  // whose copies have no errors
      std::int64_t errors = 0;          // of two replicas
      for (const std::int64_t n : sent_by(how, 1).elements) errors += 4 * n + 4 * n / 2;
      near(held_by(how, MemoryKind::buffers) - buffers, errors);
    }
  }
}

}  // namespace
}  // namespace parity
