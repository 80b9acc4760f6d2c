// The cost of attention over divided sequences: bytes against the ledgers of real ranks, work against all pairs, and times
// against a step by hand.
#include "stretto/planning/attention_cost.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <array>
#include <numeric>
#include <random>

#include "planning/step/planned_clusters.hpp"
#include "stretto/layers/attention.hpp"
#include "stretto/stretto.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

constexpr std::array<SequenceLayout, 3> sequence_layouts = {SequenceLayout::zigzag, SequenceLayout::contiguous,
                                                            SequenceLayout::striped};
const std::vector<std::string> planned_masks = {"dense",     "window:7",  "window:13+global:1",
                                                "strided:5", "strided:6", "global:3+window:4"};

DividedAttention planned(const SequenceDivision& division, const std::string& mask = "dense", std::int64_t sequence = 48,
                         DType dtype = DType::bf16, std::int64_t kv_heads = 4) {
  return {.batch = 2,
          .sequence = sequence,
          .hidden = 32,
          .heads = 4,
          .kv_heads = kv_heads,
          .dtype = dtype,
          .mask = attention_mask_from_text(mask),
          .division = division};
}

AttentionCore::Shape shape_of(const DividedAttention& attention, std::int64_t rows) {
  return {attention.batch, rows, attention.heads, attention.groups(), attention.hidden / attention.heads};
}

// What this rank sends in each pass of a core, with tensors of nothing but their shapes.
AttentionBytes sent_by(const AttentionCore& core, const DividedAttention& attention, const Communicator& world) {
  const std::int64_t rows = attention.division.rows(attention.sequence);
  const AttentionCore::Shape shape = shape_of(attention, rows);
  const std::int64_t columns = (shape.heads + 2 * shape.kv_heads) * shape.head_size;
  const Tensor qkv = Tensor::zeros({attention.batch * rows, columns}, attention.dtype);
  AttentionCore::Saved saved;
  std::uint64_t first = world.job().ledger().next_sequence();
  const Tensor attended = core.forward(shape, packed_heads(shape, qkv), saved);
  AttentionBytes sent;
  sent.forward = static_cast<std::int64_t>(world.job().ledger().traffic(first).bytes_sent);
  first = world.job().ledger().next_sequence();
  core.backward(attended, saved, packed_heads(shape, qkv));
  sent.backward = static_cast<std::int64_t>(world.job().ledger().traffic(first).bytes_sent);
  return sent;
}

TEST(AttentionCost, RingBytesAreThoseOfEveryRanksLedger) {
  for (const int ranks : {2, 3, 4}) {
    for (const SequenceLayout layout : sequence_layouts) {
      for (const std::string& mask : planned_masks) {
        const DividedAttention attention =
            planned({.ring = ranks, .layout = layout}, mask, 48, DType::bf16, ranks == 2 ? 4 : 2);
        run_threads(ranks, [&](const Communicator& world) {
          const RingAttention core(world, attention.division, attention.mask, true);
          const AttentionBytes sent = sent_by(core, attention, world);
          const AttentionBytes expected = ring_bytes(attention, world.rank());
          EXPECT_EQ(expected.forward, sent.forward) << ranks << name(layout) << mask << world.rank();
          EXPECT_EQ(expected.backward, sent.backward) << ranks << name(layout) << mask << world.rank();
        });
      }
    }
  }
}

TEST(AttentionCost, UlyssesBytesAreThoseOfTheLedger) {
  for (const auto& [dtype, kv_heads] : {std::pair{DType::f64, 4}, {DType::bf16, 4}, {DType::bf16, 2}}) {
    const DividedAttention attention = planned({.ulysses = kv_heads}, "dense", 48, dtype, kv_heads);
    run_threads(kv_heads, [&](const Communicator& world) {
      const UlyssesAttention core(world, std::make_shared<LocalAttention>(), Stream("ulysses"));
      const AttentionBytes sent = sent_by(core, attention, world);
      EXPECT_EQ(ulysses_bytes(attention).forward, sent.forward);
      EXPECT_EQ(ulysses_bytes(attention).backward, sent.backward);
    });
  }
}

