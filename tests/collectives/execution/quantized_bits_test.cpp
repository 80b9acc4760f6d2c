// Bits of quantized collectives: those of their formula, the same on every rank and by every route.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <mutex>
#include <tuple>

#include "collectives/gaussian_data.hpp"
#include "core/fail.hpp"
#include "quantized_calls.hpp"
#include "stretto/kernels.hpp"
#include "support/data.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

using gaussian_data::gaussian;
using quantized_calls::calling_thread;
using quantized_calls::dtypes;
using quantized_calls::formats;
using quantized_calls::quantized_as;

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
        world.prepare({.input = x.raw(), .output = x.raw(), .count = x.size(), .keep_alive = {x}}, options)
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
        Tensor x = gaussian(3000, DType::f32, 5);  // the same on both ranks
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

// The inline fast path does not mistake a plain call and a quantized call of the same shape for each other.
TEST(Quantized, IsNotMistakenForThePlainCall) {
  run_threads(2, [](const Communicator& world) {
    const auto sum = [&](QuantizedFormat format) {
      Tensor x = gaussian(1000, DType::f32, world.rank());
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
    const std::uint64_t since = world.job().ledger().next_sequence();
    const Tensor x = gaussian(4, DType::f32, world.rank());  // four elements need a whole record, which is never faster
    const Tensor y = x.clone();
    std::ignore = world.all_reduce(x, ReduceOp::sum, calling_thread(), options);
    std::ignore = world.all_reduce(y, ReduceOp::sum, calling_thread());
    EXPECT_TRUE(same_bits(x, y));
    EXPECT_EQ(world.job().ledger().records(since).front().quantized, QuantizedFormat::none);
    EXPECT_TRUE(errors.entries().empty());
  });
}

}  // namespace
}  // namespace stretto
