// ZeRO-3 and the three techniques of ZeRO++: gathered values, averaged gradients and bytes between nodes.
#include "stretto/layers/zero.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "stretto/stretto.hpp"
#include "variables.hpp"

namespace stretto {
namespace {

using enum QuantizedFormat;

// Tensors of 1, 7, 15 and 75 elements: with 98 in all, the unit may end in the middle of a rank's share.
const std::vector<Shape> odd_shapes = {{1}, {7}, {3, 5}, {75}};

Tensor filled(const Shape& shape, DType dtype, int seed) {
  Tensor result(shape, dtype);
  for (std::int64_t i = 0; i < result.size(); ++i) result.set(i, std::sin(static_cast<double>(i * 7 + seed)));
  return result;
}
std::vector<Tensor> filled(const std::vector<Shape>& shapes, DType dtype, int seed = 1) {
  std::vector<Tensor> result;
  for (const Shape& shape : shapes) result.push_back(filled(shape, dtype, seed++));
  return result;
}

bool same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].shape() != b[i].shape() || a[i].dtype() != b[i].dtype()) return false;
    if (std::memcmp(a[i].raw(), b[i].raw(), a[i].bytes()) != 0) return false;
  }
  return true;
}
std::vector<Tensor> copies_of(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> result;
  for (const Tensor& tensor : tensors) result.push_back(tensor.clone());
  return result;
}

std::vector<Tensor> gathered(ZeroUnit& unit, bool forward, const Stream& stream) {
  (forward ? unit.gather_forward(stream) : unit.gather_backward(stream)).wait();
  std::vector<Tensor> result = copies_of(unit.values());
  unit.release();
  return result;
}

TEST(ZeroUnit, GathersWhatWasAdoptedWhateverTheShapes) {
  for (const bool secondary : {false, true}) {
    for (const int ranks_per_node : {1, 2, 3}) {
      const Variable nodes("STRETTO_RANKS_PER_NODE", std::to_string(ranks_per_node));
      run_threads(6, [&](const Communicator& world) {
        const Stream stream("zero");
        for (const DType dtype : {DType::f32, DType::bf16}) {
          for (const std::vector<Shape>& shapes : {odd_shapes, {{1}}, {{13}}, {{6, 4}}}) {
            ZeroUnit unit(world, shapes, dtype, DType::f32, {.secondary = secondary});
            const std::vector<Tensor> whole = filled(shapes, dtype);
            unit.adopt(whole);
            EXPECT_TRUE(same_bits(gathered(unit, true, stream), whole));
            EXPECT_TRUE(same_bits(gathered(unit, false, stream), whole));
            unit.adopt(filled(shapes, dtype, 9));
            EXPECT_FALSE(same_bits(gathered(unit, true, Stream::inline_()), whole)) << "the control: others were adopted";
          }
        }
      });
    }
  }
}

TEST(ZeroUnit, AveragesGradientsIntoShares) {
  run_threads(4, [](const Communicator& world) {
    ZeroUnit unit(world, odd_shapes, DType::bf16, DType::f32, {});
    for (int step = 0; step < 2; ++step) {
      std::int64_t number = 0;
      for (const Tensor& gradient : unit.gradients()) {
        for (std::int64_t i = 0; i < gradient.size(); ++i) {
          EXPECT_EQ(gradient.at(i), 0);
          gradient.set(i, static_cast<double>(number++ * 4 + world.rank() * 2 + step));
        }
      }
      unit.reduce_scatter(Stream::inline_()).wait();
      const std::int64_t begin = world.rank() * unit.share().size();
      for (std::int64_t i = 0; i < unit.share().size(); ++i) {
        const std::int64_t element = begin + i;
        EXPECT_EQ(unit.gradient_share().at(i), element < number ? static_cast<double>(element * 4 + 3 + step) : 0);
      }
    }
  });
}

