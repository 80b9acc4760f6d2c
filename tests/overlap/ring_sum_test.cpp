// Sums that travel round a ring after its blocks.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <random>

#include "device/kernels/kernel_data.hpp"
#include "overlap/exchange.hpp"
#include "stretto/kernels.hpp"
#include "stretto/overlap/ring_pass.hpp"
#include "stretto/stretto.hpp"
#include "support/data.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

const Shape odd_shape{3, 7};  // 64 is no multiple of these sizes in bytes
using Make = Tensor (*)(Shape, DType, unsigned);
Tensor random_numbers(Shape of, DType dtype, unsigned seed) { return random_tensor(std::move(of), dtype, seed); }

// The contribution of `rank` to the sum for `block`.
std::vector<Tensor> parts_of(Make make, int rank, int block) {
  const auto seed = static_cast<unsigned>(100 * rank + block);
  return {make(odd_shape, DType::f32, seed), make(odd_shape, DType::f64, seed + 50)};
}

void write(const std::vector<Tensor>& what, const std::vector<Tensor>& to) {
  for (std::size_t i = 0; i < what.size(); ++i) to[i].copy_from(what[i]);
}

// The complete sum for this rank's block; the rank writes its own part before or after the others' contributions.
std::vector<Tensor> ring_sum(Make make, const Communicator& world, const Stream& stream, bool own_first) {
  RingSum sums(parts_of(make, 0, 0), world, stream);
  const auto write_own = [&] { write(parts_of(make, world.rank(), world.rank()), sums.own()); };
  if (own_first) write_own();
  for (int hop = 1; hop < world.size(); ++hop) {
    write(parts_of(make, world.rank(), around(world.rank() - hop, world.size())), sums.contribution());
    sums.pass();
  }
  if (!own_first) write_own();
  std::vector<Tensor> home = sums.finish();
  EXPECT_EQ(values(sums.finish()[0]), values(home[0]));  // the own part is added once
  return home;
}

// The sum in the order of the ring, starting at rank `first`.
std::vector<Tensor> summed_from(Make make, int first, int block, int ranks) {
  std::vector<Tensor> sums = parts_of(make, around(first, ranks), block);
  for (int i = 1; i < ranks; ++i) {
    const std::vector<Tensor> parts = parts_of(make, around(first + i, ranks), block);
    for (std::size_t t = 0; t < sums.size(); ++t) kernels::add(sums[t], parts[t], sums[t]);
  }
  return sums;
}

TEST(RingSum, AddsWhatAllRanksFound) {
  for (const int ranks : {1, 2, 3, 5}) {
    run_threads(ranks, [&](const Communicator& world) {
      const std::vector<Tensor> sums = ring_sum(integer_tensor, world, Stream("sums"), true);
      for (std::size_t t = 0; t < sums.size(); ++t) {
        std::vector<double> expected(static_cast<std::size_t>(sums[t].size()));
        for (int rank = 0; rank < ranks; ++rank) {
          const std::vector<double> part = values(parts_of(integer_tensor, rank, world.rank())[t]);
          for (std::size_t e = 0; e < part.size(); ++e) expected[e] += part[e];
        }
        EXPECT_EQ(values(sums[t]), expected);
      }
    });
  }
}

TEST(RingSum, AddsInTheOrderOfTheRingWheneverTheOwnPartIsWritten) {
  for (const int ranks : {1, 2, 3, 5}) {
    run_threads(ranks, [&](const Communicator& world) {
      const int rank = world.rank();
      const std::vector<Tensor> expected = summed_from(random_numbers, rank + 1, rank, ranks);
      for (const bool own_first : {true, false}) {
        EXPECT_TRUE(same_bits(ring_sum(random_numbers, world, Stream("sums"), own_first), expected)) << own_first;
        EXPECT_TRUE(same_bits(ring_sum(random_numbers, world, Stream::inline_(), own_first), expected)) << own_first;
      }
      // The control: the order does not matter for two numbers, but it does for three.
      EXPECT_EQ(same_bits(summed_from(random_numbers, rank, rank, ranks), expected), ranks <= 2);
    });
  }
}

// A sum sends as many bytes as the blocks that it follows.
TEST(RingSum, SendsWhatTheFormulaSays) {
  for (const int ranks : {1, 2, 3, 5}) {
    for (const DType dtype : {DType::f64, DType::bf16}) {
      run_threads(ranks, [&](const Communicator& world) {
        const Tensor k = Tensor::zeros({2, 4, 32}, dtype);
        RingSum sum({k, k}, world, Stream("ring"), "dkv");
        for (int hop = 1; hop < ranks; ++hop) sum.pass();
        sum.finish();
        EXPECT_EQ(world.job().ledger().traffic(0).bytes_sent, 2 * k.bytes() * static_cast<std::size_t>(ranks - 1));
        for (const Record& record : world.job().ledger().records(0)) EXPECT_EQ(record.tag, "dkv");
      });
    }
  }
}

