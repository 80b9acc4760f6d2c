// Training in f64 on every layout of five axes of up to eight ranks, with every ZeRO stage, schedule and level of
// recomputation, with and without sequence parallelism, against one rank that accumulates over the same global batch.
//
// By default a sample that is another one every day; a failure says its seed, and --gtest_random_seed=SEED draws it again.
// With all tests, every cell. In daily ones every cell of up to two ranks, a quarter of those of three, a sixteenth of those
// of up to seven, and a 32nd part of those of eight, which are as many as all others: the seeds 1 to 32 together take all.
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
      for (const auto& entry : trace.parameters) held[i].insert(entry.first);
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
  const unsigned parts = parts_of_a_day(ranks <= 2 ? 1 : ranks == 3 ? 4 : ranks < 8 ? 16 : 32);
  std::vector<MatrixCell> cells;
  unsigned number = 0;
  for (const MatrixCell& cell : matrix_cells()) {
    if (cell.layout.ranks() == ranks && number++ % parts == seed_of_the_day() % parts) cells.push_back(cell);
  }
  if (!all_tests()) cells = sample(cells, 12);
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
  for (const MatrixCell& cell : sample(matrix_cells(), all_tests() ? 24 : 8)) {
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
