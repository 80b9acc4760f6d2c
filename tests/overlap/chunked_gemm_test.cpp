// Chunked products with a collective against the plain product and the plain collective: equal bits on integers.
#include "overlap/chunked_gemm_case.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

TEST(AllGatherGemm, GivesTheBitsOfGatheringFirst) {
  for_each_case([](const Case& each, int chunks, const Communicator& world, const Stream& stream) {
    const Tensor x = each.x(1, true);
    const Tensor weight = each.weight(world.rank(), true);
    const Tensor y({each.all(), each.columns}, each.dtype);
    const Tensor gathered = Tensor::symmetric({each.all(), each.inner}, each.dtype);
    all_gather_gemm(each.share(x, world.rank()), each.rows, {weight, each.transpose}, y, gathered, world, stream,
                    {.chunks = chunks});
    EXPECT_TRUE(same_bits(y, each.product(x, weight)));
    EXPECT_TRUE(same_bits(gathered, x));
    y.zero();
    all_gather_gemm(each.share(gathered, world.rank()), each.rows, {weight, each.transpose}, y, {}, world, stream,
                    {.chunks = chunks});
    EXPECT_TRUE(same_bits(y, each.product(x, weight)));
    // In place: x is this rank's share of `gathered`.
    gathered.zero();
    each.share(gathered, world.rank()).copy_from(each.share(x, world.rank()));
    all_gather_gemm(each.share(gathered, world.rank()), each.rows, {weight, each.transpose}, y, gathered, world, stream,
                    {.chunks = chunks});
    EXPECT_TRUE(same_bits(gathered, x));
  });
}

TEST(GemmReduceScatter, GivesTheBitsOfReducingLast) {
  for_each_case([](const Case& each, int chunks, const Communicator& world, const Stream& stream) {
    const Tensor x = each.x(static_cast<unsigned>(world.rank()), true);
    const Tensor weight = each.weight(world.rank(), true);
    const Tensor y({each.own(world.rank()), each.columns}, each.dtype);
    gemm_reduce_scatter(x, each.rows, {weight, each.transpose}, y, world, stream, {.chunks = chunks});
    const Tensor partial = each.product(x, weight);
    const Tensor expected(y.shape(), each.dtype);
    std::vector<std::int64_t> counts;
    for (const std::int64_t rows : each.rows) counts.push_back(rows * each.columns);
    world
        .reduce_scatter_v(partial.raw(), expected.raw(), counts, each.dtype, ReduceOp::sum, Stream::inline_(),
                          {.method = Algorithm::direct})
        .wait();
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
    gemm_all_reduce(x, {weight, each.transpose}, y, world, stream, {.chunks = chunks});
    const Tensor expected = each.product(x, weight);
    if (world.size() > 1) world.all_reduce(expected, ReduceOp::sum, Stream::inline_()).wait();
    EXPECT_TRUE(same_bits(y, expected));
    y.zero();
    start_gemm_all_reduce(x, {weight, each.transpose}, y, world, stream, {.chunks = chunks}).wait();
    EXPECT_TRUE(same_bits(y, expected));
  });
}

// W + B A in place of W: exact on integers in f64, so that each equals the product with their sum.
TEST(GemmFactor, AddsALowRankProductInEveryFunction) {
  for_each_case([](const Case& each, int chunks, const Communicator& world, const Stream& stream) {
    if (each.dtype != DType::f64) return;
    const Tensor x = each.x(1, true), weight = each.weight(world.rank(), true);
    for (const std::int64_t rank : {1, 3}) {
      const Tensor b = integer_tensor({weight.rows(), rank}, each.dtype, 7),
                   a = integer_tensor({rank, weight.columns()}, each.dtype, 8);
      const Tensor merged = weight.clone();
      kernels::gemm(b, Transpose::no, a, Transpose::no, merged, true);
      const GemmFactor factor{weight, each.transpose, b, a}, whole{merged, each.transpose};
      const auto results = [&](const GemmFactor& by) {
        const Tensor gathered({each.all(), each.columns}, each.dtype),
            own({each.own(world.rank()), each.columns}, each.dtype);
        const Tensor sum = Tensor::symmetric({each.all(), each.columns}, each.dtype);
        all_gather_gemm(each.share(x, world.rank()), each.rows, by, gathered, {}, world, stream, {.chunks = chunks});
        gemm_reduce_scatter(x, each.rows, by, own, world, stream, {.chunks = chunks});
        gemm_all_reduce(x, by, sum, world, stream, {.chunks = chunks});
        return std::vector<Tensor>{gathered, own, sum};
      };
      const std::vector<Tensor> expected = results(whole), found = results(factor);
      for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(same_bits(found[i], expected[i]));
      // The control: the weight alone is another factor.
      if (each.all() > 20) {
        EXPECT_FALSE(same_bits(results({weight, each.transpose}).front(), expected.front()));
      }
    }
  });
}

