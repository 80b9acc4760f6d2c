// Attention over sequences that are divided: what each core sends, and how far blocks travel. tests/parity compares results.
#include "stretto/layers/attention.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <random>

#include "stretto/stretto.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

constexpr std::int64_t all_tokens = 48, batch_size = 2, head_count = 4, width_of_head = 8;

std::uint64_t bytes_with_tag(const Communicator& world, std::uint64_t first, const std::string& tag) {
  std::uint64_t bytes = 0;
  for (const Record& record : world.job().ledger().records(first)) {
    if (record.tag == tag) bytes += record.bytes_sent;
  }
  return bytes;
}

// Sends of all ranks, by tag, in forward and backward.
struct RingBytes {
  std::uint64_t forward = 0, blocks_again = 0, sums = 0;
};
RingBytes ring_bytes(int ranks, SequenceLayout layout, const std::string& mask, DType dtype) {
  std::atomic<std::uint64_t> forward = 0, again = 0, sums = 0;
  run_threads(ranks, [&](const Communicator& world) {
    const RingAttention core(world, {.ring = ranks, .layout = layout}, attention_mask_from_text(mask), true);
    const std::int64_t rows = all_tokens / ranks;
    const Tensor qkv = Tensor::zeros({batch_size * rows, 3 * head_count * width_of_head}, dtype);
    AttentionCore::Saved saved;
    std::uint64_t first = world.job().ledger().next_sequence();
    const Tensor attended = core.forward({batch_size, rows, head_count, width_of_head}, qkv, saved);
    forward += bytes_with_tag(world, first, "keys and values");
    first = world.job().ledger().next_sequence();
    core.backward(attended, saved);
    again += bytes_with_tag(world, first, "keys and values");
    sums += bytes_with_tag(world, first, "gradients of keys and values");
  });
  return {forward, again, sums};
}

// 2 b (s/c) h (c-1) e bytes of a rank, and of gradients as many elements.
TEST(RingAttention, SendsWhatTheFormulaSays) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const DType dtype : {DType::f64, DType::bf16}) {
      const RingBytes found = ring_bytes(ranks, SequenceLayout::zigzag, "dense", dtype);
      const auto elements = static_cast<std::uint64_t>(2 * batch_size * (all_tokens / ranks) * head_count * width_of_head *
                                                       (ranks - 1) * ranks);
      EXPECT_EQ(found.forward, elements * size_of(dtype)) << ranks;
      EXPECT_EQ(found.blocks_again, found.forward);
      EXPECT_EQ(found.sums, elements * size_of(kernels::accumulator(dtype)));
    }
  }
}

// Hops of blocks that nobody sees are absent.
TEST(RingAttention, LeavesOutHopsThatTheMaskEmpties) {
  const auto block = static_cast<std::uint64_t>(2 * batch_size * (all_tokens / 4) * head_count * width_of_head * 8);
  const auto hops = [&](SequenceLayout layout, const std::string& mask) {
    const RingBytes found = ring_bytes(4, layout, mask, DType::f64);
    EXPECT_EQ(found.blocks_again, found.forward);
    EXPECT_EQ(found.sums, found.forward);
    return found.forward / block;
  };
  EXPECT_EQ(hops(SequenceLayout::zigzag, "dense"), 12U);
  EXPECT_EQ(hops(SequenceLayout::contiguous, "dense"), 3U + 2U + 1U);
  EXPECT_EQ(hops(SequenceLayout::contiguous, "window:13"), 3U);  // the twelve tokens before a part are those of one rank
  EXPECT_EQ(hops(SequenceLayout::contiguous, "window:14"), 2U + 2U + 1U);
  EXPECT_EQ(hops(SequenceLayout::contiguous, "window:13+global:1"), 3U + 1U + 1U);  // all see the first rank's block
  EXPECT_EQ(hops(SequenceLayout::striped, "window:4"), 12U);
  EXPECT_EQ(hops(SequenceLayout::striped, "window:2"), 4U);
}