// Blocks that reach some ranks only, with their sums: each rank adds what it has for the blocks that come.
TEST(RingSum, FollowsBlocksThatDoNotReachAllRanks) {
  std::mt19937 engine(3);
  for (int round = 0; round < 60; ++round) {
    const int ranks = 2 + round % 5;
    std::vector<int> reach;
    for (int rank = 0; rank < ranks; ++rank) {
      const int causal = ranks - 1 - rank;  // contiguous blocks under a causal mask
      reach.push_back(round < 5 ? causal : static_cast<int>(engine() % static_cast<unsigned>(ranks)));
    }
    std::int64_t hops = 0;
    for (const int each : reach) hops += each;
    std::atomic<std::uint64_t> passed = 0, summed = 0;
    run_threads(ranks, [&](const Communicator& world) {
      const int rank = world.rank();
      const Stream stream = round % 2 == 0 ? Stream("ring") : Stream::inline_();
      RingPass blocks(parts_of(random_numbers, rank, rank), world, stream, "blocks", reach);
      RingSum sums(parts_of(random_numbers, 0, 0), world.duplicate("sums"), stream.is_inline() ? stream : Stream("sums"),
                   "sums", reach);
      int previous = 0;
      while (blocks.rotate()) {
        const int distance = around(rank - blocks.source(), ranks);
        EXPECT_GT(distance, previous);
        EXPECT_GE(reach[static_cast<std::size_t>(blocks.source())], distance);
        previous = distance;
        EXPECT_EQ(values(blocks.current()[1]), values(parts_of(random_numbers, blocks.source(), blocks.source())[1]));
        write(parts_of(random_numbers, rank, blocks.source()), sums.contribution());
        sums.pass();
      }
      write(parts_of(random_numbers, rank, rank), sums.own());
      const std::vector<Tensor> found = sums.finish();
      // Ranks rank + 1 to rank + reach, and the rank itself at last.
      const int others = reach[static_cast<std::size_t>(rank)];
      std::vector<Tensor> expected = parts_of(random_numbers, around(rank + (others > 0 ? 1 : 0), ranks), rank);
      for (int i = 2; i <= others + 1 && others > 0; ++i) {
        const int adds = i <= others ? rank + i : rank;
        const std::vector<Tensor> part = parts_of(random_numbers, around(adds, ranks), rank);
        for (std::size_t t = 0; t < part.size(); ++t) kernels::add(expected[t], part[t], expected[t]);
      }
      EXPECT_TRUE(same_bits(found, expected)) << "rank " << rank << " of " << ranks << ", reach " << others;
      for (const Record& record : world.job().ledger().records(0)) {
        if (record.collective == Collective::send) (record.tag == "sums" ? summed : passed) += record.bytes_sent;
      }
    });
    constexpr std::uint64_t bytes = 128 + 21 * 8;  // of a packed block
    EXPECT_EQ(passed, static_cast<std::uint64_t>(hops) * bytes);
    EXPECT_EQ(summed, static_cast<std::uint64_t>(hops) * bytes);  // each sum makes as many hops, the last one home
  }
}

TEST(RingSum, MayEndInTheMiddle) {
  run_threads(4, [](const Communicator& world) {
    const Stream stream("ring");
    for (int round = 0; round < 30; ++round) {
      RingSum sum({Tensor({50000}, DType::f32)}, world, stream);
      for (int hop = 0; hop < round % 4; ++hop) {
        sum.contribution()[0].zero();
        sum.pass();
      }
    }
    const Tensor ones = tensor_of(std::vector<double>(10, 1), DType::f32);
    world.all_reduce(ones, ReduceOp::sum, stream).wait();
    EXPECT_EQ(values(ones), std::vector<double>(10, 4));
  });
}

TEST(RingSum, SaysWhatIsMissingOrTooMuch) {
  run_threads(3, [](const Communicator& world) {
    RingSum sum({Tensor({4}, DType::f32)}, world, Stream("ring"));
    sum.own()[0].zero();
    for (const char* const blocks : {"contributions to 2 blocks", "contributions to 1 blocks"}) {
      expect_refusal([&] { sum.finish(); }, blocks);
      sum.contribution()[0].zero();
      sum.pass();
    }
    expect_refusal([&] { sum.pass(); }, "was passed on too often: no more blocks of others are left");
    expect_refusal([&] { sum.contribution(); }, "has taken all contributions to blocks of others");
    EXPECT_EQ(values(sum.finish()[0]), std::vector<double>(4, 0));
    expect_refusal([&] { sum.pass(); }, "finish() gives the sum of the own one");
  });
  run_threads(1, [](const Communicator& world) {
    RingSum sum({Tensor({4}, DType::f32)}, world, Stream("ring"));
    expect_refusal([&] { sum.contribution(); }, "has taken all contributions");
    expect_refusal([&] { sum.pass(); }, "no more blocks of others are left");
    EXPECT_EQ(sum.finish()[0].raw(), sum.own()[0].raw());
    expect_refusal([&] { RingSum({Tensor({4}, DType::f32)}, world, Stream("ring"), "sum", {1}); },
                   "Blocks of a ring of 1 ranks reach [1] hops; give 1 numbers of 0 to 0.");
  });
}

}  // namespace
}  // namespace stretto
