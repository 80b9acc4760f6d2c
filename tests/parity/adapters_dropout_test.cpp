// Dropout of adapters' inputs: the same elements on every layout, the gradients of what was dropped, and nothing dropped
// where nothing is trained.
#include <gmock/gmock.h>

#include "adapted.hpp"
#include "by_hand.hpp"
#include "matrix.hpp"
#include "stretto/layers/checkpoint.hpp"
#include "support/temporary_directory.hpp"

namespace parity::adapters_dropout {
namespace {

AdapterOptions dropping(double probability = 0.3) {
  AdapterOptions adapters = all_linear();
  adapters.dropout = probability;
  return adapters;
}

TrainingOptions options_for(const MatrixCell& cell) {
  TrainingOptions options = options_of(cell);
  options.adapters = dropping();
  options.clip_norm = 1e-3;
  return options;
}

TEST(AdaptersDropout, IsTheSameOnEveryLayout) {
  const std::vector<MatrixCell> cells = {
      {.layout = {.data = 2}, .zero = ZeroStage::values, .recompute = {Recompute::full}, .micro_batch = 2},
      {.layout = {.tensor = 2}, .family = "llama"},
      {.layout = {.tensor = 2}, .own_rows = true, .recompute = {Recompute::selective}, .family = "qwen2"},
      {.layout = {.tensor = 4}, .own_rows = true, .keeps_gathered = true, .kv_heads = 4, .family = "llama"},
      {.layout = {.data = 2, .pipeline = 2}, .schedule = ScheduleKind::zb_v, .recompute = {Recompute::full}},
      {.layout = {.tensor = 2, .pipeline = 2}, .own_rows = true, .schedule = ScheduleKind::zb_h1, .family = "llama"},
      {.layout = {.ring = 2}, .zero = ZeroStage::gradients},
      {.layout = {.data = 2, .ulysses = 2}, .recompute = {Recompute::full}, .family = "qwen3"}};
  for (const MatrixCell& cell : cells) {
    const TrainingOptions options = options_for(cell);
    TrainingOptions alone = options;
    alone.micro_batch = 1;
    const Trace expected = adapted_on_one_rank(alone);
    EXPECT_EQ(adapted_divergence(expected, cell.layout, options), "") << text_of(cell);
  }
}

// The control: where a token's draw is that of its slot on its rank, two ranks drop the same for different sequences.
TEST(AdaptersDropout, ByLocalTokensDiffersFromOneRank) {
  const Layout layout{.data = 2};
  TrainingOptions options = tiny(layout);
  options.adapters = dropping();
  const auto differs = [&](bool local) {
    const Fault fault{.draw = [local](std::int64_t slot, std::int64_t own_slot, std::int64_t position) {
      const std::int64_t token = (local ? own_slot : slot) * 1000 + position;
      return static_cast<std::int64_t>(1e18 * random_uniform(5, "draws", static_cast<std::uint64_t>(token)));
    }};
    std::vector<Trace> first(2);
    for (const Layout on : {Layout{}, layout}) {
      run_threads(on.ranks(), [&](const Communicator& world) {
        Trace trace = train_by_hand(world, on, on.ranks() > 1 ? options : on_one_rank(options), fault);
        if (world.rank() == 0) first[on.ranks() > 1 ? 1 : 0] = std::move(trace);
      });
    }
    return !compare(first[0], first[1], parity_tolerance).all().empty();
  };
  EXPECT_FALSE(differs(false));
  EXPECT_TRUE(differs(true));
}

// The values of one parameter on one rank.
const ShardedParameters::Range& range_of(Trainer& trainer, const std::string& name) {
  for (const ShardedParameters::Range& range : trainer.sharded().ranges()) {
    if (trainer.parameters().all()[range.parameter]->name == name) return range;
  }
  throw std::runtime_error(name);
}

// With draws that stay, a loss changes along each element as its gradient says. The control: not as the gradient of a model
// that drops nothing says.
TEST(AdaptersDropout, HasTheGradientsOfItsMask) {
  for (const char* const family : {"gpt2", "llama"}) {
    TrainingOptions options = options_of({.family = family});
    options.adapters = dropping();
    run_threads(1, [&](const Communicator& world) {
      Trainer trainer(Mesh(world, {}), options);
      begin_apart(trainer);
      const auto loss = [&](Trainer& of) { return of.compute_gradients(text_of_step(options, 0)).loss; };
      EXPECT_EQ(loss(trainer), loss(trainer));
      const Pieces gradients = pieces_of(trainer, trainer.sharded().whole_gradients());
      TrainingOptions plain = options;
      plain.adapters.dropout = 0;
      Trainer other(Mesh(world, {}), plain);
      begin_apart(other);
      loss(other);
      const Pieces undropped = pieces_of(other, other.sharded().whole_gradients());
      int tried = 0, as_undropped = 0;
      for (const auto& [name, piece] : gradients) {
        if (!is_factor(name)) continue;
        const ShardedParameters::Range& range = range_of(trainer, name);
        const auto element = static_cast<std::int64_t>(piece.values.size()) / 2;
        const double value = range.value.at(element), step = 1e-5;
        const auto at = [&](double moved) {
          range.value.set(element, moved);
          trainer.sharded().share_values();
          return loss(trainer);
        };
        const double slope = (at(value + step) - at(value - step)) / (2 * step);
        at(value);
        const double gradient = piece.values[static_cast<std::size_t>(element)];
        EXPECT_NEAR(slope, gradient, 1e-9 + 1e-5 * std::abs(gradient)) << name;
        if (std::abs(undropped.at(name).values[static_cast<std::size_t>(element)] - slope) < 1e-9) ++as_undropped;
        ++tried;
      }
      EXPECT_GE(tried, 16);
      EXPECT_LT(as_undropped, tried / 4);
    });
  }
}

// Another seed, another step and another module drop others.
TEST(AdaptersDropout, FollowsFromSeedAndStep) {
  TrainingOptions options = tiny({});
  options.adapters = dropping();
  run_threads(1, [&](const Communicator& world) {
    Trainer trainer(Mesh(world, {}), options);
    begin_apart(trainer);
    const auto loss = [&](Trainer& of) { return of.compute_gradients(text_of_step(options, 0)).loss; };
    const double first = loss(trainer);
    trainer.optimizer().restore(1);
    EXPECT_NE(loss(trainer), first);
    trainer.optimizer().restore(0);
    EXPECT_EQ(loss(trainer), first);
    for (const double probability : {0.0, 0.3}) {
      std::vector<double> losses;
      for (const std::uint64_t seed : {1, 2}) {
        TrainingOptions seeded = options;
        seeded.seed = seed;
        seeded.adapters.dropout = probability;
        Trainer other(Mesh(world, {}), seeded);
        for (std::size_t i = 0; i < other.sharded().ranges().size(); ++i) {
          other.sharded().ranges()[i].value.copy_from(trainer.sharded().ranges()[i].value);
        }
        other.sharded().share_values();
        losses.push_back(loss(other));
      }
      EXPECT_EQ(losses[0] == losses[1], probability == 0);
    }
  });
}

TEST(AdaptersDropout, DropsNothingInEvaluation) {
  TrainingOptions options = tiny({});
  std::vector<double> evaluated, trained, sampled;
  for (const double probability : {0.0, 0.5}) {
    options.adapters = dropping(probability);
    run_threads(1, [&](const Communicator& world) {
      Trainer trainer(Mesh(world, {}), options);
      begin_apart(trainer);
      evaluated.push_back(trainer.evaluate(text_of_step(options, 0), options.global_batch));
      sampled.push_back(trainer.next_logits({1, 2, 3}).at(5));
      trained.push_back(trainer.compute_gradients(text_of_step(options, 0)).loss);
    });
  }
  EXPECT_EQ(evaluated[0], evaluated[1]);
  EXPECT_EQ(sampled[0], sampled[1]);
  EXPECT_NE(trained[0], trained[1]) << "the control";
}

TEST(AdaptersDropout, GoesOnBitForBit) {
  const Layout layout{.data = 2, .tensor = 2};
  TrainingOptions options = tiny(layout);
  options.adapters = dropping();
  const auto losses_of = [&](const std::string& save, const std::string& resume) {
    std::vector<double> losses;
    run_threads(layout.ranks(), [&](const Communicator& world) {
      Trainer trainer(Mesh(world, layout.mesh()), options);
      begin_apart(trainer);
      std::int64_t step = 0;
      if (!resume.empty()) {
        const LoadedCheckpoint loaded =
            load_checkpoint(trainer.sharded(), trainer.optimizer(), find_checkpoint(resume), true);
        trainer.optimizer().restore(loaded.optimizer_steps);
        step = loaded.step;
      }
      for (; step < 4; ++step) {
        if (step == 2 && !save.empty()) {
          CheckpointSaver saver(trainer.sharded(), trainer.optimizer(), save, {.trained_only = true});
          saver.save(step);
          saver.wait();
        }
        const double loss = trainer.step(text_of_step(options, step), 3e-2).loss;
        if (world.rank() == 0) losses.push_back(loss);
      }
    });
    return losses;
  };
  const TemporaryDirectory directory;
  const std::vector<double> whole = losses_of(directory.path(), "");
  EXPECT_EQ(losses_of("", directory.path()), std::vector<double>(whole.begin() + 2, whole.end()));
}

}  // namespace
}  // namespace parity::adapters_dropout
