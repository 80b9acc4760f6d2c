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

AttentionCore::Shape shape_of(std::int64_t rows, std::int64_t heads = head_count, std::int64_t kv_heads = 0) {
  return {batch_size, rows, heads, kv_heads > 0 ? kv_heads : heads, width_of_head};
}
std::int64_t packed_columns(const AttentionCore::Shape& shape) {
  return (shape.heads + 2 * shape.kv_heads) * shape.head_size;
}

// A core's passes over packed rows.
Tensor forward(const AttentionCore& core, const AttentionCore::Shape& shape, const Tensor& qkv,
               AttentionCore::Saved& saved) {
  return core.forward(shape, packed_heads(shape, qkv), saved);
}
Tensor backward(const AttentionCore& core, const Tensor& dattended, const AttentionCore::Saved& saved) {
  Tensor dqkv({dattended.rows(), packed_columns(saved.shape)}, dattended.dtype());
  core.backward(dattended, saved, packed_heads(saved.shape, dqkv));
  return dqkv;
}

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
RingBytes ring_bytes(int ranks, SequenceLayout layout, const std::string& mask, DType dtype,
                     std::int64_t kv_heads = head_count) {
  std::atomic<std::uint64_t> once = 0, again = 0, sums = 0;
  run_threads(ranks, [&](const Communicator& world) {
    const RingAttention core(world, {.ring = ranks, .layout = layout}, attention_mask_from_text(mask), true);
    const AttentionCore::Shape shape = shape_of(all_tokens / ranks, head_count, kv_heads);
    const Tensor qkv = Tensor::zeros({batch_size * shape.rows, packed_columns(shape)}, dtype);
    AttentionCore::Saved saved;
    std::uint64_t first = world.job().ledger().next_sequence();
    const Tensor attended = forward(core, shape, qkv, saved);
    once += bytes_with_tag(world, first, "keys and values");
    first = world.job().ledger().next_sequence();
    backward(core, attended, saved);
    again += bytes_with_tag(world, first, "keys and values");
    sums += bytes_with_tag(world, first, "gradients of keys and values");
  });
  return {once, again, sums};
}

