// Products cut up with their collectives against the plain product and the plain collective: on integers the same bits.
#include "stretto/overlap/chunked_gemm.hpp"

#include <gmock/gmock.h>

#include <cstring>
#include <numeric>

#include "device/kernel_data.hpp"
#include "stretto/stretto.hpp"
#include "variables.hpp"

namespace stretto {
namespace {

using kernels::Transpose;

constexpr DType types[] = {DType::f64, DType::f32, DType::bf16};

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.bytes() == b.bytes() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

// What a product is made of: of all rows, each rank's share, and a weight of each rank's own.
struct Case {
  std::vector<std::int64_t> rows;
  std::int64_t inner = 0, columns = 0;
  DType dtype = DType::f32;
  Transpose transpose = Transpose::yes;

  std::int64_t all() const { return std::accumulate(rows.begin(), rows.end(), std::int64_t{0}); }
  std::int64_t first(int rank) const { return std::accumulate(rows.begin(), rows.begin() + rank, std::int64_t{0}); }
  std::int64_t own(int rank) const { return rows[static_cast<std::size_t>(rank)]; }
  Tensor x(unsigned seed, bool integers) const {
    return integers ? integer_tensor({all(), inner}, dtype, seed) : random_tensor({all(), inner}, dtype, seed);
  }
  Tensor share(const Tensor& of_all, int rank) const {
    return of_all.view(first(rank) * of_all.columns(), {own(rank), of_all.columns()});
  }
  Tensor weight(int rank, bool integers) const {
    const Shape shape = transpose == Transpose::yes ? Shape{columns, inner} : Shape{inner, columns};
    const auto seed = static_cast<unsigned>(100 + rank);
    return integers ? integer_tensor(shape, dtype, seed) : random_tensor(shape, dtype, seed);
  }
  Tensor product(const Tensor& x, const Tensor& weight) const {
    Tensor y({x.rows(), columns}, dtype);
    kernels::gemm(x, Transpose::no, weight, transpose, y);
    return y;
  }
};

std::vector<Case> cases(int ranks) {
  std::vector<Case> result;
  std::mt19937 generator(static_cast<unsigned>(ranks));
  std::uniform_int_distribution<std::int64_t> some(0, 70);
  for (const DType dtype : types) {
    for (const Transpose transpose : {Transpose::yes, Transpose::no}) {
      for (int i = 0; i < 3; ++i) {
        Case each{{}, 1 + some(generator) / 3, 1 + some(generator) / 2, dtype, transpose};
        for (int rank = 0; rank < ranks; ++rank) each.rows.push_back(i == 0 ? 33 : i == 1 ? some(generator) : rank % 2);
        result.push_back(each);
      }
    }
  }
  result.push_back({std::vector<std::int64_t>(static_cast<std::size_t>(ranks), 0), 3, 4});
  return result;
}

template <class Body>
void for_each_case(Body body) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    run_threads(ranks, [&](const Communicator& world) {
      const Stream stream("tp");
      for (const Case& each : cases(ranks)) {
        for (const int chunks : {0, 1, 3}) body(each, chunks, world, stream);
      }
    });
  }
}

TEST(AllGatherGemm, GivesTheBitsOfGatheringFirst) {
  for_each_case([](const Case& each, int chunks, const Communicator& world, const Stream& stream) {
    const Tensor x = each.x(1, true);
    const Tensor weight = each.weight(world.rank(), true);
    const Tensor y({each.all(), each.columns}, each.dtype);
    const Tensor gathered = Tensor::symmetric({each.all(), each.inner}, each.dtype);
    all_gather_gemm(each.share(x, world.rank()), each.rows, weight, each.transpose, y, gathered, world, stream,
                    {.chunks = chunks});
    EXPECT_TRUE(same_bits(y, each.product(x, weight)));
    EXPECT_TRUE(same_bits(gathered, x));
    y.zero();
    all_gather_gemm(each.share(gathered, world.rank()), each.rows, weight, each.transpose, y, {}, world, stream,
                    {.chunks = chunks});
    EXPECT_TRUE(same_bits(y, each.product(x, weight)));
    // In place: x is this rank's share of what is gathered.
    gathered.zero();
    each.share(gathered, world.rank()).copy_from(each.share(x, world.rank()));
    all_gather_gemm(each.share(gathered, world.rank()), each.rows, weight, each.transpose, y, gathered, world, stream,
                    {.chunks = chunks});
    EXPECT_TRUE(same_bits(gathered, x));
  });
}

