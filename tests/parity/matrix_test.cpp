// Training in f64 on every layout of five axes of up to eight ranks, with every ZeRO stage, schedule and level of
// recomputation, with and without sequence parallelism, against one rank that accumulates over the same global batch.
//
// By default a sample that is another one every day; a failure says its seed, and --gtest_random_seed=SEED draws it again.
// With all tests, every cell. In daily ones, on the day of its turn, every cell of up to two ranks, a quarter of those of
// three, a sixteenth of those of up to seven, and a 32nd part of those of eight, which are as many as all others.
#include <gmock/gmock.h>

#include <mutex>

#include "first_divergence.hpp"
#include "matrix_sample.hpp"
#include "support/tiers.hpp"

namespace parity {
namespace {

constexpr std::int64_t matrix_steps = 2;

// Trains cells of one layout one after the other on the same ranks. Returns what differs, by cell.
std::vector<std::string> matrix_divergences(const std::vector<MatrixCell>& cells) {
  const Layout layout = cells.front().layout;
  std::vector<const Trace*> expected;
  for (const MatrixCell& cell : cells) expected.push_back(&of_one_rank(options_of(cell), matrix_steps));
  std::mutex mutex;
  std::vector<std::string> differ(cells.size());
  std::vector<std::set<std::string>> held(cells.size());
  run_threads(layout.ranks(), [&](const Communicator& world) {
    const Mesh mesh(world, layout.mesh());
    for (std::size_t i = 0; i < cells.size(); ++i) {
      Trainer trainer(mesh, options_of(cells[i]));
      const Trace trace = advance(trainer, 0, matrix_steps);
      const std::string text = compare(*expected[i], trace, parity_tolerance, Has::those_of_its_stage).all();
      const std::lock_guard lock(mutex);
      for (const auto& entry : trace.parameters) held[i].insert(entry.second.parameter);
      if (differ[i].empty() && !text.empty())
        differ[i] = fmt::format("{}: rank {}: {}", text_of(cells[i]), world.rank(), text);
    }
  });
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (!differ[i].empty()) differ[i] += first_divergence(layout, options_of(cells[i]));
    if (held[i].size() != expected[i]->parameters.size()) {
      differ[i] += fmt::format("{}: the ranks together have {} of {} parameters\n", text_of(cells[i]), held[i].size(),
                               expected[i]->parameters.size());
    }
  }
  return differ;
}

// The cells of a number of ranks, by layout.
std::vector<std::vector<MatrixCell>> drawn_cells(int ranks) {
  const unsigned parts = ranks <= 2 ? 1 : ranks == 3 ? 4 : ranks < 8 ? 16 : 32;
  std::vector<MatrixCell> cells;
  unsigned number = 0;
  for (const MatrixCell& cell : matrix_cells()) {
    if (cell.layout.ranks() == ranks && is_of_today(number++, parts)) cells.push_back(cell);
  }
  if (!all_tests()) cells = of_today(sample(cells, 12), 3);
  std::map<std::tuple<int, int, int, int>, std::vector<MatrixCell>> by_layout;
  for (const MatrixCell& cell : cells) {
    const Layout& layout = cell.layout;
    by_layout[{layout.data, layout.tensor, layout.pipeline, layout.ring}].push_back(cell);
  }
  std::vector<std::vector<MatrixCell>> result;
  for (auto& entry : by_layout) result.push_back(std::move(entry.second));
  return result;
}

class Matrix : public testing::TestWithParam<int> {};

TEST_P(Matrix, EveryCellEqualsOneRank) {
  std::size_t count = 0;
  for (const std::vector<MatrixCell>& cells : drawn_cells(GetParam())) {
    count += cells.size();
    for (const std::string& text : matrix_divergences(cells)) {
      EXPECT_EQ(text, "") << "--gtest_random_seed=" << seed_of_the_day();
    }
  }
  RecordProperty("cells", static_cast<int>(count));
}

INSTANTIATE_TEST_SUITE_P(Ranks, Matrix, testing::Range(1, 9));

// Over all ranks of a layout.
GradientError gradient_error(const MatrixCell& cell, const TrainingOptions& options, Layout layout) {
  const Pieces& expected = of_one_rank(options_of(cell), 1).gradients.front();
  std::mutex mutex;
  GradientError result;
  run_threads(layout.ranks(), [&](const Communicator& world) {
    const GradientError own = own_gradient_error(Mesh(world, layout.mesh()), options, expected);
    const std::lock_guard lock(mutex);
    result.squares += own.squares;
    result.errors += own.errors;
  });
  return result;
}

// In narrow types, no layout adds more to one rank's rounding than that itself.
TEST(MatrixTypes, ErrAtMostTwiceAsMuchAsOneRank) {
  for (const MatrixCell& cell : of_today(sample(matrix_cells(), all_tests() ? 24 : 8), 3)) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const TrainingOptions options = options_of(cell, dtype);
      const double alone = gradient_error(cell, on_one_rank(options), {}).relative();
      const double divided = gradient_error(cell, options, cell.layout).relative();
      EXPECT_LE(divided, 2 * alone) << text_of(cell) << ", " << name(dtype) << ", --gtest_random_seed=" << seed_of_the_day();
      EXPECT_GT(alone, 0);
    }
  }
}