TEST(GemmFactor, RefusesAnAddendOfAnotherShape) {
  run_threads(1, [](const Communicator& world) {
    const Tensor x({4, 3}, DType::f64), weight({5, 3}, DType::f64), y({4, 5}, DType::f64);
    const auto sentence = [&](const Tensor& b, const Tensor& a) {
      return sentence_of([&] { gemm_all_reduce(x, {weight, Transpose::yes, b, a}, y, world, Stream::inline_()); });
    };
    EXPECT_EQ(
        sentence(Tensor({5, 2}, DType::f64), Tensor({2, 4}, DType::f64)),
        "gemm_all_reduce got B of [5, 2] f64 and A of [2, 4] f64, whose product is no addend of a weight of [5, 3] f64.");
    EXPECT_THAT(sentence(Tensor({5, 2}, DType::f64), {}), testing::HasSubstr("no addend"));
  });
}

// With any data, neither overlap nor a second run changes a bit.
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
            all_gather_gemm(each.share(x, world.rank()), each.rows, {weight, each.transpose}, results[0], {}, world, on,
                            options);
            gemm_reduce_scatter(x, each.rows, {weight, each.transpose}, results[1], world, on, options);
            gemm_all_reduce(x, {weight, each.transpose}, results[2], world, on, options);
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

// f32 cannot hold 2^24 + 1, so another order of summation gives another sum.
TEST(GemmReduceScatter, AddsInTheOrderOfRanks) {
  run_threads(4, [](const Communicator& world) {
    constexpr double of_ranks[] = {16777216, 1, 1, -16777216};
    const std::vector<std::int64_t> rows{20, 20, 20, 20};
    const Tensor x({80, 1}, DType::f32);
    for (std::int64_t i = 0; i < x.size(); ++i) x.set(i, of_ranks[world.rank()]);
    const Tensor weight({1, 1}, DType::f32);
    weight.set(0, 1);
    const Tensor y({20, 1}, DType::f32);
    gemm_reduce_scatter(x, rows, {weight, Transpose::yes}, y, world, Stream("tp"), {.chunks = 2});
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
    world.all_reduce(expected, ReduceOp::sum, Stream::inline_()).wait();
    const Stream stream("tp");
    const Tensor y(expected.shape(), DType::f32);
    gemm_all_reduce(x, {weight, each.transpose}, y, world, stream, {.chunks = 2});
    EXPECT_TRUE(same_bits(y, expected));
    const Tensor own({each.own(world.rank()), each.columns}, DType::f32);
    gemm_reduce_scatter(x, each.rows, {weight, each.transpose}, own, world, stream, {.chunks = 2});
    EXPECT_TRUE(same_bits(own, each.share(expected, world.rank()).clone()));
  });
}

// `meanwhile` is called once, when rows are in flight and before y is complete.
TEST(ChunkedGemm, ComputesSomethingElseOnceMeanwhile) {
  for_each_case([](const Case& each, int chunks, const Communicator& world, const Stream& stream) {
    const Tensor x = each.x(1, true);
    const Tensor weight = each.weight(0, true);
    const bool even = world.size() > 1 && each.rows == std::vector<std::int64_t>(each.rows.size(), 33);
    const auto unfinished_meanwhile = [&](const Shape& shape, auto multiply, bool is_mine = true) {
      const Tensor plain(shape, each.dtype);
      const Tensor y = Tensor::zeros(shape, each.dtype);
      multiply(plain, ChunkedGemmOptions{.chunks = chunks});
      const std::uint64_t first = world.job().ledger().next_sequence();
      int calls = 0;
      Tensor then;
      bool communicates = false;
      multiply(y, ChunkedGemmOptions{.chunks = chunks, .meanwhile = [&] {
                                       ++calls;
                                       if (is_mine) then = y.clone();
                                       communicates = world.job().ledger().next_sequence() > first;
                                     }});
      EXPECT_TRUE(same_bits(plain, y));
      EXPECT_EQ(calls, 1);
      if (even) {
        EXPECT_TRUE(communicates);
      }
      return is_mine && (!even || !same_bits(then, plain));
    };
    constexpr bool sums_in_place = false;  // during `meanwhile` y belongs to the stream
    EXPECT_TRUE(unfinished_meanwhile({each.all(), each.columns}, [&](const Tensor& y, const ChunkedGemmOptions& options) {
      all_gather_gemm(each.share(x, world.rank()), each.rows, {weight, each.transpose}, y, {}, world, stream, options);
    }));
    const Shape own{each.own(world.rank()), each.columns};
    EXPECT_TRUE(unfinished_meanwhile(own, [&](const Tensor& y, const ChunkedGemmOptions& options) {
      gemm_reduce_scatter(x, each.rows, {weight, each.transpose}, y, world, stream, options);
    }));
    unfinished_meanwhile(
        {each.all(), each.columns},
        [&](const Tensor& y, const ChunkedGemmOptions& options) {
          gemm_all_reduce(x, {weight, each.transpose}, y, world, stream, options);
        },
        sums_in_place);
    unfinished_meanwhile(
        {each.all(), each.columns},
        [&](const Tensor& y, const ChunkedGemmOptions& options) {
          start_gemm_all_reduce(x, {weight, each.transpose}, y, world, stream, options).wait();
        },
        sums_in_place);
  });
}

}  // namespace
}  // namespace stretto