TEST(GemmReduceScatter, GivesTheBitsOfReducingLast) {
  for_each_case([](const Case& each, int chunks, const Communicator& world, const Stream& stream) {
    const Tensor x = each.x(static_cast<unsigned>(world.rank()), true);
    const Tensor weight = each.weight(world.rank(), true);
    const Tensor y({each.own(world.rank()), each.columns}, each.dtype);
    gemm_reduce_scatter(x, each.rows, weight, each.transpose, y, world, stream, {.chunks = chunks});
    const Tensor partial = each.product(x, weight);
    const Tensor expected(y.shape(), each.dtype);
    std::vector<std::int64_t> counts;
    for (const std::int64_t rows : each.rows) counts.push_back(rows * each.columns);
    world.reduce_scatter_v(partial.raw(), expected.raw(), counts, each.dtype, ReduceOp::sum, Stream::inline_(),
                           {.method = Algorithm::direct});
    EXPECT_TRUE(same_bits(y, expected));
    // The control: the own part alone is not the sum.
    if (world.size() > 1 && y.size() > 20) {
      EXPECT_FALSE(same_bits(y, each.share(partial, world.rank())));
    }
  });
}

TEST(GemmAllReduce, GivesTheBitsOfReducingLast) {
  for_each_case([](const Case& each, int chunks, const Communicator& world, const Stream& stream) {
    const Tensor x = each.x(static_cast<unsigned>(world.rank()), true);
    const Tensor weight = each.weight(world.rank(), true);
    const Tensor y = Tensor::symmetric({each.all(), each.columns}, each.dtype);
    gemm_all_reduce(x, weight, each.transpose, y, world, stream, {.chunks = chunks});
    const Tensor expected = each.product(x, weight);
    if (world.size() > 1) world.all_reduce(expected, ReduceOp::sum, Stream::inline_());
    EXPECT_TRUE(same_bits(y, expected));
    y.zero();
    start_gemm_all_reduce(x, weight, each.transpose, y, world, stream, {.chunks = chunks}).wait();
    EXPECT_TRUE(same_bits(y, expected));
  });
}

// Whatever the data: overlap changes no bit, nor does another run.
TEST(ChunkedGemm, GivesTheSameBitsWithoutOverlap) {
  for (const int ranks : {2, 3, 4}) {
    run_threads(ranks, [&](const Communicator& world) {
      const Stream stream("tp");
      for (const DType dtype : types) {
        Case each{std::vector<std::int64_t>(static_cast<std::size_t>(ranks), 50), 300, 70, dtype, Transpose::yes};
        each.rows[1] = 37;
        const Tensor x = each.x(static_cast<unsigned>(world.rank()), false);
        const Tensor weight = each.weight(world.rank(), false);
        for (const int chunks : {0, 2, 4}) {
          const auto all = [&](const Stream& on) {
            std::vector<Tensor> results{Tensor({each.all(), each.columns}, dtype),
                                        Tensor({each.own(world.rank()), each.columns}, dtype),
                                        Tensor({each.all(), each.columns}, dtype)};
            const ChunkedGemmOptions options{.chunks = chunks};
            all_gather_gemm(each.share(x, world.rank()), each.rows, weight, each.transpose, results[0], {}, world, on,
                            options);
            gemm_reduce_scatter(x, each.rows, weight, each.transpose, results[1], world, on, options);
            gemm_all_reduce(x, weight, each.transpose, results[2], world, on, options);
            return results;
          };
          const std::vector<Tensor> plain = all(Stream::inline_());
          for (int run = 0; run < 3; ++run) {
            const std::vector<Tensor> overlapped = all(stream);
            for (std::size_t i = 0; i < plain.size(); ++i) {
              EXPECT_TRUE(same_bits(overlapped[i], plain[i])) << i << " in " << chunks << " chunks of " << name(dtype);
            }
          }
        }
      }
    });
  }
}