// The two together, with other heads elsewhere: each rank's share of what one ring sends.
TEST(AttentionCost, HeadsThatAreElsewhereAreNotSent) {
  DividedAttention attention = planned({.ring = 2, .ulysses = 2});
  const AttentionBytes both = ring_bytes(attention, 0);
  const AttentionBytes exchanged = ulysses_bytes(attention);
  attention.division.ulysses = 1;
  EXPECT_EQ(ring_bytes(attention, 0).forward, 2 * both.forward);
  EXPECT_EQ(ring_bytes(attention, 0).backward, 2 * both.backward);
  attention.tensor = 2;
  EXPECT_EQ(ring_bytes(attention, 0).backward, both.backward);
  attention.division.ulysses = 2;
  EXPECT_EQ(2 * ulysses_bytes(attention).forward, exchanged.forward);
}

TEST(AttentionCost, WorkIsThatOfAllPairs) {
  std::mt19937 generator(7);
  const auto draw = [&](std::int64_t first, std::int64_t last) {
    return std::uniform_int_distribution<std::int64_t>(first, last)(generator);
  };
  for (int i = 0; i < 200; ++i) {
    const SequenceDivision division{.ring = static_cast<int>(draw(1, 5)), .layout = sequence_layouts[draw(0, 2)]};
    const std::int64_t sequence = division.multiple() * draw(1, 6), rows = sequence / division.ring;
    const kernels::AttentionMask mask{.window = draw(0, 20), .stride = draw(0, 12), .global = draw(0, 9)};
    const AttentionWork work = attention_work(division, mask, sequence);
    std::vector<std::int64_t> most(division.ring, 0);
    for (int rank = 0; rank < division.ring; ++rank) {
      std::vector<std::int64_t> in_hop(division.ring, 0);
      const kernels::Positions queries = division.of_ring_rank(sequence, rank);
      for (int hop = 0; hop < division.ring; ++hop) {
        const kernels::Positions keys = division.of_ring_rank(sequence, (rank - hop + division.ring) % division.ring);
        for (std::int64_t q = 0; q < rows; ++q) {
          for (std::int64_t k = 0; k < rows; ++k) in_hop[hop] += mask.sees(queries.at(q), keys.at(k)) ? 1 : 0;
        }
        most[hop] = std::max(most[hop], in_hop[hop]);
      }
      EXPECT_EQ(work.of_rank[rank], std::accumulate(in_hop.begin(), in_hop.end(), std::int64_t{0})) << i;
    }
    EXPECT_EQ(work.most_in_hop, most) << i;
  }
}

double balance_of(SequenceLayout layout, int ranks, const std::string& mask = "dense") {
  return attention_work({.ring = ranks, .layout = layout}, attention_mask_from_text(mask), 8192).balance();
}

TEST(AttentionCost, BalanceOfCausalAttention) {
  for (const int ranks : {2, 8}) {
    const double diagonal = static_cast<double>(ranks) / 8192;
    EXPECT_NEAR(balance_of(SequenceLayout::contiguous, ranks), contiguous_causal_efficiency(ranks), diagonal);
    EXPECT_GE(balance_of(SequenceLayout::zigzag, ranks), 0.95);
    EXPECT_DOUBLE_EQ(balance_of(SequenceLayout::zigzag, ranks), 1);
    EXPECT_NEAR(balance_of(SequenceLayout::striped, ranks), 1, diagonal);
    EXPECT_LT(balance_of(SequenceLayout::striped, ranks), 1);
  }
  EXPECT_EQ(balance_of(SequenceLayout::contiguous, 1), 1);
}

// Contiguous parts are even if most keys that a query sees are its rank's own.
TEST(AttentionCost, BalanceOfAWindow) {
  EXPECT_GT(balance_of(SequenceLayout::contiguous, 8, "window:64"), 0.95);
  EXPECT_LT(balance_of(SequenceLayout::contiguous, 8, "window:4096"), 0.8);
}

