// Blocks of other shapes than GPT-2's: each size and option of the shape has its effect, over ranks as on one.
#include "stretto/layers/transformer.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "device/kernels/kernel_data.hpp"
#include "layers/allocated.hpp"
#include "layers/wholes.hpp"
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

// The same with RMS norms and a gated MLP.
DecoderShape gated() {
  DecoderShape shape = unusual();
  shape.norm.kind = Norm::Kind::rms;
  shape.activation = kernels::Activation::silu_gate;
  return shape;
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

// The gate and what it gates are divided over the ranks each, and meet again on every rank.
TEST(TransformerBlock, WithAGateIsTheSameOverRanks) {
  const Wholes expected = computed(1, gated());
  EXPECT_EQ(expected.size(), 2U + 4U + 2U);  // results, four weights, two norms
  EXPECT_EQ(expected.at("mlp.c_fc.weight").size(), static_cast<std::size_t>(2 * 14 * block_width));
  EXPECT_EQ(expected.at("mlp.c_proj.weight").size(), static_cast<std::size_t>(14 * block_width));
  EXPECT_LT(difference(computed(2, gated()), expected), 1e-12);
  EXPECT_LT(difference(computed(2, gated(), true), expected), 1e-12);
  DecoderShape with_biases = gated();
  with_biases.biases.mlp = true;
  EXPECT_LT(difference(computed(2, with_biases), computed(1, with_biases)), 1e-12);
  EXPECT_FALSE(difference(computed(1, unusual()), expected) < 1e-6) << "the control";
}

// The tensors of an MLP layer after both passes: its result, the gradient of its input, and those of its parameters.
struct MlpPasses {
  explicit MlpPasses(const DecoderShape& shape) : layer(parameters, "ln", "mlp", shape, {}) {
    allocate(parameters, DType::f64);
    initialise(parameters, 1);
    for (const auto& each : parameters.all()) kernels::scale(each->value, 20);  // the gates shall not be flat
  }
  Tensor forward(MlpLayer::Saved& saved) {
    ParameterUse use;
    return layer.forward(x, block_rows, saved, use);
  }
  void compute() {
    MlpLayer::Saved saved;
    y = forward(saved);
    dx = dy.clone();
    ParameterUse use;
    layer.backward(dx, saved, use);
  }

  Parameters parameters;
  MlpLayer layer;
  Tensor x = random_tensor({block_rows, block_width}, DType::f64, 1), dy = random_tensor(x.shape(), DType::f64, 2);
  Tensor y, dx;
};

// x + down(silu(gate(n)) up(n)) with n = weight x / sqrt(mean of x^2 + epsilon), in plain loops.
std::vector<double> plain_mlp(const MlpPasses& of, const DecoderShape& shape, bool swapped = false) {
  const auto weight = [&](std::size_t i) { return of.parameters.all()[i]->value; };
  const Tensor norm = weight(0), products = weight(1), down = weight(2);
  const std::int64_t width = shape.mlp_width;
  std::vector<double> result = values(of.x);
  for (std::int64_t row = 0; row < block_rows; ++row) {
    const auto x = [&](std::int64_t c) { return of.x.at(row * block_width + c); };
    double square = 0;
    for (std::int64_t c = 0; c < block_width; ++c) square += x(c) * x(c) / static_cast<double>(block_width);
    const auto product = [&](std::int64_t output) {
      double sum = 0;
      for (std::int64_t c = 0; c < block_width; ++c)
        sum += products.at(output * block_width + c) * norm.at(c) * x(c) / std::sqrt(square + shape.norm.epsilon);
      return sum;
    };
    for (std::int64_t i = 0; i < width; ++i) {
      const double gate = product(swapped ? width + i : i), up = product(swapped ? i : width + i);
      const double activated = gate / (1 + std::exp(-gate)) * up;
      for (std::int64_t c = 0; c < block_width; ++c)
        result[static_cast<std::size_t>(row * block_width + c)] += down.at(c * width + i) * activated;
    }
  }
  return result;
}

TEST(MlpLayer, WithAGateEqualsPlainLoopsAndTheirSlopes) {
  MlpPasses mlp(gated());
  mlp.compute();
  const std::vector<double> expected = plain_mlp(mlp, gated()), swapped = plain_mlp(mlp, gated(), true);
  double largest = 0;
  for (std::int64_t i = 0; i < mlp.y.size(); ++i) {
    EXPECT_NEAR(mlp.y.at(i), expected[static_cast<std::size_t>(i)], 1e-11);
    largest = std::max(largest, std::abs(mlp.y.at(i) - swapped[static_cast<std::size_t>(i)]));
  }
  EXPECT_GT(largest, 1e-2) << "the control";
  const auto slope = [&](const Tensor& tensor, std::int64_t i) {
    const double h = 1e-6, value = tensor.at(i);
    const auto loss = [&](double changed) {
      tensor.set(i, changed);
      const std::vector<double> y = plain_mlp(mlp, gated());
      double sum = 0;
      for (std::int64_t j = 0; j < mlp.dy.size(); ++j) sum += y[static_cast<std::size_t>(j)] * mlp.dy.at(j);
      return sum;
    };
    const double result = (loss(value + h) - loss(value - h)) / (2 * h);
    tensor.set(i, value);
    return result;
  };
  for (std::int64_t i = 0; i < mlp.x.size(); i += 17) EXPECT_NEAR(mlp.dx.at(i), slope(mlp.x, i), 1e-6);
  for (const auto& each : mlp.parameters.all()) {
    for (std::int64_t i = 0; i < each->value.size(); i += 13) {
      const double gradient = each->gradient.at(i);
      EXPECT_NEAR(gradient, slope(each->value, i), 1e-6 * std::max(1.0, std::abs(gradient))) << each->name << " " << i;
    }
  }
}

// What is computed again, and what is left for later, has the bits of what is kept and done at once.
TEST(TransformerBlock, WithAGateHasTheSameBitsAtEveryLevelAndInHalves) {
  const auto bits = [](Recompute level, bool in_halves, bool finished = true) {
    Parameters parameters;
    const TransformerBlock block(parameters, "", gated(), {}, {.level = level});
    allocate(parameters, DType::f32);
    initialise(parameters, 1);
    ParameterUse use;
    TransformerBlock::Saved saved;
    const Tensor x = random_tensor({block_rows, block_width}, DType::f32, 1), dx = random_tensor(x.shape(), DType::f32, 2);
    std::vector<Tensor> result{block.forward(x, {block_sequences, block_length}, saved, use), dx};
    WeightGradients later;
    block.backward(dx, saved, use, in_halves ? &later : nullptr);
    if (finished) later.compute(use);
    for (const auto& each : parameters.all()) result.push_back(each->gradient);
    return result;
  };
  const std::vector<Tensor> expected = bits(Recompute::none, false);
  for (const Recompute level : {Recompute::none, Recompute::selective, Recompute::full}) {
    EXPECT_TRUE(same_bits(bits(level, false), expected)) << name(level);
    EXPECT_TRUE(same_bits(bits(level, true), expected)) << name(level) << ", in halves";
  }
  EXPECT_FALSE(same_bits(bits(Recompute::none, true, false), expected)) << "the control";
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
  EXPECT_EQ(refusal([](DecoderShape& shape) { shape.heads = 6, shape.kv_heads = 3; }),
            "3 heads of keys and values do not divide over 2 tensor-parallel x 1 ulysses ranks; choose a multiple of 2, or "
            "without ulysses ranks a divisor.");
  EXPECT_EQ(
      refusal([](DecoderShape& shape) { shape.mlp_width = 0; }),
      "A block of width 12 with heads of 5 elements and an MLP of width 0, one of 1, computes nothing; give all sizes.");
}

}  // namespace
}  // namespace stretto
