// The traffic of chunked products, the number of their chunks, and their refusals.
#include "overlap/chunked_gemm_case.hpp"
#include "support/error.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

struct Sent {
  std::int64_t bytes = 0, operations = 0, elements = 0;
};
Sent sent_since(const Communicator& world, std::uint64_t since, const std::string& tag) {
  Sent sent;
  for (const Record& record : world.job().ledger().records(since)) {
    EXPECT_EQ(record.tag, tag);
    sent.bytes += static_cast<std::int64_t>(record.bytes_sent);
    sent.elements += record.count;
    ++sent.operations;
  }
  return sent;
}

TEST(ChunkedGemm, SendsWhatTheFormulasSay) {
  run_threads(3, [](const Communicator& world) {
    const Case each{{40, 64, 17}, 20, 30, DType::f32, Transpose::yes};
    const Tensor x = each.x(1, true);
    const Tensor weight = each.weight(world.rank(), true);
    const Tensor y({each.all(), each.columns}, each.dtype);
    const Tensor own({each.own(world.rank()), each.columns}, each.dtype);
    const Stream stream("tp");
    for (const int chunks : {1, 3}) {
      const ChunkedGemmOptions options{.chunks = chunks, .tag = "product"};
      std::uint64_t since = world.job().ledger().next_sequence();
      all_gather_gemm(each.share(x, world.rank()), each.rows, {weight, each.transpose}, y, {}, world, stream, options);
      const std::int64_t next = each.own((world.rank() + 1) % 3);
      EXPECT_EQ(sent_since(world, since, "product").bytes, (each.all() - next) * each.inner * 4);
      since = world.job().ledger().next_sequence();
      gemm_reduce_scatter(x, each.rows, {weight, each.transpose}, own, world, stream, options);
      EXPECT_EQ(sent_since(world, since, "product").bytes, (each.all() - each.own(world.rank())) * each.columns * 4);
      since = world.job().ledger().next_sequence();
      gemm_all_reduce(x, {weight, each.transpose}, y, world, stream, options);
      EXPECT_EQ(sent_since(world, since, "product").elements, y.size());
      EXPECT_EQ(sent_since(world, since, "product").operations, chunks);
    }
  });
}

// Small products are not cut, large ones on slow links are, alike on all ranks.
TEST(ChunkedGemm, ChoosesTheNumberOfChunks) {
  const Variable links("STRETTO_LINKS", "intra=1GB/s,5us");
  run_threads(2, [](const Communicator& world) {
    const Stream stream("tp");
    const auto chunks = [&](std::int64_t rows, std::int64_t width) {
      const Tensor x = Tensor::zeros({rows, width}, DType::f32);
      const Tensor weight = Tensor::zeros({width, width}, DType::f32);
      const Tensor y = Tensor::symmetric({rows, width}, DType::f32);
      const std::uint64_t since = world.job().ledger().next_sequence();
      gemm_all_reduce(x, {weight, Transpose::yes}, y, world, stream);
      return sent_since(world, since, "").operations;
    };
    EXPECT_EQ(chunks(64, 32), 1);
    EXPECT_EQ(chunks(0, 32), 0);
    EXPECT_GE(chunks(2048, 256), 2);
    EXPECT_GT(chunks(4096, 256), chunks(1024, 256));
  });
}