// The combinations that are refused are those of three sentences.
TEST(MatrixCells, AreRefusedInASentenceThatNamesWhy) {
  std::vector<std::pair<MatrixCell, std::string>> refused;
  const std::vector<MatrixCell> cells = matrix_cells(&refused);
  EXPECT_GT(cells.size(), 4000U);
  for (const auto& [cell, sentence] : refused) {
    if (cell.own_rows && cell.layout.tensor == 1) {
      EXPECT_THAT(sentence, testing::StartsWith("Sequence parallelism divides rows"));
    } else if (cell.own_rows) {
      EXPECT_TRUE(cell.recompute.partition) << text_of(cell);
      EXPECT_THAT(sentence, testing::StartsWith("Sequence parallelism over"));
    } else {
      EXPECT_TRUE(cell.recompute.partition && cell.layout.tensor == 1) << text_of(cell);
      EXPECT_THAT(sentence, testing::StartsWith("Kept activations cannot be divided over 1"));
    }
  }
}

// Without an axis in the records, cells of this axis fail, and no others do.
class MatrixBreakage : public testing::TestWithParam<Axis> {};

TEST_P(MatrixBreakage, FailsTheCellsOfItsAxisAlone) {
  const Fault fault{.in_records = [](Parameters& parameters) {
    for (const auto& parameter : parameters.all()) {
      // A mesh has no group for the stages alone, over which the tied table's gradient would be left to sum.
      const bool at_both_ends = parameter->sum_gradient_over.contains(Axis::pipeline);
      if (at_both_ends && GetParam() != Axis::pipeline) continue;
      leave_out_of_sum(*parameter, GetParam());
    }
  }};
  std::map<std::tuple<int, int, int, int, int>, int> tried;
  for (const MatrixCell& cell : matrix_cells()) {
    const auto [data, tensor, pipeline, ring, ulysses] = cell.layout;
    if (cell.layout.ranks() > (all_tests() ? 4 : 2) || cell.own_rows != (tensor > 1)) continue;
    if (tried[{data, tensor, pipeline, ring, ulysses}]++ > 0) continue;
    TrainingOptions options = options_of(cell);
    options.clip_norm = 0;
    const Trace& expected = of_one_rank(options);
    std::vector<std::string> texts(static_cast<std::size_t>(cell.layout.ranks()));
    run_threads(cell.layout.ranks(), [&](const Communicator& world) {
      const Trace trace = train_by_hand(world, cell.layout, options, fault);
      texts[static_cast<std::size_t>(world.rank())] =
          compare(expected, trace, parity_tolerance, Has::those_of_its_stage).gradient;
    });
    const bool same = std::ranges::all_of(texts, [](const std::string& text) { return text.empty(); });
    EXPECT_EQ(same, cell.layout.mesh()[GetParam()] == 1) << text_of(cell);
  }
}

INSTANTIATE_TEST_SUITE_P(Axes, MatrixBreakage,
                         testing::Values(Axis::data, Axis::tensor, Axis::pipeline, Axis::ring, Axis::ulysses),
                         [](const auto& axis) { return std::string(name(axis.param)); });

// Takes queries for heads side by side, which those of a group are not, so that they meet keys of other groups.
class WrongGroups final : public AttentionCore {
 public:
  explicit WrongGroups(std::shared_ptr<const AttentionCore> core) : core_(std::move(core)) {}
  Tensor forward(const Shape& shape, const QueriesKeysValues& of, Saved& saved) const override {
    return core_->forward(shape, side_by_side(of), saved);
  }
  void backward(const Tensor& dattended, const Saved& saved, const QueriesKeysValues& gradients) const override {
    core_->backward(dattended, saved, side_by_side(gradients));
  }

 private:
  static QueriesKeysValues side_by_side(QueriesKeysValues of) {
    of.q.parts = 1;
    return of;
  }
  std::shared_ptr<const AttentionCore> core_;
};

