// Blocks of other shapes than GPT-2's: each size and option of the shape has its effect, over ranks as on one.
#include "stretto/layers/transformer.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>

#include "device/kernels/kernel_data.hpp"
#include "layers/allocated.hpp"
#include "stretto/stretto.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

constexpr std::int64_t block_sequences = 2, block_length = 6, block_rows = block_sequences * block_length, block_width = 12;

// Groups of heads that are no divisors of the width, another width of the MLP, no biases.
DecoderShape unusual() {
  return {.layers = 1,
          .hidden = block_width,
          .heads = 4,
          .kv_heads = 2,
          .head_size = 5,
          .mlp_width = 14,
          .norm = {.epsilon = 1e-3},
          .biases = {.qkv = false, .projection = false, .mlp = false}};
}

using Wholes = std::map<std::string, std::vector<double>>;

void enter(Wholes& wholes, const std::string& name, const Shape& global_shape, const Shape& first, const Tensor& slice) {
  std::int64_t elements = 1;
  for (const std::int64_t extent : global_shape) elements *= extent;
  std::vector<double>& whole = wholes[name];
  whole.resize(static_cast<std::size_t>(elements), NAN);
  for_each_run(global_shape, first, slice.shape(), [&](std::int64_t here, std::int64_t there, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) whole[static_cast<std::size_t>(there + i)] = slice.at(here + i);
  });
}

// A block on one rank, both passes of one microbatch.
struct Passes {
  Passes(Parameters& parameters, const TransformerBlock& block, const TensorParallel& tensor_parallel) {
    ParameterUse use;
    TransformerBlock::Saved saved;
    const auto own = [&](unsigned seed) {
      return tensor_parallel.own_rows(random_tensor({block_rows, block_width}, DType::f64, seed)).clone();
    };
    y = block.forward(own(1), {block_sequences, block_length}, saved, use);
    dx = own(2);
    block.backward(dx, saved, use);
    for (const auto& parameter : parameters.all()) {
      if (!tensor_parallel.group || !parameter->sum_gradient_over.contains(Axis::tensor)) continue;
      tensor_parallel.group.all_reduce(parameter->gradient, ReduceOp::sum, Stream::inline_()).wait();
    }
  }
  Tensor y, dx;
};

Wholes computed(int ranks, const DecoderShape& shape, bool divides_rows = false) {
  Wholes wholes;
  std::mutex mutex;
  run_threads(ranks, [&](const Communicator& world) {
    const TensorParallel tensor_parallel{.group = world, .stream = Stream("tp"), .divides_rows = divides_rows};
    Parameters parameters;
    const TransformerBlock block(parameters, "", shape, tensor_parallel);
    allocate(parameters, DType::f64);
    initialise(parameters, 1);
    const Passes passes(parameters, block, tensor_parallel);
    const std::lock_guard lock(mutex);
    const Shape first{tensor_parallel.own_rows(block_rows).first, 0};
    enter(wholes, "y", {block_rows, block_width}, first, passes.y);
    enter(wholes, "dx", {block_rows, block_width}, first, passes.dx);
    for (const auto& each : parameters.all()) {
      enter(wholes, each->name, each->global_shape, each->first, each->gradient);
    }
  });
  return wholes;
}

double difference(const Wholes& a, const Wholes& b) {
  if (a.size() != b.size()) return INFINITY;
  double largest = 0;
  for (const auto& [name, values] : a) {
    const auto other = b.find(name);
    if (other == b.end() || other->second.size() != values.size()) return INFINITY;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double each = std::abs(values[i] - other->second[i]);
      largest = std::isnan(each) ? INFINITY : std::max(largest, each);
    }
  }
  return largest;
}

TEST(TransformerBlock, OfAnyShapeIsTheSameOverRanks) {
  const Wholes expected = computed(1, unusual());
  EXPECT_EQ(expected.size(), 2U + 4U + 4U);  // results, four weights, two norms
  EXPECT_EQ(expected.at("attn.c_attn.weight").size(), static_cast<std::size_t>(8 * 5 * block_width));
  EXPECT_EQ(expected.at("mlp.c_fc.weight").size(), static_cast<std::size_t>(14 * block_width));
  EXPECT_LT(difference(computed(2, unusual()), expected), 1e-12);
  EXPECT_LT(difference(computed(2, unusual(), true), expected), 1e-12);
  DecoderShape other = unusual();
  other.norm.epsilon = 1e-5;
  EXPECT_GT(difference(computed(1, other), expected), 1e-6) << "the control";
}