TEST(AttentionCost, CountsOperationsAndMemory) {
  const AttentionCost alone = attention_cost(planned({}));
  constexpr double pairs = 48 * 49 * 0.5;
  EXPECT_EQ(alone.forward.flops, 4 * 2 * pairs * 32);
  EXPECT_EQ(alone.backward.flops, 10 * 2 * pairs * 32);
  EXPECT_EQ(alone.buffers, 0);
  const AttentionCost exchanged = attention_cost(planned({.ulysses = 2}));
  EXPECT_EQ(exchanged.forward.flops, alone.forward.flops / 2);
  EXPECT_EQ(exchanged.kept, alone.kept / 2);
  EXPECT_EQ(exchanged.result_again, 2 * 24 * 32 * 2);
  const AttentionCost ring = attention_cost(planned({.ring = 4}));
  EXPECT_EQ(ring.forward.flops, alone.forward.flops / 4);
  EXPECT_EQ(ring.kept, alone.kept / 4);
  const std::int64_t elements = 2 * 2 * 12 * 32;  // of keys and values
  EXPECT_EQ(ring.buffers, 2 * elements * 2 + 4 * elements * 4);
}

TEST(AttentionCost, KeepsWhatACoreSaves) {
  for (const std::int64_t kv_heads : {4, 2, 1}) {
    const DividedAttention attention = planned({.ring = 2}, "dense", 48, DType::bf16, kv_heads);
    run_threads(2, [&](const Communicator& world) {
      const RingAttention core(world, attention.division, attention.mask, true);
      AttentionCore::Saved saved;
      const AttentionCore::Shape shape = shape_of(attention, 24);
      const Tensor qkv = Tensor::zeros({2 * 24, (4 + 2 * kv_heads) * 8}, attention.dtype);
      core.forward(shape, packed_heads(shape, qkv), saved);
      EXPECT_EQ(static_cast<std::size_t>(attention_cost(attention).kept),
                saved.of.q.tensor.bytes() + saved.attended.bytes() + saved.log_sum_exp.bytes());
    });
  }
}

// ---- Times, on one link: `alpha` seconds for a message, and some bytes a second.

constexpr double alpha = 1e-3, bytes_a_second = 1e6;
double message(std::int64_t bytes) { return alpha + static_cast<double>(bytes) / bytes_a_second; }

AttentionCost timed(const DividedAttention& attention, double flops_per_second,
                    int pieces = UlyssesAttention::usual_pieces) {
  const AttentionMachine machine{simple_cluster(attention.ranks(), alpha, bytes_a_second), flops_per_second};
  return attention_cost(attention, &machine, pieces);
}

// Four tensor-parallel ranks, each with one head of queries, share a head of keys and values, whole.
TEST(AttentionTime, OfAHeadThatRanksShareIsThatOfItsQueries) {
  for (const SequenceDivision& division : {SequenceDivision{}, SequenceDivision{.ring = 3}}) {
    DividedAttention attention = planned(division, "dense", 48, DType::bf16, 1);
    const AttentionCost alone = timed(attention, 1e5);
    attention.tensor = 4;
    const AttentionCost shared = timed(attention, 1e5);
    EXPECT_NEAR(shared.forward.computing, shared.forward.flops / 1e5, 1e-6);
    EXPECT_NEAR(shared.forward.computing, alone.forward.computing / 4, 1e-6);
    EXPECT_EQ(shared.forward.ring_bytes, alone.forward.ring_bytes);
  }
}

// With slow computation, all is hidden; with fast computation, nothing is.
TEST(AttentionTime, OfARingIsThatOfItsHops) {
  const DividedAttention attention = planned({.ring = 3});
  const std::int64_t block = 2 * 2 * 16 * 32 * 2, sum = 2 * block;
  const AttentionCost slow = timed(attention, 1e5);
  EXPECT_NEAR(slow.forward.exposed(), 0, 1e-9);
  EXPECT_NEAR(slow.forward.computing, slow.forward.flops / 1e5, 1e-6);
  EXPECT_NEAR(slow.backward.exposed(), 0, 1e-9);
  EXPECT_NEAR(slow.backward.computing, slow.backward.flops / 1e5, 1e-6);
  const AttentionCost fast = timed(attention, 1e15);
  EXPECT_NEAR(fast.forward.exposed(), 2 * message(block), 1e-6);
  // The first sum travels while the third block is attended to: no block does.
  EXPECT_NEAR(fast.backward.exposed(), 2 * message(block) + 2 * message(sum), 1e-6);
}

