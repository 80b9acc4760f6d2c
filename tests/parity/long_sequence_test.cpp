// Training in f64 with sequences divided over the ranks of a ring, of ulysses, or both, and of all other axes, against one
// rank. The controls show that each comparison can fail.
#include <gmock/gmock.h>

#include "../tiers.hpp"
#include "by_hand.hpp"
#include "sampling.hpp"

namespace parity {
namespace {

struct SequenceCell {
  Layout layout;
  SequenceLayout places = SequenceLayout::zigzag;
  std::string mask = "dense";
  ZeroStage zero = ZeroStage::optimizer;
};

gpt::TrainerOptions options_of(const SequenceCell& cell) {
  const Layout& layout = cell.layout;
  gpt::TrainerOptions options = tiny({.data = layout.data, .tensor = layout.tensor * layout.ulysses});
  options.sequence = {.divides_rows = layout.tensor > 1, .layout = cell.places, .mask = attention_mask_from_text(cell.mask)};
  const std::int64_t multiple = options.sequence.division(layout.mesh()).multiple();
  options.model.sequence = (23 / multiple + 1) * multiple;
  options.micro_batch = 2;
  options.global_batch = 4L * layout.data;
  if (layout.pipeline > 1) options.model.layers = layout.pipeline;
  options.sharding.zero = cell.zero;
  options.clip_norm = 0;
  return options;
}

const Trace& of_one_rank(const gpt::TrainerOptions& options, const std::string& mask) {
  static std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::string>, Trace> known;
  const auto [place, is_new] = known.try_emplace(
      {options.model.layers, options.model.hidden, options.model.sequence, options.global_batch, mask}, Trace());
  if (is_new) {
    gpt::TrainerOptions alone = options;
    alone.pipeline = {};
    alone.sequence = {.mask = options.sequence.mask};
    alone.sharding.zero = ZeroStage::none;
    place->second = train({}, alone).front();
  }
  return place->second;
}

std::string text_of(const SequenceCell& cell) {
  return fmt::format("dp {} tp {} pp {} ring {} ulysses {}, {}, {}, zero {}", cell.layout.data, cell.layout.tensor,
                     cell.layout.pipeline, cell.layout.ring, cell.layout.ulysses, name(cell.places), cell.mask,
                     static_cast<int>(cell.zero));
}

std::string divergence_from_one_rank(const SequenceCell& cell) {
  const gpt::TrainerOptions options = options_of(cell);
  const Trace& expected = of_one_rank(options, cell.mask);
  const std::vector<Trace> traces = train(cell.layout, options);
  std::string text = missing(expected, traces);
  for (const Trace& trace : traces) text += compare(expected, trace, parity_tolerance, has_of(cell.layout)).all();
  return text.empty() ? "" : text_of(cell) + ": " + text;
}

std::vector<Layout> divided_layouts() {
  std::vector<Layout> result;
  for (int ring = 1; ring <= 8; ++ring) {
    for (int ulysses = 1; ring * ulysses <= 8; ++ulysses) {
      if (ring * ulysses == 1) continue;
      for (int tensor = 1; ring * ulysses * tensor <= 8; ++tensor) {
        for (int data = 1; ring * ulysses * tensor * data <= 8; ++data) {
          for (int pipeline = 1; ring * ulysses * tensor * data * pipeline <= 8; ++pipeline) {
            result.push_back({data, tensor, pipeline, ring, ulysses});
          }
        }
      }
    }
  }
  return result;
}

constexpr std::array places = {SequenceLayout::zigzag, SequenceLayout::contiguous, SequenceLayout::striped};
const std::vector<std::string> masks = {"dense", "window:5", "strided:4", "global:3+window:4"};

class LongSequences : public testing::TestWithParam<int> {};

// Layouts of sequences, masks and ZeRO stages take turns, with all tests through all of them on up to four ranks.
TEST_P(LongSequences, EqualOneRank) {
  int turn = 0;
  for (const Layout& layout : divided_layouts()) {
    if (layout.ranks() != GetParam()) continue;
    for (const SequenceLayout place : places) {
      if (layout.ring == 1 && place != SequenceLayout::zigzag) continue;
      for (const std::string& mask : masks) {
        ++turn;
        const int of = layout.ranks() <= 2 ? 1 : all_tests() ? (layout.ranks() <= 4 ? 1 : 3) : 5;
        if (turn % of != 0) continue;
        const ZeroStage zero = zero_stages[static_cast<std::size_t>(turn / of) % zero_stages.size()];
        EXPECT_EQ(divergence_from_one_rank({layout, place, mask, zero}), "");
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Ranks, LongSequences, testing::Range(2, 9));

// A rank computes the same heads from the same tokens, only elsewhere.
TEST(LongSequencesBits, UlyssesHasThoseOfOneRank) {
  const SequenceCell cell{{.ulysses = 2}};
  const gpt::TrainerOptions options = options_of(cell);
  const Trace& expected = of_one_rank(options, "dense");
  for (const Trace& trace : train(cell.layout, options)) EXPECT_EQ(trace.losses[0], expected.losses[0]);
}

TEST(LongSequencesSample, IsThatOfOneRank) {
  const auto sample_of = [](const Layout& layout) {
    std::string text;
    run_threads(layout.ranks(), [&](const Communicator& world) {
      SequenceCell cell{layout};
      gpt::TrainerOptions options = options_of({{.ring = 2, .ulysses = 2}});
      options.global_batch = 4;
      options.sequence.divides_rows = false;
      gpt::Trainer trainer(Mesh(world, layout.mesh()), options);
      const std::string own = gpt::sample(trainer, "\1\2\3", {.length = 40});
      if (world.rank() == layout.ranks() - 1) text = own;
    });
    return text;
  };
  const std::string expected = sample_of({});
  EXPECT_EQ(sample_of({.ring = 2}), expected);
  EXPECT_EQ(sample_of({.ulysses = 2}), expected);
  EXPECT_EQ(sample_of({.pipeline = 2, .ring = 2, .ulysses = 2}), expected);
}

class LongSequenceControls : public testing::Test {
 protected:
  static Comparison with(const Fault& fault) {
    const SequenceCell cell{{.tensor = 2, .ring = 2}};
    const gpt::TrainerOptions options = options_of(cell);
    const Trace& expected = of_one_rank(options, cell.mask);
    Comparison result;
    run_threads(cell.layout.ranks(), [&](const Communicator& world) {
      const Trace trace = train_by_hand(world, cell.layout, options, fault);
      if (world.rank() == 1) result = compare(expected, trace, parity_tolerance);
    });
    return result;
  }
};

TEST_F(LongSequenceControls, PassWithoutAFault) { EXPECT_EQ(with({}).gradient, ""); }

TEST_F(LongSequenceControls, FailWithTargetsOfOtherTokens) { EXPECT_NE(with({.targets_in_order = true}).gradient, ""); }

// One hop's part of the sums over keys is left out.
TEST_F(LongSequenceControls, FailWithALogSumExpThatIsNotMerged) {
  EXPECT_NE(with({.in_attention =
                      [](AttentionCore::Saved& saved) { saved.log_sum_exp.set(0, saved.log_sum_exp.at(0) - std::log(2)); }})
                .gradient,
            "");
}

TEST_F(LongSequenceControls, FailWithAKeysGradientLost) {
  EXPECT_NE(with({.in_attention_backward =
                      [](const Tensor& dqkv) {
                        for (std::int64_t i = dqkv.columns() / 3; i < dqkv.columns(); ++i) dqkv.set(i, 0);
                      }})
                .gradient,
            "");
}

}  // namespace
}  // namespace parity
