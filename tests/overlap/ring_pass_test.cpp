// Blocks that go round a ring, and products with them whose sums follow.
#include "stretto/overlap/ring_pass.hpp"

#include <gmock/gmock.h>

#include <thread>

#include "device/kernels/kernel_data.hpp"
#include "overlap/exchange.hpp"
#include "stretto/kernels.hpp"
#include "stretto/stretto.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

TEST(RingPass, BringsEveryBlockInTheOrderOfTheRing) {
  for (const int ranks : {1, 2, 4, 5}) {
    run_threads(ranks, [&](const Communicator& world) {
      const auto block_of = [](int rank, DType dtype) {
        return integer_tensor({3, 7}, dtype, static_cast<unsigned>(rank));  // 64 is no multiple of these sizes in bytes
      };
      RingPass pass({block_of(world.rank(), DType::f32), block_of(world.rank(), DType::bf16), Tensor({0}, DType::f64),
                     block_of(world.rank(), DType::i64)},
                    world, Stream("ring"));
      for (int step = 0; step < ranks; ++step) {
        EXPECT_EQ(pass.source(), (world.rank() + ranks - step) % ranks);
        ASSERT_EQ(pass.current().size(), 4U);
        EXPECT_EQ(pass.current()[1].shape(), (Shape{3, 7}));
        EXPECT_EQ(values(pass.current()[0]), values(block_of(pass.source(), DType::f32)));
        EXPECT_EQ(values(pass.current()[1]), values(block_of(pass.source(), DType::bf16)));
        EXPECT_EQ(values(pass.current()[3]), values(block_of(pass.source(), DType::i64)));
        EXPECT_EQ(pass.rotate(), step + 1 < ranks);
      }
      EXPECT_FALSE(pass.rotate());
      EXPECT_EQ(pass.source(), (world.rank() + 1) % ranks);
    });
  }
}

// 2 b (s/c) h (c-1) e bytes.
TEST(RingPass, SendsWhatTheFormulaSays) {
  constexpr std::int64_t batch = 2;
  constexpr std::int64_t block = 4;  // s/c
  constexpr std::int64_t hidden = 32;
  for (const int ranks : {1, 2, 3, 5}) {
    for (const DType dtype : {DType::f64, DType::bf16}) {
      run_threads(ranks, [&](const Communicator& world) {
        const Tensor k = Tensor::zeros({batch, block, hidden}, dtype);
        RingPass pass({k, k}, world, Stream("ring"));
        while (pass.rotate()) {
        }
        EXPECT_EQ(world.job().ledger().traffic(0).bytes_sent,
                  2 * batch * block * hidden * (ranks - 1) * static_cast<std::int64_t>(size_of(dtype)));
      });
    }
  }
}

struct AttentionData {
  Tensor q, k, v, dout;
};
// Attention without softmax: out += (q k^T) v, and its gradients dk and dv.
void linear_attention(const AttentionData& mine, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& dk,
                      const Tensor& dv) {
  using kernels::gemm, kernels::Transpose;
  const Tensor scores({mine.q.rows(), k.rows()}, DType::f64);
  gemm(mine.q, Transpose::no, k, Transpose::yes, scores);
  gemm(scores, Transpose::no, v, Transpose::no, out, true);
  gemm(scores, Transpose::yes, mine.dout, Transpose::no, dv);
  gemm(mine.dout, Transpose::no, v, Transpose::yes, scores);
  gemm(scores, Transpose::yes, mine.q, Transpose::no, dk);
}

// Integer sums are exact in any order, so forward and backward give the same bits as one rank.
TEST(RingPass, GivesTheBitsOfOneRankOnIntegers) {
  for (const int ranks : {1, 2, 3, 5}) {
    const Shape shape{6 * ranks, 4};
    const auto whole = [&](unsigned seed) { return integer_tensor(shape, DType::f64, seed); };
    const AttentionData all{whole(1), whole(2), whole(3), whole(4)};
    const Tensor out = Tensor::zeros(shape, DType::f64), dk(shape, DType::f64), dv(shape, DType::f64);
    linear_attention(all, all.k, all.v, out, dk, dv);
    run_threads(ranks, [&](const Communicator& world) {
      const auto mine = [&](const Tensor& tensor) { return rows_of(tensor, 6L * world.rank(), 6); };
      const AttentionData own{mine(all.q), mine(all.k), mine(all.v), mine(all.dout)};
      const Tensor own_out = Tensor::zeros(own.q.shape(), DType::f64);
      RingPass blocks({own.k, own.v}, world, Stream("kv"));
      RingSum sums({own.k, own.v}, world.duplicate("dkv"), Stream("dkv"));
      linear_attention(own, own.k, own.v, own_out, sums.own()[0], sums.own()[1]);
      while (blocks.rotate()) {
        linear_attention(own, blocks.current()[0], blocks.current()[1], own_out, sums.contribution()[0],
                         sums.contribution()[1]);
        sums.pass();
      }
      EXPECT_EQ(values(own_out), values(mine(out)));
      EXPECT_NE(values(sums.own()[0]), ranks == 1 ? std::vector<double>() : values(mine(dk)));  // the control: alone
      EXPECT_EQ(values(sums.finish()[0]), values(mine(dk)));
      EXPECT_EQ(values(sums.finish()[1]), values(mine(dv)));
    });
  }
}

// The next block travels before rotate() asks for it; otherwise this test never ends.
TEST(RingPass, FetchesTheNextBlockMeanwhile) {
  run_threads(2, [](const Communicator& world) {
    const std::uint64_t since = world.job().ledger().next_sequence();
    const auto arrived = [&] {
      return std::ranges::count_if(world.job().ledger().records(since),
                                   [](const Record& each) { return each.times.done > 0; });
    };
    RingPass pass({Tensor::zeros({1000}, DType::f32)}, world, Stream("ring"));
    while (arrived() < 2) std::this_thread::yield();  // a message each way
    EXPECT_TRUE(pass.rotate());
  });
}

TEST(RingPass, MayEndInTheMiddle) {
  run_threads(3, [](const Communicator& world) {
    const Stream stream("ring");
    for (int round = 0; round < 30; ++round) {
      RingPass pass({integer_tensor({50000}, DType::f32)}, world, stream);
      if (round % 2 == 0) pass.rotate();
    }
    const Tensor ones = tensor_of(std::vector<double>(10, 1), DType::f32);
    world.all_reduce(ones, ReduceOp::sum, stream).wait();
    EXPECT_EQ(values(ones), std::vector<double>(10, 3));
  });
}

TEST(Zigzag, PairsTheChunksFromBothEnds) {
  EXPECT_EQ(zigzag_chunks(1, 4), (std::array<int, 2>{1, 6}));
  EXPECT_THAT(sentence_of([] { zigzag_chunks(2, 2); }), testing::HasSubstr("Rank 2 is outside a ring of 2"));
  EXPECT_EQ(contiguous_causal_efficiency(1), 1);
}

}  // namespace
}  // namespace stretto