// hpZ gathers the same bits as plain ZeRO-3. The control: the second copy is forward's, not that of the current shares.
TEST(ZeroUnit, TheSecondCopyIsWhatForwardGathered) {
  const Variable nodes("STRETTO_RANKS_PER_NODE", "2");
  for (const QuantizedFormat weights : {none, int8}) {
    run_threads(4, [&](const Communicator& world) {
      const Stream stream("zero");
      ZeroUnit plain(world, odd_shapes, DType::bf16, DType::f32, {.weights = weights});
      ZeroUnit both(world, odd_shapes, DType::bf16, DType::f32, {.weights = weights, .secondary = true});
      plain.adopt(filled(odd_shapes, DType::bf16));
      both.adopt(filled(odd_shapes, DType::bf16));
      const std::vector<Tensor> forward = gathered(plain, true, stream);
      EXPECT_EQ(same_bits(forward, filled(odd_shapes, DType::bf16)), weights == none);
      EXPECT_TRUE(same_bits(gathered(both, true, stream), forward));
      EXPECT_TRUE(same_bits(gathered(plain, false, stream), forward));
      EXPECT_TRUE(same_bits(gathered(both, false, stream), forward));
      plain.share().zero();
      both.share().zero();
      EXPECT_FALSE(same_bits(gathered(plain, false, stream), forward));
      EXPECT_TRUE(same_bits(gathered(both, false, stream), forward));
    });
  }
}

// ---- bytes between nodes

struct Step {
  ZeroUnit::Options options;
  DType dtype;
  std::int64_t share;
};

// Bytes between nodes for two gathers and a reduce-scatter, summed over the ranks.
std::int64_t bytes_of_a_step(int ranks, const Step& step) {
  std::atomic<std::int64_t> bytes = 0;
  run_threads(ranks, [&](const Communicator& world) {
    ZeroUnit unit(world, {{step.share * ranks}}, step.dtype, step.dtype, step.options);
    const std::uint64_t since = world.ledger().next_sequence();
    unit.gather_forward(Stream::inline_()).wait();
    unit.release();
    unit.gather_backward(Stream::inline_()).wait();
    unit.release();
    unit.reduce_scatter(Stream::inline_()).wait();
    bytes += static_cast<std::int64_t>(world.ledger().traffic(since).bytes_between_nodes);
  });
  return bytes;
}

// The number of times that one gather sends each rank's share to another node: once for each rank of the other nodes, or,
// with two_level, once for each other node.
std::int64_t crossings(int ranks, int ranks_per_node, Algorithm algorithm) {
  return algorithm == Algorithm::two_level ? ranks / ranks_per_node - 1 : ranks - ranks_per_node;
}

TEST(ZeroUnit, BytesBetweenNodesAreThoseOfTheFormulaScalesIncluded) {
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
              const ZeroUnit::Options options{weights, gradients, secondary, by(weights), by(gradients)};
              EXPECT_EQ(bytes_of_a_step(ranks, {options, dtype, share}), expected)
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
TEST(ZeroUnit, AllThreeTechniquesLeaveAQuarterAndTheScales) {
  const Variable nodes("STRETTO_RANKS_PER_NODE", "2");
  constexpr int ranks = 8;
  constexpr std::int64_t share = 1024;
  const double whole = 2.0 * share * ranks * crossings(ranks, 2, Algorithm::direct);
  const auto in_wholes = [&](QuantizedFormat weights, QuantizedFormat gradients, bool secondary) {
    return bytes_of_a_step(ranks,
                           {{weights, gradients, secondary, Algorithm::direct, Algorithm::direct}, DType::bf16, share}) /
           whole;
  };
  EXPECT_EQ(in_wholes(none, none, false), 3);
  EXPECT_EQ(in_wholes(int8, none, false), 2 + (1.0 / 64));
  EXPECT_EQ(in_wholes(none, none, true), 2);
  EXPECT_EQ(in_wholes(none, int4, false), 2.25 + (1.0 / 64));
  EXPECT_EQ(in_wholes(int8, int4, true), 0.75 + (1.0 / 128) + (1.0 / 64));
}

// A gather for forward that directly follows a gather for backward, on another stream, does not change the latter's values.
TEST(ZeroUnit, GathersFollowEachOtherOnWhateverStreams) {
  const Variable nodes("STRETTO_RANKS_PER_NODE", "2");
  run_threads(4, [](const Communicator& world) {
    const Stream one("one");
    const Stream two("two");
    const std::vector<Shape> shapes = {{40000}};
    const std::vector<Tensor> before = filled(shapes, DType::f32, 1);
    const std::vector<Tensor> after = filled(shapes, DType::f32, 2);
    ZeroUnit unit(world, shapes, DType::f32, DType::f32, {.secondary = true});
    for (int round = 0; round < 5; ++round) {
      unit.adopt(before);
      unit.gather_forward(one).wait();
      unit.release();
      unit.adopt(after);
      one.enqueue([] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); });  // delays the gather
      const Work backward = unit.gather_backward(one);
      const std::vector<Tensor> backward_values = unit.values();
      unit.release();
      unit.gather_forward(two).wait();
      EXPECT_TRUE(backward.done());
      EXPECT_TRUE(same_bits(backward_values, before));
      EXPECT_TRUE(same_bits(unit.values(), after)) << "the control";
      unit.release();
    }
  });
}