// 2 b (s/c) h (c-1) e bytes of a rank, of the width h of keys, and of gradients as many elements.
TEST(RingAttention, SendsWhatTheFormulaSays) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const std::int64_t kv_heads : {4, 2, 1}) {
      for (const DType dtype : {DType::f64, DType::bf16}) {
        const RingBytes found = ring_bytes(ranks, SequenceLayout::zigzag, "dense", dtype, kv_heads);
        const auto elements = static_cast<std::uint64_t>(2 * batch_size * (all_tokens / ranks) * kv_heads * width_of_head *
                                                         (ranks - 1) * ranks);
        EXPECT_EQ(found.forward, elements * size_of(dtype)) << ranks;
        EXPECT_EQ(found.blocks_again, found.forward);
        EXPECT_EQ(found.sums, elements * size_of(kernels::accumulator(dtype)));
      }
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
double difference_from_one_rank(int ranks, std::int64_t heads, std::int64_t kv_heads, bool fault = false) {
  const AttentionCore::Shape whole = shape_of(all_tokens, heads, kv_heads);
  const std::int64_t columns = packed_columns(whole), results = heads * width_of_head;
  const auto number = [](std::int64_t i) { return static_cast<double>((i * 31 + i / 7 * 17) % 29 - 14) / 8; };
  Tensor qkv({batch_size * all_tokens, columns}, DType::f64), dattended({batch_size * all_tokens, results}, DType::f64);
  for (const Tensor& tensor : {qkv, dattended}) {
    for (std::int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, number(i));
  }
  AttentionCore::Saved saved;
  const LocalAttention alone;
  const Tensor attended = forward(alone, whole, qkv, saved);
  const Tensor dqkv = backward(alone, dattended, saved);
  std::atomic<double> largest = 0;
  run_threads(ranks, [&](const Communicator& world) {
    const SequenceDivision division{.ring = ranks};
    const SequenceDivision held{.ring = ranks, .layout = fault ? SequenceLayout::striped : SequenceLayout::zigzag};
    const auto positions = held.positions(all_tokens, world.rank(), 0);
    const auto rows = static_cast<std::int64_t>(positions.size());
    const auto own = [&](const Tensor& all) { return rows_at(all, positions); };
    std::vector<Tensor> first;
    for (const bool overlap : {true, false}) {
      const RingAttention core(world, division, {}, overlap);
      AttentionCore::Saved its;
      const Tensor out = forward(core, shape_of(rows, heads, kv_heads), own(qkv), its);
      const std::vector<Tensor> found = {out, backward(core, own(dattended), its)};
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

// One head of keys cannot travel in halves, and three make unequal ones.
TEST(RingAttention, ComputesWhatOneRankDoesWithAnyNumberOfHeads) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const auto& [heads, kv_heads] : std::vector<std::pair<int, int>>{{1, 1}, {2, 2}, {3, 3}, {4, 1}, {4, 2}, {6, 3}})
      EXPECT_LT(difference_from_one_rank(ranks, heads, kv_heads), 1e-12) << ranks << ' ' << heads << ' ' << kv_heads;
  }
  EXPECT_GT(difference_from_one_rank(2, 3, 3, true), 1e-3);
  EXPECT_GT(difference_from_one_rank(2, 6, 3, true), 1e-3);
}

// Grouped heads are what heads of their own are that have the same keys and values; the gradients of these add up. In the
// control, queries look at the keys of another group.
TEST(LocalAttention, GroupedHeadsAreThoseOfRepeatedKeysAndValues) {
  for (const auto& [heads, kv_heads] : std::vector<std::pair<int, int>>{{4, 4}, {4, 2}, {4, 1}, {6, 2}, {6, 3}}) {
    const AttentionCore::Shape shape = shape_of(all_tokens, heads, kv_heads), repeated = shape_of(all_tokens, heads);
    const std::int64_t rows = batch_size * all_tokens, group = heads / kv_heads;
    std::mt19937 random(7);
    std::normal_distribution<double> normal;
    const auto numbers = [&](std::int64_t columns) {
      Tensor tensor({rows, columns}, DType::f64);
      for (std::int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, normal(random));
      return tensor;
    };
    const Tensor qkv = numbers(packed_columns(shape)), dattended = numbers(heads * width_of_head);
    const Tensor wide({rows, packed_columns(repeated)}, DType::f64);
    const auto copy_head = [&](const kernels::TokenHeads& from, std::int64_t head, const kernels::TokenHeads& to,
                               std::int64_t place) {
      kernels::copy_columns(from.tensor, from.column(head, width_of_head), to.tensor, to.column(place, width_of_head),
                            width_of_head);
    };
    const QueriesKeysValues from = packed_heads(shape, qkv), to = packed_heads(repeated, wide);
    const auto difference = [&](std::int64_t wrong) {
      for (std::int64_t head = 0; head < heads; ++head) {
        copy_head(from.q, head, to.q, head);
        copy_head(from.k, (head / group + wrong) % kv_heads, to.k, head);
        copy_head(from.v, (head / group + wrong) % kv_heads, to.v, head);
      }
      AttentionCore::Saved saved, its;
      const LocalAttention core;
      const Tensor attended = forward(core, shape, qkv, saved), expected = forward(core, repeated, wide, its);
      const Tensor found = backward(core, dattended, saved), of_all = backward(core, dattended, its);
      const Tensor summed = Tensor::zeros(found.shape(), DType::f64);
      const QueriesKeysValues parts = packed_heads(repeated, of_all), sums = packed_heads(shape, summed);
      const auto add_head = [&](const kernels::TokenHeads& part, std::int64_t head, const kernels::TokenHeads& sum,
                                std::int64_t place) {
        for (std::int64_t row = 0; row < rows; ++row) {
          for (std::int64_t c = 0; c < width_of_head; ++c) {
            const std::int64_t at = row * summed.columns() + sum.column(place, width_of_head) + c;
            summed.set(at, summed.at(at) + of_all.at(row * of_all.columns() + part.column(head, width_of_head) + c));
          }
        }
      };
      for (std::int64_t head = 0; head < heads; ++head) {
        add_head(parts.q, head, sums.q, head);
        add_head(parts.k, head, sums.k, head / group);
        add_head(parts.v, head, sums.v, head / group);
      }
      double largest = 0;
      for (std::int64_t i = 0; i < found.size(); ++i) largest = std::max(largest, std::abs(found.at(i) - summed.at(i)));
      for (std::int64_t i = 0; i < attended.size(); ++i) {
        largest = std::max(largest, std::abs(attended.at(i) - expected.at(i)));
      }
      return largest;
    };
    EXPECT_LT(difference(0), 1e-12) << heads << ' ' << kv_heads;
    if (kv_heads > 1) {
      EXPECT_GT(difference(1), 1e-2) << "the control";
    }
  }
}

// 2 b (s/u) (h + g) (u-1)/u e bytes of a rank, in each pass; g is the width of keys.
TEST(UlyssesAttention, SendsWhatTheFormulaSays) {
  for (const int ranks : {1, 2, 4}) {
    for (const std::int64_t kv_heads : {4, 2, 1}) {
      if (kv_heads % ranks != 0) continue;
      for (const DType dtype : {DType::f64, DType::bf16}) {
        run_threads(ranks, [&](const Communicator& world) {
          const UlyssesAttention core(world, std::make_shared<LocalAttention>(), Stream("ulysses"));
          const AttentionCore::Shape shape = shape_of(all_tokens / ranks, head_count, kv_heads);
          const Tensor qkv = Tensor::zeros({batch_size * shape.rows, packed_columns(shape)}, dtype);
          AttentionCore::Saved saved;
          const auto expected =
              static_cast<std::uint64_t>(2 * qkv.rows() * (head_count + kv_heads) * width_of_head * (ranks - 1) / ranks) *
              size_of(dtype);
          std::uint64_t first = world.job().ledger().next_sequence();
          const Tensor attended = forward(core, shape, qkv, saved);
          EXPECT_EQ(world.job().ledger().traffic(first).bytes_sent, expected);
          first = world.job().ledger().next_sequence();
          EXPECT_EQ(backward(core, attended, saved).shape(), qkv.shape());
          EXPECT_EQ(world.job().ledger().traffic(first).bytes_sent, expected);
        });
      }
    }
  }
}

// Heads that go in pieces, or all at once, give bit for bit what one rank finds.
TEST(UlyssesAttention, GivesWhatOneRankFindsWhateverThePieces) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const auto numbers = [&](std::int64_t columns) {
    Tensor tensor({batch_size * all_tokens, columns}, DType::f32);
    for (std::int64_t i = 0; i < tensor.size(); ++i) tensor.data<float>()[i] = normal(random);
    return tensor;
  };
  for (const auto& [heads, kv_heads] : std::vector<std::pair<int, int>>{{4, 4}, {8, 4}, {4, 2}}) {
    const AttentionCore::Shape whole = shape_of(all_tokens, heads, kv_heads);
    const Tensor qkv = numbers(packed_columns(whole)), dattended = numbers(heads * width_of_head);
    const LocalAttention alone;
    AttentionCore::Saved saved_alone;
    const Tensor attended = forward(alone, whole, qkv, saved_alone);
    const Tensor dqkv = backward(alone, dattended, saved_alone);
    for (const int ranks : {1, 2, 4}) {
      if (kv_heads % ranks != 0) continue;
      for (const int pieces : {1, 2, 3}) {
        run_threads(ranks, [&](const Communicator& world) {
          const UlyssesAttention core(world, std::make_shared<LocalAttention>(), Stream("ulysses"), pieces);
          const std::vector<std::int64_t> positions =
              SequenceDivision{.ulysses = ranks}.positions(all_tokens, 0, world.rank());
          AttentionCore::Saved saved;
          const Tensor out =
              forward(core, shape_of(all_tokens / ranks, whole.heads, whole.kv_heads), rows_at(qkv, positions), saved);
          const Tensor gradient = backward(core, rows_at(dattended, positions), saved);
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
}

TEST(UlyssesAttention, RefusesHeadsThatDoNotDivide) {
  run_threads(3, [](const Communicator& world) {
    const UlyssesAttention core(world, std::make_shared<LocalAttention>(), Stream("ulysses"));
    AttentionCore::Saved saved;
    const auto refusal = [&](const AttentionCore::Shape& shape) {
      return sentence_of([&] { forward(core, shape, Tensor({2, packed_columns(shape)}, DType::f32), saved); });
    };
    EXPECT_EQ(refusal({1, 2, 4, 4, 8}), "4 attention heads do not divide over 3 ulysses ranks.");
    EXPECT_EQ(refusal({1, 2, 6, 2, 8}), "2 heads of keys and values do not divide over 3 ulysses ranks.");
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
