// The embedding and the loss over uneven shares of the vocabulary, with ranks that have an empty share, against one rank
// with the whole vocabulary.
#include "stretto/layers/vocabulary.hpp"

#include <gtest/gtest.h>

#include <mutex>

#include "device/kernels/kernel_data.hpp"
#include "layers/allocated.hpp"
#include "stretto/stretto.hpp"

namespace stretto {
namespace {

constexpr std::int64_t hidden = 6;
const std::vector<std::int32_t> token_ids{0, 2, 1, 2, 0, 1, 2};
const std::vector<std::int32_t> targets{2, 1, 1, 0, 2, 2, 0};

struct Ends {
  double loss = 0;
  std::vector<double> embedded, dx, gradient;  // gradient: the rows of all ranks
};

Ends ends_of(int ranks, std::int64_t vocabulary, DType dtype, bool divides_rows = false) {
  std::vector<Ends> by_rank(static_cast<std::size_t>(ranks));
  run_threads(ranks, [&](const Communicator& world) {
    const TensorParallel tensor_parallel{.group = world, .stream = Stream("tp"), .divides_rows = divides_rows};
    const auto count = static_cast<std::int64_t>(token_ids.size());
    Parameters parameters;
    const VocabularyParallelTable table(parameters, "wte", vocabulary, hidden, {0, 1}, tensor_parallel);
    allocate(parameters, dtype);
    initialise(parameters, 1);
    const VocabularyParallelCrossEntropy cross_entropy(tensor_parallel);

    Ends& ends = by_rank[static_cast<std::size_t>(world.rank())];
    ParameterUse use;
    ends.embedded = values(table.embed(Tensor::of(token_ids), use));
    Tensor x = tensor_parallel.own_rows(random_tensor({count, hidden}, dtype, 2));
    const Tensor logits = table.logits(x, count, use, &x);
    VocabularyParallelCrossEntropy::Saved saved;
    cross_entropy.forward(logits, Tensor::of(targets), table.first(), saved);
    ends.loss = saved.loss();
    cross_entropy.backward(logits, Tensor::of(targets), table.first(), saved, 0.5);
    ends.dx = values(table.logits_backward(x, logits, use));
    table.embed_backward(Tensor::of(token_ids), tensor_parallel.own_rows(random_tensor({count, hidden}, dtype, 3)), use);
    ends.gradient = values(parameters.all().front()->gradient);
  });
  Ends result = by_rank[0];
  const auto append = [](std::vector<double>& all, const std::vector<double>& more) {
    all.insert(all.end(), more.begin(), more.end());
  };
  for (std::size_t rank = 1; rank < by_rank.size(); ++rank) {
    EXPECT_EQ(by_rank[rank].loss, result.loss) << "rank " << rank;
    append(result.gradient, by_rank[rank].gradient);
    if (divides_rows) {
      append(result.embedded, by_rank[rank].embedded);
      append(result.dx, by_rank[rank].dx);
      continue;
    }
    EXPECT_EQ(by_rank[rank].embedded, result.embedded) << "rank " << rank;
    EXPECT_EQ(by_rank[rank].dx, result.dx) << "rank " << rank;
  }
  return result;
}

void expect_near(const std::vector<double>& actual, const std::vector<double>& expected, double bound) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], bound) << i;
}

TEST(VocabularyParallel, UnevenAndEmptySharesEqualOneRank) {
  for (const std::int64_t vocabulary : {5, 3}) {  // fewer rows than ranks: some of the 8 ranks have none
    const Ends expected = ends_of(1, vocabulary, DType::f64);
    for (const int ranks : {2, 3, 4, 8}) {
      for (const bool divides_rows : {false, true}) {
        SCOPED_TRACE(testing::Message() << vocabulary << " entries over " << ranks << " ranks, rows " << divides_rows);
        const Ends actual = ends_of(ranks, vocabulary, DType::f64, divides_rows);
        EXPECT_NEAR(actual.loss, expected.loss, 1e-13);
        EXPECT_EQ(actual.embedded, expected.embedded);
        expect_near(actual.dx, expected.dx, 1e-14);
        expect_near(actual.gradient, expected.gradient, 1e-14);
      }
    }
  }
}

TEST(VocabularyParallel, ComputesInEveryType) {
  const Ends expected = ends_of(1, 5, DType::f64);
  EXPECT_NEAR(ends_of(4, 5, DType::f32).loss, expected.loss, 1e-5);
  EXPECT_NEAR(ends_of(4, 5, DType::bf16).loss, expected.loss, 1e-2 * expected.loss);
}

// The loss of equal logits is the logarithm of their number.
TEST(VocabularyParallel, TheLossOfKnowingNothing) {
  run_threads(3, [](const Communicator& world) {
    const VocabularyParallelCrossEntropy cross_entropy({world, Stream::inline_()});
    const Share share = share_of(7, 3, world.rank());
    const Tensor logits({2, share.count}, DType::f64);
    for (std::int64_t i = 0; i < logits.size(); ++i) logits.set(i, 1000);  // exp(1000) is infinite
    VocabularyParallelCrossEntropy::Saved saved;
    const std::vector<std::int32_t> of_two_rows{6, 0};
    cross_entropy.forward(logits, Tensor::of(of_two_rows), share.first, saved);
    EXPECT_NEAR(saved.loss(), 2 * std::log(7), 1e-12);
  });
}

}  // namespace
}  // namespace stretto