// The rows of each sequence's tokens at these positions.
Tensor rows_at(const Tensor& all, const std::vector<std::int64_t>& positions) {
  const auto rows = static_cast<std::int64_t>(positions.size());
  Tensor part({batch_size * rows, all.columns()}, all.dtype());
  for (std::int64_t row = 0; row < part.rows(); ++row) {
    const std::int64_t from = row / rows * all_tokens + positions[static_cast<std::size_t>(row % rows)];
    part.view(row * part.columns(), {part.columns()}).copy_from(all.view(from * part.columns(), {part.columns()}));
  }
  return part;
}

// The largest difference between what the ranks of a ring compute, in both passes, and one rank; infinite where overlap
// changes a bit. The fault: ranks take their tokens from other places than they tell the ring.
double difference_from_one_rank(int ranks, std::int64_t heads, bool fault = false) {
  const std::int64_t columns = 3 * heads * width_of_head, results = heads * width_of_head;
  const auto number = [](std::int64_t i) { return static_cast<double>((i * 31 + i / 7 * 17) % 29 - 14) / 8; };
  Tensor qkv({batch_size * all_tokens, columns}, DType::f64), dattended({batch_size * all_tokens, results}, DType::f64);
  for (const Tensor& tensor : {qkv, dattended}) {
    for (std::int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, number(i));
  }
  AttentionCore::Saved saved;
  const LocalAttention alone;
  const Tensor attended = alone.forward({batch_size, all_tokens, heads, width_of_head}, qkv, saved);
  const Tensor dqkv = alone.backward(dattended, saved);
  std::atomic<double> largest = 0;
  run_threads(ranks, [&](const Communicator& world) {
    const SequenceDivision division{.ring = ranks};
    const SequenceDivision held{.ring = ranks, .layout = fault ? SequenceLayout::striped : SequenceLayout::zigzag};
    const auto positions = held.positions(all_tokens, world.rank(), 0);
    const auto rows = static_cast<std::int64_t>(positions.size());
    const auto own = [&](const Tensor& whole) { return rows_at(whole, positions); };
    std::vector<Tensor> first;
    for (const bool overlap : {true, false}) {
      const RingAttention core(world, division, {}, overlap);
      AttentionCore::Saved its;
      const Tensor out = core.forward({batch_size, rows, heads, width_of_head}, own(qkv), its);
      const std::vector<Tensor> found = {out, core.backward(own(dattended), its)};
      const std::vector<Tensor> expected = {own(attended), own(dqkv)};
      for (std::size_t i = 0; i < found.size(); ++i) {
        if (!first.empty() && std::memcmp(first[i].raw(), found[i].raw(), found[i].bytes()) != 0) largest = INFINITY;
        for (std::int64_t j = 0; j < found[i].size(); ++j) {
          largest = std::max(largest.load(), std::abs(found[i].at(j) - expected[i].at(j)));
        }
      }
      first = found;
    }
  });
  return largest;
}

// One head cannot travel in halves, and three make unequal ones.
TEST(RingAttention, ComputesWhatOneRankDoesWithAnyNumberOfHeads) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const std::int64_t heads : {1, 2, 3})
      EXPECT_LT(difference_from_one_rank(ranks, heads), 1e-12) << ranks << ' ' << heads;
  }
  EXPECT_GT(difference_from_one_rank(2, 3, true), 1e-3);
}

// 4 b (s/u) h (u-1)/u e bytes of a rank, in each pass.
TEST(UlyssesAttention, SendsWhatTheFormulaSays) {
  for (const int ranks : {1, 2, 4}) {
    for (const DType dtype : {DType::f64, DType::bf16}) {
      run_threads(ranks, [&](const Communicator& world) {
        const UlyssesAttention core(world, std::make_shared<LocalAttention>(), Stream("ulysses"));
        const std::int64_t rows = all_tokens / ranks;
        const Tensor qkv = Tensor::zeros({batch_size * rows, 3 * head_count * width_of_head}, dtype);
        AttentionCore::Saved saved;
        const auto expected =
            static_cast<std::uint64_t>(4 * batch_size * rows * head_count * width_of_head * (ranks - 1) / ranks) *
            size_of(dtype);
        std::uint64_t first = world.job().ledger().next_sequence();
        const Tensor attended = core.forward({batch_size, rows, head_count, width_of_head}, qkv, saved);
        EXPECT_EQ(world.job().ledger().traffic(first).bytes_sent, expected);
        first = world.job().ledger().next_sequence();
        EXPECT_EQ(core.backward(attended, saved).shape(), qkv.shape());
        EXPECT_EQ(world.job().ledger().traffic(first).bytes_sent, expected);
      });
    }
  }
}

