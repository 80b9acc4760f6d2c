// Values of quantized collectives: exact where every value lies on the grid, and NaN and infinity arrive.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <tuple>

#include "collectives/gaussian_data.hpp"
#include "collectives/oracle.hpp"
#include "quantized_calls.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

using gaussian_data::gaussian;
using oracle::Buffers;
using oracle::Problem;
using quantized_calls::calling_thread;
using quantized_calls::collectives;
using quantized_calls::dtypes;
using quantized_calls::formats;
using quantized_calls::quantized_as;

// Values for which the largest magnitude of any group, of inputs or sums, is a multiple of the largest code, or 0.
Problem on_grid(QuantizedFormat format, Collective collective, int size, std::int64_t count, DType dtype = DType::f32,
                ReduceOp op = ReduceOp::sum) {
  Problem problem{collective, size, count, dtype, op};
  switch (format) {
    case QuantizedFormat::int8: problem.values = {-127, 0, 127}; break;
    case QuantizedFormat::int4: problem.values = {-7, 0, 7}; break;
    case QuantizedFormat::fp8: problem.values = {-448, 0, 448}; break;
    default: problem.values = {-1, 1}; problem.tolerance = 1e-6;  // the mean of a short group is rounded
  }
  return problem;
}

void expect_exact(const Communicator& world, QuantizedFormat format, const Problem& problem,
                  const Method& method = Algorithm::automatic, QuantizedFormat result = QuantizedFormat::none) {
  for (const bool in_place : {false, true}) {
    const Buffers buffers(problem, world.rank(), in_place, 1);
    OperationOptions options = quantized_as(format, method);
    options.quantization.result = result;
    options.factor = problem.factor(world.rank());
    std::ignore = world.start(buffers.call(), calling_thread(), options);
    ASSERT_EQ(buffers.fault(), "") << name(problem.collective) << " of " << problem.count << " " << name(problem.dtype)
                                   << " (" << name(problem.op) << ") as " << name(format) << " by " << to_string(method)
                                   << " over " << world.size() << (in_place ? ", in place" : "");
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryQuantized, testing::ValuesIn(collectives),
                         [](const auto& parameter) { return std::string(name(parameter.param)); });

TEST_P(EveryQuantized, IsExactOnTheGrid) {
  for (const int size : {1, 2, 3, 5, 8}) {
    run_threads(size, [&](const Communicator& world) {
      for (const QuantizedFormat format : formats) {
        for (const DType dtype : dtypes) {
          for (const std::int64_t count : {0, 1, 3, 257, 1500}) {
            expect_exact(world, format, on_grid(format, GetParam(), size, count, dtype));
          }
        }
      }
    });
  }
}

TEST_P(EveryQuantized, KnowsAveragesAndPremultipliedSums) {
  if (!reduces(GetParam())) return;
  for (const int size : {1, 3, 4}) {
    run_threads(size, [&](const Communicator& world) {
      for (const QuantizedFormat format : formats) {
        for (const DType dtype : dtypes) {
          for (const ReduceOp op : {ReduceOp::avg, ReduceOp::premul_sum}) {
            expect_exact(world, format, on_grid(format, GetParam(), size, 700, dtype, op));
          }
        }
      }
    });
  }
}

TEST_P(EveryQuantized, TakesUnevenSharesAndEmptyOnes) {
  if (!counts_shares(GetParam())) {  // such a collective has one count for all ranks and must refuse several
    std::array<float, 3> data{};
    Call call{.collective = GetParam(), .input = data.data(), .output = data.data(), .count = 3};
    call.counts = {1, 2};
    run_threads(2, [&](const Communicator& world) {
      EXPECT_THROW(world.start(call, calling_thread(), quantized_as(QuantizedFormat::int8)), Error);
    });
    return;
  }
  for (const int size : {1, 2, 5}) {
    run_threads(size, [&](const Communicator& world) {
      for (const QuantizedFormat format : formats) {
        Problem problem = on_grid(format, GetParam(), size, 0);
        for (int rank = 0; rank < size; ++rank) problem.counts.push_back(rank * 5 % 7 * 301);
        expect_exact(world, format, problem);
      }
    });
  }
}

TEST_P(EveryQuantized, RunsOnVirtualNodes) {
  Method in_pieces(Algorithm::two_level);
  in_pieces.pieces = 3;
  for (const char* ranks_per_node : {"1", "2", "3", "6"}) {
    const Variable nodes("STRETTO_RANKS_PER_NODE", ranks_per_node);
    run_threads(6, [&](const Communicator& world) {
      for (const QuantizedFormat format : formats) {
        for (const std::int64_t count : {0, 1, 700, 5000}) {
          for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg}) {
            if (op == ReduceOp::avg && !reduces(GetParam())) continue;
            for (const Method& method : {Method(Algorithm::two_level), in_pieces}) {
              expect_exact(world, format, on_grid(format, GetParam(), 6, count, DType::f32, op), method);
            }
          }
        }
      }
    });
  }
}

// The vector is so long that local work is cut into many parts, which must not change the elements' numbers.
TEST_P(EveryQuantized, IsExactWhereItIsLong) {
  run_threads(3, [&](const Communicator& world) {
    for (const QuantizedFormat format : formats) {
      expect_exact(world, format, on_grid(format, GetParam(), 3, 300'001, DType::bf16));
    }
  });
}

TEST(Quantized, ASumMayGoInAnotherFormat) {
  run_threads(4, [](const Communicator& world) {
    // A group whose largest magnitude is 7 is exact in fp8, too. The reverse is not true: a scale of int4 cannot hold 127/7.
    const Problem problem = on_grid(QuantizedFormat::int4, Collective::all_reduce, 4, 3000);
    expect_exact(world, QuantizedFormat::int4, problem, Algorithm::automatic, QuantizedFormat::fp8);
  });
}

TEST(Quantized, NotANumberAndInfinityArrive) {
  constexpr std::int64_t count = 4000;
  const double infinity = std::numeric_limits<double>::infinity();
  for (const QuantizedFormat format : formats) {
    for (const DType dtype : dtypes) {
      run_threads(3, [&](const Communicator& world) {
        const Tensor x = gaussian(count, dtype, world.rank());
        if (world.rank() == 1) {
          x.set(100, NAN);
          x.set(2500, infinity);
          x.set(3900, -infinity);
        }
        if (world.rank() == 2) x.set(3900, infinity);
        std::ignore = world.all_reduce(x, ReduceOp::sum, calling_thread(), quantized_as(format));
        EXPECT_TRUE(std::isnan(x.at(100))) << name(format) << " " << name(dtype);
        if (format == QuantizedFormat::onebit) {
          EXPECT_TRUE(std::isnan(x.at(2500)));
        } else {
          EXPECT_EQ(x.at(2500), infinity) << name(format) << " " << name(dtype);
        }
        EXPECT_TRUE(std::isnan(x.at(3900))) << name(format) << " " << name(dtype);
        EXPECT_TRUE(std::isfinite(x.at(1400))) << name(format) << " " << name(dtype);
      });
    }
  }
}

}  // namespace
}  // namespace stretto