// 2^24 + 1 is no f32: only in this order, and no other, is the sum what it is.
TEST(GemmReduceScatter, AddsInTheOrderOfRanks) {
  run_threads(4, [](const Communicator& world) {
    constexpr double of_ranks[] = {16777216, 1, 1, -16777216};
    const std::vector<std::int64_t> rows{20, 20, 20, 20};
    const Tensor x({80, 1}, DType::f32);
    for (std::int64_t i = 0; i < x.size(); ++i) x.set(i, of_ranks[world.rank()]);
    const Tensor weight({1, 1}, DType::f32);
    weight.set(0, 1);
    const Tensor y({20, 1}, DType::f32);
    gemm_reduce_scatter(x, rows, weight, Transpose::yes, y, world, Stream("tp"), {.chunks = 2});
    EXPECT_EQ(values(y), std::vector<double>(20, 0));
  });
}

// bf16 may be summed and kept in f32.
TEST(ChunkedGemm, TakesResultsInTheAccumulatorType) {
  run_threads(3, [](const Communicator& world) {
    const Case each{{20, 17, 33}, 9, 8, DType::bf16, Transpose::no};
    const Tensor x = each.x(static_cast<unsigned>(world.rank()), true);
    const Tensor weight = each.weight(world.rank(), true);
    const Tensor expected({each.all(), each.columns}, DType::f32);
    kernels::gemm(x, Transpose::no, weight, each.transpose, expected);
    world.all_reduce(expected, ReduceOp::sum, Stream::inline_());
    const Stream stream("tp");
    const Tensor y(expected.shape(), DType::f32);
    gemm_all_reduce(x, weight, each.transpose, y, world, stream, {.chunks = 2});
    EXPECT_TRUE(same_bits(y, expected));
    const Tensor own({each.own(world.rank()), each.columns}, DType::f32);
    gemm_reduce_scatter(x, each.rows, weight, each.transpose, own, world, stream, {.chunks = 2});
    EXPECT_TRUE(same_bits(own, each.share(expected, world.rank()).clone()));
  });
}

struct Sent {
  std::int64_t bytes = 0, operations = 0, elements = 0;
};
Sent sent_since(const Communicator& world, std::uint64_t since, const std::string& tag) {
  Sent sent;
  for (const Record& record : world.ledger().records(since)) {
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
      std::uint64_t since = world.ledger().next_sequence();
      all_gather_gemm(each.share(x, world.rank()), each.rows, weight, each.transpose, y, {}, world, stream, options);
      const std::int64_t next = each.own((world.rank() + 1) % 3);
      EXPECT_EQ(sent_since(world, since, "product").bytes, (each.all() - next) * each.inner * 4);
      since = world.ledger().next_sequence();
      gemm_reduce_scatter(x, each.rows, weight, each.transpose, own, world, stream, options);
      EXPECT_EQ(sent_since(world, since, "product").bytes, (each.all() - each.own(world.rank())) * each.columns * 4);
      since = world.ledger().next_sequence();
      gemm_all_reduce(x, weight, each.transpose, y, world, stream, options);
      EXPECT_EQ(sent_since(world, since, "product").elements, y.size());
      EXPECT_EQ(sent_since(world, since, "product").operations, chunks);
    }
  });
}

// Little is not worth cutting, and much on slow links is, alike on all ranks.
TEST(ChunkedGemm, ChoosesTheNumberOfChunks) {
  const Variable links("STRETTO_LINKS", "intra=1GB/s,5us");
  run_threads(2, [](const Communicator& world) {
    const Stream stream("tp");
    const auto chunks = [&](std::int64_t rows, std::int64_t width, const ChunkedGemmOptions& options) {
      const Tensor x = Tensor::zeros({rows, width}, DType::f32);
      const Tensor weight = Tensor::zeros({width, width}, DType::f32);
      const Tensor y = Tensor::symmetric({rows, width}, DType::f32);
      const std::uint64_t since = world.ledger().next_sequence();
      gemm_all_reduce(x, weight, Transpose::yes, y, world, stream, options);
      return sent_since(world, since, "").operations;
    };
    EXPECT_EQ(chunks(64, 32, {}), 1);
    EXPECT_EQ(chunks(0, 32, {}), 0);
    EXPECT_GE(chunks(2048, 256, {}), 2);
    EXPECT_GT(chunks(2048, 256, {.flops_per_second = 1e9}), chunks(2048, 256, {.flops_per_second = 1e13}));
  });
}