TEST(ZeroUnit, WhatCannotBeGatheredIsRefusedBeforeThereIsMemory) {
  run_threads(2, [](const Communicator& world) {
    const auto unit_of = [&](DType dtype, DType gradients, const ZeroUnit::Options& options) {
      return sentence_of([&] { ZeroUnit(world, {{std::int64_t{1} << 50}}, dtype, gradients, options); });
    };
    using testing::HasSubstr;
    EXPECT_THAT(unit_of(DType::f64, DType::f32, {.weights = int8}), HasSubstr("all_gather of f64 cannot be quantized"));
    EXPECT_THAT(unit_of(DType::f32, DType::f64, {.gradients = int4}), HasSubstr("reduce_scatter of f64 cannot be"));
    EXPECT_THAT(unit_of(DType::f32, DType::f32, {.weights = static_cast<QuantizedFormat>(9)}), HasSubstr("number 9"));
    EXPECT_THAT(unit_of(static_cast<DType>(99), DType::f32, {}), HasSubstr("number 99"));
    EXPECT_THAT(unit_of(DType::f32, DType::f32, {.gather_by = Algorithm::pairwise}), HasSubstr("all_gather cannot be done"));
    EXPECT_THAT(unit_of(DType::f32, DType::f32, {.reduce_by = Algorithm::bruck}), HasSubstr("reduce_scatter cannot be"));
    EXPECT_THAT(unit_of(DType::f32, DType::f32, {.weights = int8, .gather_by = Algorithm::ring}), HasSubstr("ring"));
    ZeroUnit(world, odd_shapes, DType::f64, DType::f64, {});  // the control: f64 is valid without quantization
  });
}

TEST(ZeroUnit, WhatDoesNotFitIsRefusedInASentence) {
  run_threads(2, [](const Communicator& world) {
    ZeroUnit unit(world, odd_shapes, DType::f32, DType::f32, {.secondary = true});
    const Stream stream = Stream::inline_();
    EXPECT_NE(sentence_of([&] { unit.gather_backward(stream); }).find("forward first"), std::string::npos);
    unit.gather_forward(stream).wait();
    EXPECT_NE(sentence_of([&] { unit.gather_forward(stream); }).find("release it first"), std::string::npos);
    EXPECT_NE(sentence_of([&] { unit.adopt({}); }).find("cannot take 0"), std::string::npos);
    EXPECT_NE(sentence_of([&] { unit.adopt(filled(odd_shapes, DType::bf16)); }).find("bf16"), std::string::npos);
    EXPECT_NE(sentence_of([&] { ZeroUnit(world, {}, DType::f32, DType::f32, {}); }).find("0 tensors"), std::string::npos);
  });
}

}  // namespace
}  // namespace stretto
