// Quantized collectives: their values, their bits and their traffic.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <mutex>
#include <tuple>

#include "collectives/gaussian_data.hpp"
#include "collectives/oracle.hpp"
#include "core/fail.hpp"
#include "stretto/kernels.hpp"
#include "variables.hpp"

namespace stretto {
namespace {

using gaussian_data::gaussian;
using gaussian_data::normal;
using oracle::Buffers;
using oracle::Problem;

const std::vector<Collective> collectives{Collective::all_gather, Collective::reduce_scatter, Collective::all_reduce};
const std::vector<QuantizedFormat> formats{QuantizedFormat::int8, QuantizedFormat::int4, QuantizedFormat::fp8,
                                           QuantizedFormat::onebit};
const std::vector<DType> dtypes{DType::f32, DType::bf16, DType::f16};

const Stream& calling_thread() {
  static const Stream stream = Stream::inline_();
  return stream;
}

Quantization as(QuantizedFormat format) {
  Quantization how;
  how.format = format;
  return how;
}

OperationOptions quantized_as(QuantizedFormat format, const Method& method = Algorithm::automatic) {
  OperationOptions options;
  options.method = method;
  options.quantization = as(format);
  return options;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

// One vector of each rank, for jobs whose ranks are threads.
class Gathered {
 public:
  explicit Gathered(int ranks) : tensors_(static_cast<std::size_t>(ranks)) {}
  void put(int rank, const Tensor& tensor) {
    const std::lock_guard lock(mutex_);
    tensors_[static_cast<std::size_t>(rank)] = tensor;
  }
  const Tensor& of(int rank) const { return tensors_[static_cast<std::size_t>(rank)]; }

 private:
  std::mutex mutex_;
  std::vector<Tensor> tensors_;
};

// ---- Values on the grid are exact

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

class EveryQuantized : public testing::TestWithParam<Collective> {};
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
  if (!counts_shares(GetParam())) return;
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

// ---- Bits

// A contribution quantized and dequantized, in one thread.
Tensor through(QuantizedFormat format, const Tensor& x) {
  std::vector<std::byte> records(static_cast<std::size_t>(packed_bytes(format, x.size())));
  kernels::quantize(format, x.dtype(), x.raw(), records.data(), x.size());
  Tensor result({x.size()}, x.dtype());
  kernels::dequantize(format, records.data(), x.dtype(), result.raw(), x.size());
  return result;
}

TEST(Quantized, AnAllGatherIsEachContributionQuantizedOnce) {
  constexpr std::int64_t count = 1001;
  for (const DType dtype : dtypes) {
    for (const QuantizedFormat format : formats) {
      run_threads(3, [&](const Communicator& world) {
        const Tensor out({3 * count}, dtype);
        std::ignore = world.all_gather(gaussian(count, dtype, world.rank()).raw(), out.raw(), count, dtype, calling_thread(),
                                       quantized_as(format));
        for (int rank = 0; rank < 3; ++rank) {
          const Tensor expected = through(format, gaussian(count, dtype, rank));
          EXPECT_TRUE(same_bits(out.view(rank * count, {count}), expected)) << name(format) << " " << name(dtype);
          EXPECT_FALSE(same_bits(out.view(rank * count, {count}), gaussian(count, dtype, rank)));  // the control
        }
      });
    }
  }
}

TEST(Quantized, AReduceScatterAddsInRankOrderAndRoundsOnce) {
  constexpr std::int64_t count = 500;
  for (const DType dtype : dtypes) {
    for (const QuantizedFormat format : formats) {
      run_threads(4, [&](const Communicator& world) {
        const Tensor out({count}, dtype);
        const Tensor expected({count}, dtype);
        std::vector<std::vector<std::byte>> records;
        std::vector<const void*> vectors;
        for (int rank = 0; rank < 4; ++rank) {
          const Tensor share = gaussian(4 * count, dtype, rank).view(world.rank() * count, {count});
          records.emplace_back(static_cast<std::size_t>(packed_bytes(format, count)));
          kernels::quantize(format, dtype, share.raw(), records.back().data(), count);
        }
        for (const auto& record : records) vectors.push_back(record.data());
        kernels::dequantize_reduce(format, vectors.data(), 4, dtype, expected.raw(), count, 4);
        std::ignore = world.reduce_scatter(gaussian(4 * count, dtype, world.rank()).raw(), out.raw(), count, dtype,
                                           ReduceOp::avg, calling_thread(), quantized_as(format, Algorithm::direct));
        EXPECT_TRUE(same_bits(out, expected)) << name(format) << " " << name(dtype);
      });
    }
  }
}

TEST(Quantized, EveryRankGetsTheSameBits) {
  for (const char* ranks_per_node : {"0", "2"}) {
    const Variable nodes("STRETTO_RANKS_PER_NODE", ranks_per_node);
    for (const QuantizedFormat format : formats) {
      Gathered sums(6);
      run_threads(6, [&](const Communicator& world) {
        const Tensor x = gaussian(5003, DType::f32, world.rank());
        std::ignore = world.all_reduce(x, ReduceOp::avg, calling_thread(), quantized_as(format));
        sums.put(world.rank(), x);
      });
      for (int rank = 1; rank < 6; ++rank) EXPECT_TRUE(same_bits(sums.of(rank), sums.of(0))) << name(format);
    }
  }
}

// Results must not depend on the route between ranks. Writes rank 1's results to `to`.
void write_results(const Communicator& world, const Stream& stream, bool prepared, std::byte* to) {
  std::size_t at = 0;
  for (const QuantizedFormat format : {QuantizedFormat::int8, QuantizedFormat::int4, QuantizedFormat::onebit}) {
    for (const Rounding rounding : {Rounding::nearest_even, Rounding::stochastic}) {
      if (rounding == Rounding::stochastic && format == QuantizedFormat::onebit) continue;
      const Tensor x = gaussian(70'001, DType::f32, world.rank());
      OperationOptions options = quantized_as(format);
      options.quantization.rounding = rounding;
      options.quantization.seed = 7;
      if (prepared) {
        world.prepare({.input = x.raw(), .output = x.raw(), .count = x.size(), .keep_alive = x}, options)
            .start(stream)
            .wait();
      } else {
        world.all_reduce(x, ReduceOp::sum, stream, options).wait();
      }
      if (world.rank() == 1) std::memcpy(to + at, x.raw(), x.bytes());
      at += x.bytes();
    }
  }
}

TEST(Quantized, BitsDoNotDependOnTheRoute) {
  constexpr std::size_t bytes = 5 * 70'001 * sizeof(float);
  const auto shared = [&] {
    auto* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    require(memory != MAP_FAILED, "No {} bytes of memory.", bytes);
    return static_cast<std::byte*>(memory);
  };
  std::byte* const by_shm = shared();
  ASSERT_EQ(launch(3, [&](const Communicator& world) { write_results(world, calling_thread(), false, by_shm); }), 0);
  std::vector<std::pair<const char*, std::vector<std::byte>>> others;
  const auto threads = [&](const char* what, bool in_stream, bool prepared) {
    others.emplace_back(what, std::vector<std::byte>(bytes));
    run_threads(3, [&](const Communicator& world) {
      write_results(world, in_stream ? Stream("quantized") : calling_thread(), prepared, others.back().second.data());
    });
  };
  threads("threads", false, false);
  threads("a stream", true, false);
  threads("prepared", false, true);
#ifdef STRETTO_HAVE_UCX
  {
    const Variable transport("STRETTO_TRANSPORT", "ucx");
    std::byte* const by_ucx = shared();
    ASSERT_EQ(launch(3, [&](const Communicator& world) { write_results(world, calling_thread(), false, by_ucx); }), 0);
    others.emplace_back("ucx", std::vector<std::byte>(by_ucx, by_ucx + bytes));
    munmap(by_ucx, bytes);
  }
#endif
  for (const auto& [what, found] : others) EXPECT_EQ(std::memcmp(by_shm, found.data(), bytes), 0) << what;
  // The control: rounding to nearest and stochastic rounding differ.
  EXPECT_NE(std::memcmp(by_shm, by_shm + bytes / 5, bytes / 5), 0);
  munmap(by_shm, bytes);
}

TEST(Quantized, StochasticRoundingIsItsSeeds) {
  for (const QuantizedFormat format : {QuantizedFormat::int8, QuantizedFormat::int4}) {
    run_threads(2, [&](const Communicator& world) {
      const auto sum = [&](std::uint64_t seed) {
        const Tensor x = gaussian(3000, DType::f32, 5);  // the same on both ranks
        OperationOptions options = quantized_as(format);
        options.quantization.rounding = Rounding::stochastic;
        options.quantization.seed = seed;
        std::ignore = world.all_reduce(x, ReduceOp::sum, calling_thread(), options);
        return x;
      };
      EXPECT_TRUE(same_bits(sum(1), sum(1))) << name(format);
      EXPECT_FALSE(same_bits(sum(1), sum(2))) << name(format);
      // The ranks' noise must differ, or it would add up: x + x would round to twice the rounded x.
      const Tensor out({2 * 3000}, DType::f32);
      OperationOptions options = quantized_as(format);
      options.quantization.rounding = Rounding::stochastic;
      std::ignore =
          world.all_gather(gaussian(3000, DType::f32, 5).raw(), out.raw(), 3000, DType::f32, calling_thread(), options);
      EXPECT_FALSE(same_bits(out.view(0, {3000}), out.view(3000, {3000}))) << name(format);
    });
  }
}

// ---- NaN and infinity

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

// ---- Error feedback

// The error of the mean of many results, relative to the exact result.
double error_of_the_mean(const Communicator& world, Collective collective, const Method& method, ErrorFeedback* errors) {
  constexpr int steps = 400;
  const int size = world.size();
  const std::int64_t count = 600;
  const std::int64_t inputs = collective == Collective::reduce_scatter ? count * size : count;
  const std::int64_t outputs = collective == Collective::all_gather ? count * size : count;
  const Tensor x = gaussian(inputs, DType::f32, world.rank());
  const Tensor out({outputs}, DType::f32);
  std::vector<double> sum(static_cast<std::size_t>(outputs));
  OperationOptions options = quantized_as(QuantizedFormat::onebit, method);
  options.quantization.errors = errors;
  options.quantization.tensor = "x";
  const Operation operation =
      world.prepare({.collective = collective, .input = x.raw(), .output = out.raw(), .count = count}, options);
  for (int step = 0; step < steps; ++step) {
    std::ignore = operation.start(calling_thread());
    for (std::int64_t i = 0; i < outputs; ++i) sum[static_cast<std::size_t>(i)] += out.at(i);
  }
  double error = 0;
  double square = 0;
  for (std::int64_t i = 0; i < outputs; ++i) {
    double exact = 0;
    if (collective == Collective::all_gather) {
      exact = static_cast<float>(normal(static_cast<int>(i / count), i % count));
    } else {
      const std::int64_t at = collective == Collective::reduce_scatter ? world.rank() * count + i : i;
      for (int rank = 0; rank < size; ++rank) exact += static_cast<float>(normal(rank, at));
    }
    error += std::pow(sum[static_cast<std::size_t>(i)] / steps - exact, 2);
    square += exact * exact;
  }
  return std::sqrt(error / square);
}

TEST_P(EveryQuantized, ErrorFeedbackLosesNothingInTheLongRun) {
  const Variable nodes("STRETTO_RANKS_PER_NODE", "2");
  const Algorithm one_level = GetParam() == Collective::all_reduce ? Algorithm::two_shot : Algorithm::direct;
  for (const Algorithm algorithm : {one_level, Algorithm::two_level}) {
    run_threads(4, [&](const Communicator& world) {
      ErrorFeedback errors;
      const double with = error_of_the_mean(world, GetParam(), algorithm, &errors);
      const double without = error_of_the_mean(world, GetParam(), algorithm, nullptr);
      EXPECT_LT(with, 0.05) << name(algorithm);
      EXPECT_GT(without, 0.3) << name(algorithm);  // the control
      std::vector<Hop> hops;
      for (const auto& entry : errors.entries()) hops.push_back(entry.hop);
      std::vector<Hop> expected{Hop::contribution};
      if (GetParam() != Collective::all_gather && algorithm == Algorithm::two_level) expected.push_back(Hop::node_sum);
      if (GetParam() == Collective::all_reduce) expected.push_back(Hop::result);
      EXPECT_EQ(hops, expected) << name(algorithm);
    });
  }
}

TEST(Quantized, ErrorStateIsExplicit) {
  run_threads(2, [](const Communicator& world) {
    ErrorFeedback errors;
    OperationOptions options = quantized_as(QuantizedFormat::int4);
    options.quantization.errors = &errors;
    options.quantization.tensor = "w";
    const auto sum = [&](ErrorFeedback& state) {
      const Tensor x = gaussian(900, DType::f32, world.rank());
      options.quantization.errors = &state;
      std::ignore = world.all_reduce(x, ReduceOp::sum, calling_thread(), options);
      return x;
    };
    const Tensor first = sum(errors);
    const auto entries = errors.entries();
    ASSERT_FALSE(entries.empty());
    EXPECT_EQ(entries.front().tensor, "w");
    EXPECT_EQ(entries.front().hop, Hop::contribution);
    ErrorFeedback restored;  // as a checkpoint restores it
    for (const auto& entry : entries) restored.restore(entry.tensor, entry.hop, entry.values);
    const Tensor second = sum(errors);
    EXPECT_TRUE(same_bits(second, sum(restored)));
    EXPECT_FALSE(same_bits(second, first));
    errors.clear();
    EXPECT_TRUE(same_bits(sum(errors), first));
  });
}

// ---- Traffic

std::int64_t sent(const Communicator& world, std::uint64_t since) {
  return static_cast<std::int64_t>(world.ledger().traffic(since).bytes_sent);
}

TEST(Quantized, TheLedgerSaysTheBytesOfTheFormula) {
  for (const int size : {1, 2, 3, 4, 7}) {
    run_threads(size, [&](const Communicator& world) {
      const Tensor big = Tensor::zeros({size * 3000L}, DType::bf16);
      const Tensor small = Tensor::zeros({3000}, DType::bf16);
      for (const QuantizedFormat format : formats) {
        const std::int64_t others = size - 1;
        std::uint64_t since = world.ledger().next_sequence();
        std::ignore = world.all_gather(small.raw(), big.raw(), 1000, DType::bf16, calling_thread(),
                                       quantized_as(format, Algorithm::direct));
        EXPECT_EQ(sent(world, since), others * packed_bytes(format, 1000)) << name(format);
        since = world.ledger().next_sequence();
        std::ignore = world.reduce_scatter(big.raw(), small.raw(), 1000, DType::bf16, ReduceOp::sum, calling_thread(),
                                           quantized_as(format, Algorithm::direct));
        EXPECT_EQ(sent(world, since), others * packed_bytes(format, 1000)) << name(format);
        since = world.ledger().next_sequence();
        OperationOptions options = quantized_as(format, Algorithm::two_shot);
        options.quantization.result = QuantizedFormat::int8;
        std::ignore =
            world.all_reduce(big.raw(), big.raw(), 1024L * size, DType::bf16, ReduceOp::sum, calling_thread(), options);
        EXPECT_EQ(sent(world, since), others * (packed_bytes(format, 1024) + packed_bytes(QuantizedFormat::int8, 1024)));
        const Record record = world.ledger().records(since).front();
        EXPECT_EQ(record.quantized, format);
        EXPECT_EQ(record.bytes_between_nodes, 0U);
        EXPECT_THAT(record.to_string(), testing::HasSubstr(name(format)));
      }
    });
  }
}

TEST(Quantized, TheLedgerSaysWhatGoesBetweenNodes) {
  const Variable variable("STRETTO_RANKS_PER_NODE", "2");
  constexpr std::int64_t ranks = 2;
  constexpr std::int64_t nodes = 3;
  const Method method(Algorithm::two_level);
  Method plain = method;
  plain.inside = plain.between = Algorithm::direct;
  run_threads(ranks * nodes, [&](const Communicator& world) {
    const Tensor big = Tensor::zeros({6 * 2048}, DType::f32);
    const Tensor small = Tensor::zeros({2048}, DType::f32);
    const auto expect = [&](std::uint64_t since, std::int64_t inside, std::int64_t between) {
      const Record record = world.ledger().records(since).front();
      EXPECT_EQ(record.bytes_sent, static_cast<std::uint64_t>(inside + between)) << record.to_string();
      EXPECT_EQ(record.bytes_between_nodes, static_cast<std::uint64_t>(between)) << record.to_string();
    };
    for (const QuantizedFormat format : formats) {
      const std::int64_t share = packed_bytes(format, 2048);
      std::uint64_t since = world.ledger().next_sequence();
      std::ignore =
          world.all_gather(small.raw(), big.raw(), 2048, DType::f32, calling_thread(), quantized_as(format, method));
      expect(since, (ranks - 1) * nodes * share, (nodes - 1) * share);
      since = world.ledger().next_sequence();
      std::ignore = world.reduce_scatter(big.raw(), small.raw(), 2048, DType::f32, ReduceOp::sum, calling_thread(),
                                         quantized_as(format, method));
      expect(since, (ranks - 1) * nodes * share, (nodes - 1) * share);
    }
    const std::uint64_t since = world.ledger().next_sequence();  // the same without quantization
    std::ignore = world.all_gather(small.raw(), big.raw(), 2048, DType::f32, calling_thread(), {.method = plain});
    expect(since, (ranks - 1) * nodes * 8192, (nodes - 1) * 8192);
  });
}

// ---- Refusals

TEST(Quantized, RefusesWhatItCannotDoAndSaysWhy) {
  run_threads(2, [](const Communicator& world) {
    const Tensor x = Tensor::zeros({64}, DType::f64);
    ErrorFeedback errors;
    const auto refused = [&](Call call, const Quantization& how, const char* said) {
      call.input = call.output = x.raw();
      OperationOptions options;
      options.quantization = how;
      try {
        std::ignore = world.start(call, calling_thread(), options);
        ADD_FAILURE() << "taken: " << said;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
        EXPECT_THAT(error.what(), testing::HasSubstr(said));
      }
    };
    const Call sum{.count = 8};
    refused({.collective = Collective::broadcast, .count = 8}, as(QuantizedFormat::int8),
            "broadcast cannot be quantized to int8");
    refused({.count = 8, .dtype = DType::f64}, as(QuantizedFormat::int4), "all_reduce of f64 cannot be quantized to int4");
    refused({.count = 8, .dtype = DType::i32}, as(QuantizedFormat::int4), "all_reduce of i32 cannot");
    refused({.count = 8, .op = ReduceOp::max}, as(QuantizedFormat::fp8), "all_reduce (max) cannot be quantized to fp8");
    refused(sum, as(static_cast<QuantizedFormat>(9)), "number 9");
    Quantization how = as(QuantizedFormat::int8);
    how.result = QuantizedFormat::int4;
    refused({.collective = Collective::all_gather, .count = 8}, how, "int4 as the format of its result");
    how.format = QuantizedFormat::none;
    refused(sum, how, "none for what goes there");
    how = as(QuantizedFormat::fp8);
    how.rounding = Rounding::stochastic;
    refused(sum, how, "fp8 cannot round stochastically");
    how = as(QuantizedFormat::int8);
    how.rounding = Rounding::stochastic;
    how.result = QuantizedFormat::onebit;
    refused(sum, how, "onebit cannot round stochastically");
    how = as(QuantizedFormat::int8);
    how.rounding = static_cast<Rounding>(7);
    refused(sum, how, "rounding number 7");
    how = as(QuantizedFormat::int8);
    how.errors = &errors;
    refused(sum, how, "no name of the tensor");
    EXPECT_TRUE(errors.entries().empty());
    const Call narrow{.count = 8, .dtype = DType::f32};  // options of quantization without a format
    for (int round = 0; round < 2; ++round) {
      refused(narrow, {.rounding = Rounding::stochastic}, "all_reduce got Quantization::rounding, but no format");
      refused(narrow, {.only_if_faster = true}, "Quantization::only_if_faster");
      refused(narrow, {.errors = &errors}, "Quantization::errors");
      refused(narrow, {.tensor = "w"}, "Quantization::tensor");
      // The control; after it, such a call takes the inline fast path.
      world.all_reduce(x.raw(), x.raw(), 8, DType::f32, ReduceOp::sum, calling_thread()).wait();
    }
    how.tensor = "w";
    OperationOptions options;
    options.quantization = how;
    std::ignore = world.all_reduce(x.raw(), x.raw(), 40, DType::f32, ReduceOp::sum, calling_thread(), options);
    refused({.count = 8}, how, "The error state of 'w'");
    OperationOptions by_ring = quantized_as(QuantizedFormat::int8, Algorithm::ring);
    EXPECT_THROW(world.all_reduce(x.raw(), x.raw(), 8, DType::f32, ReduceOp::sum, calling_thread(), by_ring), Error);
    // The refusals have changed nothing.
    std::ignore = world.all_reduce(x.raw(), x.raw(), 40, DType::f32, ReduceOp::sum, calling_thread(), options);
  });
}

TEST(Quantized, NothingIsReducedInItsOwnErrorState) {
  run_threads(2, [](const Communicator& world) {
    ErrorFeedback errors;
    OperationOptions options = quantized_as(QuantizedFormat::int8);
    options.quantization.errors = &errors;
    options.quantization.tensor = "w";
    const Tensor x = gaussian(600, DType::f32, world.rank());
    const Tensor y({600}, DType::f32);
    const auto sum = [&](const Tensor& from, const Tensor& to) {
      return sentence_of([&] {
        std::ignore = world.all_reduce(from.raw(), to.raw(), 600, DType::f32, ReduceOp::sum, calling_thread(), options);
      });
    };
    EXPECT_EQ(sum(x, y), "");
    const Tensor state = errors.entries().front().values;
    EXPECT_THAT(sum(state, state), testing::HasSubstr("an input that lies in its own error state, 'w'"));
    EXPECT_THAT(sum(state, y), testing::HasSubstr("an input that"));
    EXPECT_THAT(sum(x, state), testing::HasSubstr("an output that lies in its own error state, 'w'"));
    options.quantization.tensor = "another";  // the control: another tensor's state is ordinary memory
    EXPECT_EQ(sum(state, y), "");
  });
}

TEST(Quantized, TwoOperationsOfAGroupMustNotShareAnErrorState) {
  run_threads(2, [](const Communicator& world) {
    const Communicator copy = world.duplicate("copy");
    const Tensor x = Tensor::zeros({64}, DType::f32);
    const Tensor y = Tensor::zeros({64}, DType::f32);
    ErrorFeedback errors;
    OperationOptions options = quantized_as(QuantizedFormat::int8);
    options.quantization.errors = &errors;
    options.quantization.tensor = "one";
    {
      OperationGroup group;
      std::ignore = world.all_reduce(x, ReduceOp::sum, calling_thread(), options);
      std::ignore = copy.all_reduce(y, ReduceOp::sum, calling_thread(), options);
      EXPECT_THROW(group.end(), Error);
    }
    OperationGroup group;
    std::ignore = world.all_reduce(x, ReduceOp::sum, calling_thread(), options);
    options.quantization.tensor = "another";
    std::ignore = copy.all_reduce(y, ReduceOp::sum, calling_thread(), options);
    group.end().wait();
  });
}

TEST(Quantized, ARankThatQuantizesBesideOneThatDoesNotIsTold) {
  const Variable check("STRETTO_CHECK", "1");
  const Variable timeout("STRETTO_TIMEOUT", "20");
  std::atomic<int> heard = 0;
  EXPECT_THROW(run_threads(2,
                           [&](const Communicator& world) {
                             const Tensor x = Tensor::zeros({64}, DType::f32);
                             const auto format = world.rank() == 0 ? QuantizedFormat::int8 : QuantizedFormat::none;
                             try {
                               std::ignore = world.all_reduce(x, ReduceOp::sum, calling_thread(), quantized_as(format));
                             } catch (const Error& error) {
                               EXPECT_THAT(error.what(), testing::HasSubstr("of 64 f32 (sum), quantized to int8"));
                               ++heard;
                               throw;
                             }
                           }),
               Error);
  EXPECT_EQ(heard, 2);
  run_threads(2, [](const Communicator& world) {  // the control: matching calls pass
    world.all_reduce(Tensor::zeros({64}, DType::f32), ReduceOp::sum, calling_thread(), quantized_as(QuantizedFormat::int8))
        .wait();
  });
}

// The inline fast path does not mistake a plain call and a quantized call of the same shape for each other.
TEST(Quantized, IsNotMistakenForThePlainCall) {
  run_threads(2, [](const Communicator& world) {
    const auto sum = [&](QuantizedFormat format) {
      const Tensor x = gaussian(1000, DType::f32, world.rank());
      std::ignore =
          world.all_reduce(x.raw(), x.raw(), 1000, DType::f32, ReduceOp::sum, calling_thread(), quantized_as(format));
      return x;
    };
    const Tensor plain = sum(QuantizedFormat::none);
    const Tensor int8 = sum(QuantizedFormat::int8);
    for (int round = 0; round < 3; ++round) {
      EXPECT_TRUE(same_bits(sum(QuantizedFormat::none), plain));
      EXPECT_TRUE(same_bits(sum(QuantizedFormat::int8), int8));
      EXPECT_FALSE(same_bits(sum(QuantizedFormat::int4), int8));
    }
    EXPECT_FALSE(same_bits(plain, int8));
  });
}

// If the cost model chooses the plain call, the results have its bits and no error state is made.
TEST(Quantized, MayBeLeftToTheCostModel) {
  run_threads(2, [](const Communicator& world) {
    ErrorFeedback errors;
    OperationOptions options = quantized_as(QuantizedFormat::int8);
    options.quantization.only_if_faster = true;
    options.quantization.errors = &errors;
    options.quantization.tensor = "x";
    const std::uint64_t since = world.ledger().next_sequence();
    const Tensor x = gaussian(4, DType::f32, world.rank());  // four elements need a whole record, which is never faster
    const Tensor y = x.clone();
    std::ignore = world.all_reduce(x, ReduceOp::sum, calling_thread(), options);
    std::ignore = world.all_reduce(y, ReduceOp::sum, calling_thread());
    EXPECT_TRUE(same_bits(x, y));
    EXPECT_EQ(world.ledger().records(since).front().quantized, QuantizedFormat::none);
    EXPECT_TRUE(errors.entries().empty());
  });
}

}  // namespace
}  // namespace stretto
