// Adapters on layouts that are drawn from the whole matrix of training, another sample every day, against one rank. A
// failure says its seed, and --gtest_random_seed=SEED draws it again.
#include "adapted.hpp"
#include "matrix_sample.hpp"

namespace parity::adapters_matrix {
namespace {

// Targets, layers, ranks and dropout take turns, by numbers that do not divide each other.
AdapterOptions adapters_of(std::size_t turn, const DecoderShape& shape) {
  AdapterOptions adapters = all_linear(1 + static_cast<std::int64_t>(turn % 4));
  if (turn % 3 == 1) adapters.targets = {};  // the usual ones
  if (turn % 5 == 2) adapters.layers_to_transform = {shape.layers - 1};
  if (turn % 2 == 1) adapters.dropout = 0.2;
  adapters.uses_root = turn % 7 == 3;
  return adapters;
}

class AdaptersMatrix : public testing::TestWithParam<int> {};

TEST_P(AdaptersMatrix, EveryCellEqualsOneRank) {
  std::vector<MatrixCell> cells;
  for (const MatrixCell& cell : matrix_cells()) {
    const bool shares_heads = cell.kv_heads > 0 && cell.layout.tensor > cell.kv_heads;  // which adapters refuse
    if (cell.layout.ranks() == GetParam() && !shares_heads) cells.push_back(cell);
  }
  std::size_t turn = seed_of_the_day();
  for (const MatrixCell& cell : sample(cells, all_tests() ? 48 : 6)) {
    TrainingOptions options = options_of(cell);
    options.adapters = adapters_of(turn++, options.model);
    options.clip_norm = 1e-3;
    const Trace expected = adapted_on_one_rank(options);
    EXPECT_EQ(adapted_divergence(expected, cell.layout, options), "")
        << text_of(cell) << ", --gtest_random_seed=" << seed_of_the_day();
    // The control: adapters of another scale.
    options.adapters.alpha *= 1.001;
    if (turn % 6 == 0) {
      EXPECT_NE(adapted_divergence(expected, cell.layout, options), "") << text_of(cell);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, AdaptersMatrix, testing::Range(1, 9));

}  // namespace
}  // namespace parity::adapters_matrix