// Heads that go in pieces, or all at once, give bit for bit what one rank finds.
TEST(UlyssesAttention, GivesWhatOneRankFindsWhateverThePieces) {
  constexpr std::int64_t width = head_count * width_of_head;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const auto numbers = [&](std::int64_t columns) {
    Tensor tensor({batch_size * all_tokens, columns}, DType::f32);
    for (std::int64_t i = 0; i < tensor.size(); ++i) tensor.data<float>()[i] = normal(random);
    return tensor;
  };
  const Tensor qkv = numbers(3 * width), dattended = numbers(width);
  const LocalAttention alone;
  AttentionCore::Saved saved_alone;
  const Tensor attended = alone.forward({batch_size, all_tokens, head_count, width_of_head}, qkv, saved_alone);
  const Tensor dqkv = alone.backward(dattended, saved_alone);
  for (const int ranks : {1, 2, 4}) {
    for (const int pieces : {1, 2, 3}) {
      run_threads(ranks, [&](const Communicator& world) {
        const UlyssesAttention core(world, std::make_shared<LocalAttention>(), Stream("ulysses"), pieces);
        const std::vector<std::int64_t> positions =
            SequenceDivision{.ulysses = ranks}.positions(all_tokens, 0, world.rank());
        AttentionCore::Saved saved;
        const Tensor out =
            core.forward({batch_size, all_tokens / ranks, head_count, width_of_head}, rows_at(qkv, positions), saved);
        const Tensor gradient = core.backward(rows_at(dattended, positions), saved);
        const auto expect_same = [&](const Tensor& found, const Tensor& all) {
          const Tensor expected = rows_at(all, positions);
          ASSERT_EQ(found.shape(), expected.shape());
          EXPECT_EQ(std::memcmp(found.raw(), expected.raw(), expected.bytes()), 0) << ranks << " ranks, " << pieces;
        };
        expect_same(out, attended);
        expect_same(gradient, dqkv);
      });
    }
  }
}

TEST(UlyssesAttention, RefusesHeadsThatDoNotDivide) {
  run_threads(3, [](const Communicator& world) {
    const UlyssesAttention core(world, std::make_shared<LocalAttention>(), Stream("ulysses"));
    AttentionCore::Saved saved;
    EXPECT_EQ(sentence_of([&] {
                core.forward({1, 2, 4, 8}, Tensor({2, 96}, DType::f32), saved);
              }),
              "4 attention heads do not divide over 3 ulysses ranks.");
  });
}

TEST(AttentionMaskText, IsReadOrRefused) {
  EXPECT_EQ(attention_mask_from_text("dense"), kernels::AttentionMask());
  EXPECT_EQ(attention_mask_from_text("window:5"), (kernels::AttentionMask{.window = 5}));
  EXPECT_EQ(attention_mask_from_text("global:3+window:4"), (kernels::AttentionMask{.window = 4, .global = 3}));
  EXPECT_EQ(attention_mask_from_text("strided:8"), (kernels::AttentionMask{.stride = 8}));
  for (const char* const text : {"dense", "window:5", "window:4+global:3", "window:2+strided:8+global:1"}) {
    EXPECT_EQ(to_text(attention_mask_from_text(text)), text);
  }
  for (const char* wrong : {"", "window", "window:", "window:0", "window:-1", "window:x", "window:5x", "sparse:4",
                            "dense+window:4", "window:4+", "window:4+window:5"}) {
    EXPECT_EQ(
        sentence_of([&] { attention_mask_from_text(wrong); }),
        fmt::format("'{}' is no mask of attention; give dense, or window:W, strided:S and global:G of at least 1 each, "
                    "joined by +.",
                    wrong));
  }
  EXPECT_EQ(sentence_of([] { attention_mask_from_text("global:4"); }),
            "'global:4' thins nothing out: all tokens see all earlier ones; add window:W or strided:S, or give dense.");
}

}  // namespace
}  // namespace stretto