TEST(GroupedHeads, EqualOneRankUnlessQueriesMeetOtherKeys) {
  for (const Layout layout : {Layout{.tensor = 2}, {.ring = 2}, {.ulysses = 2}, {.pipeline = 2}}) {
    MatrixCell cell{.layout = layout,
                    .own_rows = layout.tensor > 1,
                    .recompute = {.level = Recompute::full},
                    .kv_heads = 2 * layout.tensor};
    if (layout.pipeline > 1) cell.schedule = ScheduleKind::zb_h1;
    TrainingOptions options = options_of(cell);
    options.clip_norm = 0;
    const auto gradients_differ = [&](const Fault& fault) {
      std::atomic<int> differ = 0;
      const Trace& expected = of_one_rank(options);
      run_threads(layout.ranks(), [&](const Communicator& world) {
        const Trace trace = train_by_hand(world, layout, options, fault);
        if (!compare(expected, trace, parity_tolerance, Has::those_of_its_stage).gradient.empty()) ++differ;
      });
      return differ > 0;
    };
    EXPECT_FALSE(gradients_differ({})) << text_of(cell);
    EXPECT_TRUE(gradients_differ({.around_attention = [](std::shared_ptr<const AttentionCore> core) {
      return std::make_shared<WrongGroups>(std::move(core));
    }})) << text_of(cell);
  }
}

// Two or four tensor-parallel ranks to a head of keys and values.
TEST(GroupedHeads, OfSeveralRanksEqualOneRankUnlessCopiesAreNotSummed) {
  for (const int kv_heads : {1, 2}) {
    for (const Layout layout : {Layout{.tensor = 4}, {.data = 2, .tensor = 4}}) {
      MatrixCell cell{.layout = layout, .zero = ZeroStage::gradients, .own_rows = layout.data > 1, .kv_heads = kv_heads};
      for (const std::string family : {"gpt2", "qwen2"}) {
        cell.family = family;
        TrainingOptions options = options_of(cell);
        for (const Trace& trace : train(layout, options))
          EXPECT_EQ(compare(of_one_rank(options), trace, parity_tolerance).all(), "") << text_of(cell);
        options.clip_norm = 0;
        std::atomic<int> differ = 0;
        const Fault fault{.in_records = [](Parameters& parameters) {
          for (const auto& parameter : parameters.all()) {
            if (parameter->name == "h.1.attn.c_attn.weight.copied") leave_out_of_sum(*parameter, Axis::tensor);
          }
        }};
        run_threads(layout.ranks(), [&](const Communicator& world) {
          const Trace trace = train_by_hand(world, layout, options, fault);
          if (!compare(of_one_rank(options), trace, parity_tolerance).gradient.empty()) ++differ;
        });
        EXPECT_GT(differ, 0) << text_of(cell) << ", the control";
      }
    }
  }
}

// Whose matrices are gathered from both records of a weight.
TEST(GroupedHeads, OfSeveralRanksTrainWithMuon) {
  const Layout layout{.data = 2, .tensor = 4};
  for (const ZeroStage zero : zero_stages) {
    TrainingOptions options = options_of(MatrixCell{.layout = layout, .zero = zero, .kv_heads = 2, .family = "llama"});
    options.optimizer = Muon::Options();
    Trace expected;
    run_threads(1, [&](const Communicator& world) {
      Trainer trainer(Mesh(world, {}), on_one_rank(options));
      expected = advance(trainer, 0, trained_steps);
    });
    for (const Trace& trace : train(layout, options)) EXPECT_EQ(compare(expected, trace, 1e-7).all(), "");
  }
}

TEST(GroupedHeads, ThatDoNotDivideAreRefused) {
  TrainingOptions options = options_of({.layout = {.tensor = 2}});
  options.model.kv_heads = 2;
  EXPECT_EQ(sentence_of([&] { options.on(Layout{.tensor = 2, .ulysses = 2}.mesh()).check(); }),
            "2 heads of keys and values do not divide over 2 tensor-parallel x 2 ulysses ranks; choose a multiple of 4, or "
            "without ulysses ranks a divisor.");
  options.model.kv_heads = 3;
  EXPECT_EQ(sentence_of([&] { options.on(Layout{}.mesh()).check(); }),
            "8 attention heads do not divide over 3 heads of keys and values; choose a divisor of the heads.");
}

TEST(FirstDivergence, NamesLayerSequenceAndTensor) {
  MatrixCell cell{.layout = {.tensor = 2, .pipeline = 2}, .own_rows = true, .microbatches = 3};
  const TrainingOptions options = options_of(cell);
  EXPECT_THAT(first_divergence(cell.layout, options), testing::HasSubstr("All layers agree"));
  // The second part of three layers begins with the third one.
  EXPECT_THAT(first_divergence(cell.layout, options, {.in_stage = with_message_of_another}),
              testing::AllOf(testing::StartsWith("It begins in sequence 1, layer "),
                             testing::HasSubstr(", queries, keys and values, token 0, column 0: expected ")));
  cell.layout = {.data = 2, .ring = 2};
  const Fault lost{.in_attention_backward = [](const Tensor& dqkv) { dqkv.set(dqkv.size() - 1, 0); }};
  EXPECT_THAT(first_divergence(cell.layout, options_of(cell), lost),
              testing::StartsWith("It begins in sequence 0, layer 1, gradient of queries, keys and values, token "));
}

}  // namespace
}  // namespace parity