TEST(AttentionTime, OfHopsThatTheMaskEmptiesIsNone) {
  const DividedAttention dense = planned({.ring = 4, .layout = SequenceLayout::contiguous});
  const DividedAttention window = planned({.ring = 4, .layout = SequenceLayout::contiguous}, "window:13");
  EXPECT_NEAR(timed(window, 1e15).forward.exposed() * 3, timed(dense, 1e15).forward.exposed(), 1e-6);
}

TEST(AttentionTime, SlowestRankOfAHopDecides) {
  const auto computing = [](SequenceLayout layout) {
    return timed(planned({.ring = 8, .layout = layout}, "dense", 8192), 1e9).forward.computing;
  };
  EXPECT_NEAR(computing(SequenceLayout::contiguous) / computing(SequenceLayout::zigzag), 15.0 / 8, 0.01);
}

// The first run of heads comes in, and the last one goes out, before and behind everything else.
TEST(AttentionTime, OfUlyssesShrinksWithItsPieces) {
  const DividedAttention attention = planned({.ulysses = 2}, "dense", 4096);  // 2 of the 4 heads to a rank
  const auto exchanged = [](std::int64_t tensors, std::int64_t heads) {
    return message(2 * 2048 * tensors * heads * 8 * 2);
  };
  const AttentionCost whole = timed(attention, 1e6, 1);
  EXPECT_NEAR(whole.forward.exposed(), exchanged(3, 2) + exchanged(1, 2), 1e-3);
  EXPECT_NEAR(whole.backward.exposed(), exchanged(1, 2) + exchanged(3, 2), 1e-3);
  for (const int pieces : {2, 100}) {  // as many as there are heads
    EXPECT_NEAR(timed(attention, 1e6, pieces).forward.exposed(), exchanged(3, 1) + exchanged(1, 1), 1e-3) << pieces;
  }
  // Where attention takes no time, nothing is hidden, and every piece is a message more.
  EXPECT_NEAR(timed(attention, 1e18, 2).forward.exposed(), 2 * (exchanged(3, 1) + exchanged(1, 1)), 1e-3);
}

// All rings whose ranks lie on a node send through its ports.
TEST(AttentionTime, RingsOfANodeShareItsPorts) {
  const auto exposed = [](int ports) {
    const LinkModel links = link_model_from_text(fmt::format(
        R"({{"levels": [{{"name": "node", "ranks": 2, "alpha_us": 0, "overhead_us": 0, "bandwidth_gbs": 1000, "ports": {}}},
                        {{"name": "network", "alpha_us": 0, "overhead_us": 0, "bandwidth_gbs": 1e-3, "own_ports": true}}], "local_gbs": 1000}})",
        ports));
    const DividedAttention attention = planned({.ring = 2, .ulysses = 2});
    const AttentionMachine machine{{links, attention.ranks()}, 1e15};
    return attention_cost(attention, &machine).forward.exposed();
  };
  EXPECT_NEAR(exposed(1) / exposed(2), 2, 1e-3);
}

TEST(AttentionCost, RefusesWhatDoesNotDivide) {
  const auto refusal = [](DividedAttention attention, int tensor, std::int64_t heads) {
    attention.tensor = tensor;
    attention.heads = heads;
    return sentence_of([&] { attention_cost(attention); });
  };
  EXPECT_EQ(refusal(planned({.ulysses = 2}), 4, 4),
            "4 attention heads do not divide over 4 tensor-parallel x 2 ulysses ranks; choose a multiple of 8.");
  EXPECT_EQ(refusal(planned({}), 1, 5),
            "A hidden size of 32 does not divide into 5 attention heads; choose a multiple of the heads.");
  EXPECT_EQ(refusal(planned({.ring = 5}), 1, 4),
            "A sequence of 48 tokens does not divide over 5 ring (zigzag) x 1 ulysses ranks; choose a multiple of 10.");
}

}  // namespace
}  // namespace stretto
