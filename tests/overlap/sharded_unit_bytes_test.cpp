// The bytes that a unit sends between nodes, with ZeRO++ and without.
#include <gtest/gtest.h>

#include <atomic>

#include "stretto/overlap/sharded_unit.hpp"
#include "stretto/stretto.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

using enum QuantizedFormat;

struct Step {
  QuantizedFormat weights = none, gradients = none;
  bool secondary = false;
  Method gather_by = Algorithm::automatic, sum_by = Algorithm::automatic;
  DType dtype = DType::bf16;
  std::int64_t share = 1;
};

// Bytes between nodes for two gathers and a reduce-scatter, summed over the ranks.
std::int64_t bytes_of_a_step(int ranks, const Step& step) {
  std::atomic<std::int64_t> bytes = 0;
  run_threads(ranks, [&](const Communicator& world) {
    ShardedUnit unit(world, world, {{step.share * ranks}}, step.dtype, step.dtype,
                     {.stage = ZeroStage::values,
                      .secondary = step.secondary ? world.node() : Communicator(),
                      .weights = step.weights,
                      .gradients = step.gradients,
                      .gather_by = step.gather_by,
                      .sum_by = step.sum_by});
    const std::uint64_t since = world.job().ledger().next_sequence();
    for (int pass = 0; pass < 2; ++pass) {
      unit.gather(Stream::inline_()).wait();
      unit.release();
    }
    unit.sum(Stream::inline_()).wait();
    bytes += static_cast<std::int64_t>(world.job().ledger().traffic(since).bytes_between_nodes);
  });
  return bytes;
}

// The number of times that one gather sends each rank's share to another node: once for each rank of the other nodes, or,
// with two_level, once for each other node.
std::int64_t crossings(int ranks, int ranks_per_node, Algorithm algorithm) {
  return algorithm == Algorithm::two_level ? ranks / ranks_per_node - 1 : ranks - ranks_per_node;
}

TEST(ShardedUnitBytes, BytesBetweenNodesAreThoseOfTheFormulaScalesIncluded) {
  constexpr int ranks_per_node = 2;
  const Variable nodes("STRETTO_RANKS_PER_NODE", std::to_string(ranks_per_node));
  for (const int ranks : {4, 8}) {
    // two_level sends sums of 16-bit elements as f32, so its case uses f32.
    for (const auto& [algorithm, dtype] : {std::pair{Algorithm::direct, DType::bf16}, {Algorithm::two_level, DType::f32}}) {
      for (const std::int64_t share : {1, 63, 512}) {
        for (const QuantizedFormat weights : {none, int8}) {
          for (const QuantizedFormat gradients : {none, int8, int4}) {
            for (const bool secondary : {false, true}) {
              const auto share_bytes = [&, type = dtype](QuantizedFormat format) {
                return format == none ? share * static_cast<std::int64_t>(size_of(type)) : packed_bytes(format, share);
              };
              const std::int64_t all = ranks * crossings(ranks, ranks_per_node, algorithm);
              const std::int64_t expected = all * ((secondary ? 1 : 2) * share_bytes(weights) + share_bytes(gradients));
              const auto by = [&, which = algorithm](QuantizedFormat format) {  // a plain two_level needs named parts
                if (format != none || which == Algorithm::direct) return Method(which);
                return method_from_text("two_level(direct+direct)");
              };
              EXPECT_EQ(bytes_of_a_step(ranks, {weights, gradients, secondary, by(weights), by(gradients), dtype, share}),
                        expected)
                  << ranks << " ranks, " << name(algorithm) << ", shares of " << share << ", weights " << name(weights)
                  << ", gradients " << name(gradients) << ", secondary " << secondary;
            }
          }
        }
      }
    }
  }
}

// 3 M without the techniques; each one saves as much as the paper says, and all three leave 0.75 M. Scales add 1/64 of the
// quantized bytes for int8 and 1/16 for int4.
TEST(ShardedUnitBytes, AllThreeTechniquesLeaveAQuarterAndTheScales) {
  const Variable nodes("STRETTO_RANKS_PER_NODE", "2");
  constexpr int ranks = 8;
  constexpr std::int64_t share = 1024;
  const double whole = 2.0 * share * ranks * crossings(ranks, 2, Algorithm::direct);
  const auto in_wholes = [&](QuantizedFormat weights, QuantizedFormat gradients, bool secondary) {
    return static_cast<double>(bytes_of_a_step(
               ranks, {weights, gradients, secondary, Algorithm::direct, Algorithm::direct, DType::bf16, share})) /
           whole;
  };
  EXPECT_EQ(in_wholes(none, none, false), 3);
  EXPECT_EQ(in_wholes(int8, none, false), 2 + (1.0 / 64));
  EXPECT_EQ(in_wholes(none, none, true), 2);
  EXPECT_EQ(in_wholes(none, int4, false), 2.25 + (1.0 / 64));
  EXPECT_EQ(in_wholes(int8, int4, true), 0.75 + (1.0 / 128) + (1.0 / 64));
}

}  // namespace
}  // namespace stretto