// All ranks choose the same number for uneven shares, too; otherwise they would deadlock.
TEST(ChunkedGemm, ChoosesTheNumberOfChunksOfEachShare) {
  const Variable links("STRETTO_LINKS", "intra=1GB/s,5us");
  run_threads(3, [](const Communicator& world) {
    const Stream stream("tp");
    const auto messages = [&](const std::vector<std::int64_t>& rows, std::int64_t width) {
      const Case each{rows, width, width};
      const Tensor x = Tensor::zeros({each.all(), each.inner}, each.dtype);
      const Tensor weight = Tensor::zeros({each.columns, each.inner}, each.dtype);
      const Tensor y({each.all(), each.columns}, each.dtype);
      const std::uint64_t since = world.job().ledger().next_sequence();
      all_gather_gemm(each.share(x, world.rank()), rows, {weight, each.transpose}, y, {}, world, stream);
      const std::int64_t gathering = sent_since(world, since, "").operations;
      gemm_reduce_scatter(x, rows, {weight, each.transpose}, each.share(y, world.rank()), world, stream);
      if (rows.front() == rows.back()) {
        EXPECT_EQ(sent_since(world, since, "").operations, 2 * gathering);
      }
      return gathering;
    };
    EXPECT_EQ(messages({16, 16, 16}, 64), 4);  // a send and a receive in each of two steps
    const std::int64_t many = messages({1600, 1600, 1600}, 256);
    EXPECT_GT(many, 4);
    EXPECT_EQ(many % 4, 0);
    messages({1600, 700, 0}, 256);
  });
}

TEST(ChunkedGemm, SendsNothingInAGroupOfOne) {
  run_threads(1, [](const Communicator& world) {
    const Case each{{40}, 20, 30};
    const Tensor x = each.x(1, true);
    const Tensor weight = each.weight(0, true);
    const Tensor y({40, 30}, DType::f32);
    gemm_all_reduce(x, {weight, each.transpose}, y, world, Stream::inline_());
    gemm_reduce_scatter(x, each.rows, {weight, each.transpose}, y, world, Stream::inline_());
    all_gather_gemm(x, each.rows, {weight, each.transpose}, y, {}, world, Stream::inline_());
    EXPECT_EQ(world.job().ledger().records().size(), 0U);
  });
}

TEST(ChunkedGemm, RefusesWhatDoesNotFitBeforeAnythingTravels) {
  run_threads(2, [](const Communicator& world) {
    const Stream stream("tp");
    const Tensor x({8, 4}, DType::f32);
    const Tensor weight({6, 4}, DType::f32);
    const Tensor y({16, 6}, DType::f32);
    const auto refusal = [&](const std::vector<std::int64_t>& rows, const Tensor& with, const Tensor& into,
                             const ChunkedGemmOptions& options = {}) {
      return sentence_of([&] { all_gather_gemm(with, rows, {weight, Transpose::yes}, into, {}, world, stream, options); });
    };
    EXPECT_THAT(refusal({8}, x, y), testing::HasSubstr("got the rows [8] for a group of 2 ranks"));
    EXPECT_THAT(refusal({9, -1}, x, y), testing::HasSubstr("0 or more"));
    EXPECT_THAT(refusal({7, 7}, x, y), testing::HasSubstr("needs x of [7, 4] f32"));
    EXPECT_THAT(refusal({8, 8}, Tensor({8, 4}, DType::f64), y), testing::HasSubstr("got [8, 4] f64"));
    EXPECT_THAT(refusal({8, 8}, x, x), testing::HasSubstr("makes y of [16, 6] f32"));
    EXPECT_THAT(refusal({8, 8}, x, y, {.chunks = -1}), testing::HasSubstr("-1 chunks"));
    EXPECT_THAT(sentence_of([&] {
                  gemm_all_reduce(x, {Tensor({6, 4}, DType::i32), Transpose::yes}, y, world, stream);
                }),
                testing::HasSubstr("got a weight of i32"));
    EXPECT_THAT(sentence_of([&] {
                  gemm_all_reduce(x, {weight, Transpose::no}, y, world, stream);
                }),
                testing::HasSubstr("for a weight of [6, 4],"));
    EXPECT_THAT(sentence_of([&] {
                  gemm_reduce_scatter(x, {4, 4}, {weight, Transpose::yes}, y, world, stream);
                }),
                testing::HasSubstr("makes y of [4, 6]"));
    EXPECT_EQ(world.job().ledger().records().size(), 0U);
  });
}

}  // namespace
}  // namespace stretto
