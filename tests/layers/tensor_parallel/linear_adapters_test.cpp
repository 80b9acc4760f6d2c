// Adapters of linear layers against layers with the merged weight W + scale B A, whose gradient dW says theirs:
// dA = scale B^T dW and dB = scale dW A^T. Integers, so that all sums are exact.
#include "layers/tensor_parallel/linear_adapters.hpp"

#include <gtest/gtest.h>

#include "device/kernels/kernel_data.hpp"
#include "layers/allocated.hpp"
#include "stretto/stretto.hpp"
#include "support/data.hpp"

namespace stretto::linear_adapters {
namespace {

using kernels::Transpose;

constexpr std::int64_t tokens = 6, in = 10, out = 14;
constexpr int parts = 3;

void set_integers(const Parameters& parameters) {
  unsigned seed = 1;
  for (const auto& each : parameters.all())
    each->value.copy_from(integer_tensor(each->extents, each->value.dtype(), seed++));
}

const Parameter& named(const Parameters& parameters, const std::string& name) {
  for (const auto& each : parameters.all()) {
    if (each->name == name) return *each;
  }
  throw std::runtime_error(name);
}

// scale times a product, added to `to`.
void add_scaled(double scale, const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
                const Tensor& to) {
  const Tensor product(to.shape(), to.dtype());
  kernels::gemm(a, transpose_a, b, transpose_b, product);
  kernels::scale(product, scale);
  kernels::add(to, product, to);
}

// The adapter's rows of a weight, as a matrix.
struct Rows {
  std::int64_t first, count;
  Tensor of(const Tensor& weight) const { return weight.view(first * in, {count, in}); }
};

template <class Backward>
void expect_merged(const Parameters& with, const Parameters& merged, const AdapterSet& adapters,
                   const std::map<std::string, Rows>& rows, Backward results) {
  const Tensor& weight = merged.all().front()->value;
  weight.copy_from(with.all().front()->value);
  if (merged.all().size() > 1) merged.all()[1]->value.copy_from(with.all()[1]->value);
  for (const auto& [record, adapter] : adapters.by_record) {
    add_scaled(adapter.scale, named(with, record + ".lora_B.weight").value, Transpose::no,
               named(with, record + ".lora_A.weight").value, Transpose::no, rows.at(record).of(weight));
  }
  const auto [found, expected] = results();
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_EQ(values(found[i]), values(expected[i]));
  for (const auto& [record, adapter] : adapters.by_record) {
    const Parameter &a = named(with, record + ".lora_A.weight"), &b = named(with, record + ".lora_B.weight");
    const Tensor dw = rows.at(record).of(merged.all().front()->gradient);
    const Tensor da = Tensor::zeros(a.extents, DType::f64), db = Tensor::zeros(b.extents, DType::f64);
    add_scaled(adapter.scale, b.value, Transpose::yes, dw, Transpose::no, da);
    add_scaled(adapter.scale, dw, Transpose::no, a.value, Transpose::yes, db);
    EXPECT_EQ(values(a.gradient), values(da)) << record;
    EXPECT_EQ(values(b.gradient), values(db)) << record;
    EXPECT_NE(values(da), values(Tensor::zeros(a.extents, DType::f64)));
  }
}

TEST(LinearAdapters, OfAColumnParallelLayerAreThoseOfTheMergedWeight) {
  const std::map<std::string, Rows> rows = {
      {"l", {0, parts * out}}, {"l.q", {0, out}}, {"l.v", {2 * out, out}}, {"l.kv", {out, 2 * out}}};
  using Named = std::vector<NamedParts>;
  const Named one_each = {{".q", 0, 1}, {".k", 1, 1}, {".v", 2, 1}}, two_together = {{".q", 0, 1}, {".kv", 1, 2}};
  for (const auto& [adapters, named] : {std::pair<AdapterSet, Named>{{{{"l", {2, 0.5}}}}, one_each},
                                        {{{{"l.q", {1, 2}}, {"l.v", {3, 0.5}}}}, one_each},
                                        {{{{"l.kv", {2, 1}}}}, two_together}}) {
    for (const bool in_halves : {false, true}) {
      Parameters with, merged;
      const ColumnParallelLinear layer(with, "l", in, parts * out, parts, {}, {}, true, adapters, named);
      const ColumnParallelLinear plain(merged, "l", in, parts * out, parts, {}, {});
      allocate(with, DType::f64);
      allocate(merged, DType::f64);
      set_integers(with);
      expect_merged(with, merged, adapters, rows, [&] {
        const Tensor x = integer_tensor({tokens, in}, DType::f64, 5),
                     dy = integer_tensor({tokens, parts * out}, DType::f64, 6);
        const auto of = [&](const ColumnParallelLinear& its) {
          ParameterUse use;
          WeightGradients later;
          const Tensor y = its.forward(x, tokens, use);
          const Tensor dx = its.backward(x, dy, use, in_halves ? &later : nullptr);
          later.compute(use);
          return std::vector<Tensor>{y, dx};
        };
        return std::pair(of(layer), of(plain));
      });
    }
  }
}

TEST(LinearAdapters, OfARowParallelLayerAreThoseOfTheMergedWeight) {
  const AdapterSet adapters{{{"l", {3, 0.25}}}};
  Parameters with, merged;
  const RowParallelLinear layer(with, "l", in, out, {}, {}, true, adapters);
  const RowParallelLinear plain(merged, "l", in, out, {}, {});
  allocate(with, DType::f64);
  allocate(merged, DType::f64);
  set_integers(with);
  expect_merged(with, merged, adapters, {{"l", {0, out}}}, [&] {
    const auto of = [&](const RowParallelLinear& its) {
      ParameterUse use;
      const Tensor y =
          its.forward(integer_tensor({tokens, in}, DType::f64, 5), integer_tensor({tokens, out}, DType::f64, 7), use);
      return std::vector<Tensor>{
          y, its.backward(integer_tensor({tokens, in}, DType::f64, 5), integer_tensor({tokens, out}, DType::f64, 6), use)};
    };
    return std::pair(of(layer), of(plain));
  });
}

// A begins as torch's kaiming_uniform(sqrt 5) or normal, B with zeros; a layer without adapters has no records of them.
TEST(LinearAdapters, BeginAsPeftSays) {
  for (const bool gaussian : {false, true}) {
    Parameters parameters;
    const RowParallelLinear layer(parameters, "l", 400, 8, {}, {}, false, {{{"l", {16, 1}}}, gaussian});
    allocate(parameters, DType::f64);
    initialise(parameters, 3);
    double most = 0, squares = 0;
    for (const double value : values(named(parameters, "l.lora_A.weight").value)) {
      most = std::max(most, std::abs(value));
      squares += value * value;
    }
    const double deviation = std::sqrt(squares / (16 * 400));
    if (gaussian) {
      EXPECT_NEAR(deviation, 1.0 / 16, 0.003);
    } else {
      EXPECT_LE(most, 0.05);  // 1 / sqrt(400)
      EXPECT_GT(most, 0.0499);
      EXPECT_NEAR(deviation, 0.05 / std::sqrt(3), 0.001);
    }
    for (const double value : values(named(parameters, "l.lora_B.weight").value)) EXPECT_EQ(value, 0);
  }
  Parameters none;
  const RowParallelLinear layer(none, "l", 4, 8, {}, {}, false, {{{"other", {16, 1}}}});
  EXPECT_EQ(none.all().size(), 1U);
}

}  // namespace
}  // namespace stretto::linear_adapters