// Of uneven shares, too, all ranks choose alike; else they would wait for each other forever.
TEST(ChunkedGemm, ChoosesTheNumberOfChunksOfEachShare) {
  const Variable links("STRETTO_LINKS", "intra=1GB/s,5us");
  run_threads(3, [](const Communicator& world) {
    const Stream stream("tp");
    const auto messages = [&](const std::vector<std::int64_t>& rows, const ChunkedGemmOptions& options) {
      const Case each{rows, 64, 64};
      const Tensor x = Tensor::zeros({each.all(), each.inner}, each.dtype);
      const Tensor weight = Tensor::zeros({each.columns, each.inner}, each.dtype);
      const Tensor y({each.all(), each.columns}, each.dtype);
      const std::uint64_t since = world.ledger().next_sequence();
      all_gather_gemm(each.share(x, world.rank()), rows, weight, each.transpose, y, {}, world, stream, options);
      const std::int64_t gathering = sent_since(world, since, "").operations;
      gemm_reduce_scatter(x, rows, weight, each.transpose, each.share(y, world.rank()), world, stream, options);
      if (rows.front() == rows.back()) {
        EXPECT_EQ(sent_since(world, since, "").operations, 2 * gathering);
      }
      return gathering;
    };
    EXPECT_EQ(messages({16, 16, 16}, {}), 4);  // a send and a receive in each of two steps
    const std::int64_t many = messages({1600, 1600, 1600}, {.flops_per_second = 1e9});
    EXPECT_GT(many, 4);
    EXPECT_EQ(many % 4, 0);
    messages({1600, 700, 0}, {.flops_per_second = 1e9});
  });
}

TEST(ChunkedGemm, SendsNothingInAGroupOfOne) {
  run_threads(1, [](const Communicator& world) {
    const Case each{{40}, 20, 30};
    const Tensor x = each.x(1, true);
    const Tensor weight = each.weight(0, true);
    const Tensor y({40, 30}, DType::f32);
    gemm_all_reduce(x, weight, each.transpose, y, world, Stream::inline_());
    gemm_reduce_scatter(x, each.rows, weight, each.transpose, y, world, Stream::inline_());
    all_gather_gemm(x, each.rows, weight, each.transpose, y, {}, world, Stream::inline_());
    EXPECT_EQ(world.ledger().records().size(), 0U);
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
      return sentence_of([&] { all_gather_gemm(with, rows, weight, Transpose::yes, into, {}, world, stream, options); });
    };
    EXPECT_THAT(refusal({8}, x, y), testing::HasSubstr("got the rows [8] for a group of 2 ranks"));
    EXPECT_THAT(refusal({9, -1}, x, y), testing::HasSubstr("0 or more"));
    EXPECT_THAT(refusal({7, 7}, x, y), testing::HasSubstr("needs x of [7, 4] f32"));
    EXPECT_THAT(refusal({8, 8}, Tensor({8, 4}, DType::f64), y), testing::HasSubstr("got [8, 4] f64"));
    EXPECT_THAT(refusal({8, 8}, x, x), testing::HasSubstr("makes y of [16, 6] f32"));
    EXPECT_THAT(refusal({8, 8}, x, y, {.chunks = -1}), testing::HasSubstr("-1 chunks"));
    EXPECT_THAT(sentence_of([&] {
                  gemm_all_reduce(x, Tensor({6, 4}, DType::i32), Transpose::yes, y, world, stream);
                }),
                testing::HasSubstr("got a weight of i32"));
    EXPECT_THAT(sentence_of([&] { gemm_all_reduce(x, weight, Transpose::no, y, world, stream); }),
                testing::HasSubstr("for a weight of [6, 4],"));
    EXPECT_THAT(sentence_of([&] {
                  gemm_reduce_scatter(x, {4, 4}, weight, Transpose::yes, y, world, stream);
                }),
                testing::HasSubstr("makes y of [4, 6]"));
    EXPECT_EQ(world.ledger().records().size(), 0U);
  });
}

}  // namespace
}  // namespace stretto
