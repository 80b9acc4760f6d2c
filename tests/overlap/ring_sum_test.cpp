// Sums that travel round a ring after its blocks.
#include <gtest/gtest.h>

#include <cstring>

#include "device/kernels/kernel_data.hpp"
#include "overlap/exchange.hpp"
#include "refusal.hpp"
#include "same_bits.hpp"
#include "stretto/kernels.hpp"
#include "stretto/overlap/ring_pass.hpp"
#include "stretto/stretto.hpp"

namespace stretto {
namespace {

const Shape shape{3, 7};  // 64 is no multiple of these sizes in bytes
using Make = Tensor (*)(Shape, DType, unsigned);
Tensor random_numbers(Shape of, DType dtype, unsigned seed) { return random_tensor(std::move(of), dtype, seed); }

// The contribution of `rank` to the sum for `block`.
std::vector<Tensor> parts_of(Make make, int rank, int block) {
  const auto seed = static_cast<unsigned>(100 * rank + block);
  return {make(shape, DType::f32, seed), make(shape, DType::f64, seed + 50)};
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
  const std::vector<Tensor> home = sums.finish();
  EXPECT_EQ(values(sums.finish()[0]), values(home[0]));  // the own part is added once
  return home;
}

// The sum in the order of the ring, starting at rank `first`.
std::vector<Tensor> summed_from(Make make, int first, int block, int ranks) {
  const std::vector<Tensor> sums = parts_of(make, around(first, ranks), block);
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
        EXPECT_EQ(world.ledger().traffic(0).bytes_sent, 2 * k.bytes() * static_cast<std::size_t>(ranks - 1));
        for (const Record& record : world.ledger().records(0)) EXPECT_EQ(record.tag, "dkv");
      });
    }
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
    for (const char* const times : {"passed on 0 times", "passed on 1 times"}) {
      expect_refusal([&] { sum.finish(); }, times);
      sum.contribution()[0].zero();
      sum.pass();
    }
    expect_refusal([&] { sum.pass(); }, "was passed on 2 times, and no more blocks of others are left");
    expect_refusal([&] { sum.contribution(); }, "takes 2 contributions to blocks of others and has them");
    EXPECT_EQ(values(sum.finish()[0]), std::vector<double>(4, 0));
    expect_refusal([&] { sum.pass(); }, "finish() gives the sum of the own one");
  });
  run_threads(1, [](const Communicator& world) {
    RingSum sum({Tensor({4}, DType::f32)}, world, Stream("ring"));
    expect_refusal([&] { sum.contribution(); }, "takes 0 contributions");
    expect_refusal([&] { sum.pass(); }, "was passed on 0 times, and no more blocks of others are left");
    EXPECT_EQ(sum.finish()[0].raw(), sum.own()[0].raw());
  });
}

}  // namespace
}  // namespace stretto