// Element `in` of row `row` of head `head` of part `part`, in a weight of parts of so many heads.
struct HeadRow {
  std::int64_t part, head, row;
  std::int64_t at(std::int64_t heads_a_part, std::int64_t head_size, std::int64_t in) const {
    return ((part * heads_a_part + head) * head_size + row) * block_width + in;
  }
};

// Groups of heads are what heads of their own are whose keys and values are repeated; the gradients of these add up.
TEST(TransformerBlock, OfGroupedHeadsIsThatOfRepeatedKeysAndValues) {
  const DecoderShape grouped = unusual();
  DecoderShape repeated = grouped;
  repeated.kv_heads = grouped.heads;
  const std::int64_t group = grouped.heads / grouped.kv_heads, size = grouped.head_size;
  const auto difference_with = [&](std::int64_t wrong) {
    Parameters few, many;
    const TransformerBlock of_few(few, "", grouped, {}), of_many(many, "", repeated, {});
    allocate(few, DType::f64);
    allocate(many, DType::f64);
    initialise(few, 1);
    initialise(many, 1);
    const auto qkv = [](const Parameters& parameters) {
      return std::ranges::find_if(parameters.all(), [](const auto& each) { return each->name == "attn.c_attn.weight"; })
          ->get();
    };
    const Parameter &from = *qkv(few), &to = *qkv(many);
    // Calls f(offset in the weight of groups, in that of repeated heads) for all elements of the latter.
    const auto for_each_pair = [&](auto f) {
      for (std::int64_t head = 0; head < grouped.heads; ++head) {
        for (std::int64_t part = 0; part < 3; ++part) {
          const std::int64_t its_group = (head / group + (part > 0 ? wrong : 0)) % grouped.kv_heads;
          for (std::int64_t row = 0; row < size; ++row) {
            for (std::int64_t in = 0; in < block_width; ++in) {
              const HeadRow there{part == 0 ? head % group : group + part - 1, its_group, row};
              f(there.at(grouped.kv_heads, size, in), HeadRow{part, head, row}.at(grouped.heads, size, in));
            }
          }
        }
      }
    };
    for_each_pair([&](std::int64_t a, std::int64_t b) { to.value.set(b, from.value.at(a)); });
    const Passes passes(few, of_few, {}), expected(many, of_many, {});
    const Tensor summed = Tensor::zeros(from.gradient.shape(), DType::f64);
    for_each_pair([&](std::int64_t a, std::int64_t b) { summed.set(a, summed.at(a) + to.gradient.at(b)); });
    double largest = 0;
    for (const auto& [found, right] : {std::pair{passes.y, expected.y}, {passes.dx, expected.dx}, {from.gradient, summed}}) {
      for (std::int64_t i = 0; i < found.size(); ++i) largest = std::max(largest, std::abs(found.at(i) - right.at(i)));
    }
    return largest;
  };
  EXPECT_LT(difference_with(0), 1e-12);
  EXPECT_GT(difference_with(1), 1e-3) << "the control";
}

TEST(DecoderShape, IsRefusedInASentence) {
  EXPECT_EQ(sentence_of([] { std::ignore = DecoderShape{.hidden = 10, .heads = 4}.filled(); }),
            "A hidden size of 10 does not divide into 4 attention heads; choose a multiple of the heads.");
  const auto refusal = [](auto change) {
    DecoderShape shape = unusual();
    change(shape);
    return sentence_of([&] { shape.check_block(2); });
  };
  EXPECT_EQ(refusal([](DecoderShape&) {}), "");
  EXPECT_EQ(refusal([](DecoderShape& shape) { shape.heads = 5; }),
            "5 attention heads do not divide over 2 tensor-parallel x 1 ulysses ranks; choose a multiple of 2.");
  EXPECT_EQ(refusal([](DecoderShape& shape) { shape.kv_heads = 3; }),
            "4 attention heads do not divide over 3 heads of keys and values; choose a divisor of the heads.");
  EXPECT_EQ(refusal([](DecoderShape& shape) { shape.kv_heads = 1; }),
            "1 heads of keys and values do not divide over 2 tensor-parallel x 1 ulysses ranks; choose a multiple of 2.");
  EXPECT_EQ(
      refusal([](DecoderShape& shape) { shape.mlp_width = 0; }),
      "A block of width 12 with heads of 5 elements and an MLP of width 0, one of 1, computes nothing; give all sizes.");
}

}  // namespace
}  // namespace stretto
