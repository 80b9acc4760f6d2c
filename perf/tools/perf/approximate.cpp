#include "perf/approximate.hpp"

#include <algorithm>
#include <cmath>

#include "perf/random.hpp"
#include "perf/values.hpp"
#include "stretto/kernels.hpp"

namespace perf {

using stretto::DType;
using stretto::Quantization;
using stretto::QuantizedFormat;
using stretto::ReduceOp;
using stretto::Tensor;

namespace {

// The largest error of quantizing an element, as a part of the largest element of its group: half a step of the grid, and a
// little for scales, which are rounded up. In one bit, x becomes at most the mean of the magnitudes.
double part_lost(QuantizedFormat format, stretto::Rounding rounding) {
  const double steps = (rounding == stretto::Rounding::stochastic ? 1 : 0.5) * (1 + 0x1p-6);
  switch (format) {
    case QuantizedFormat::int8: return steps / 127;
    case QuantizedFormat::int4: return steps / 7;
    case QuantizedFormat::fp8: return steps * 32 / 448;  // 32: the step from 256 to 448, the largest code
    case QuantizedFormat::onebit: return 1;
    case QuantizedFormat::none: break;
  }
  return 0;
}

// Half a step of the type, relative to the value.
double part_rounded(DType dtype) { return dtype == DType::bf16 ? 0x1p-9 : dtype == DType::f16 ? 0x1p-11 : 0x1p-20; }

// Assumes that all largest elements meet: adds the errors of the contributions, of the nodes' sums and of the result.
double bound_of(const Case& test_case, const Quantization& quantization, const std::vector<double>& largest) {
  const double lost = part_lost(quantization.format, quantization.rounding);
  if (!reduces(test_case.test->collective)) {
    return *std::max_element(largest.begin(), largest.end()) * (lost + part_rounded(test_case.dtype) * (1 + lost));
  }
  double most = 0;
  for (const double one : largest) most += one;
  double bound = lost * most;
  bound += lost * (most + bound);
  if (test_case.test->collective == stretto::Collective::all_reduce) {
    bound += part_lost(quantization.result == QuantizedFormat::none ? quantization.format : quantization.result,
                       quantization.rounding) *
             (most + bound);
  }
  bound += part_rounded(test_case.dtype) * (most + bound);
  return test_case.op == ReduceOp::avg ? bound / test_case.ranks : bound;
}

}  // namespace

std::vector<Tensor> Approximate::inputs_of(const Case& test_case, std::uint64_t seed, std::int64_t period) {
  std::vector<Tensor> inputs;
  for (int rank = 0; rank < test_case.ranks; ++rank) {
    inputs.emplace_back(stretto::Shape{period}, test_case.dtype, stretto::Device::cpu);
    for (std::int64_t i = 0; i < period; ++i) inputs.back().set(i, normal_at(seed, rank, i));
  }
  return inputs;
}

Approximate::Approximate(const Case& test_case, const Quantization& quantization, const std::vector<Tensor>& inputs)
    : dtype_(test_case.dtype) {
  const std::int64_t period = inputs.front().size();
  std::vector<double> sums(static_cast<std::size_t>(period));
  std::vector<double> largest;
  for (int rank = 0; rank < test_case.ranks; ++rank) {
    const double factor =
        reduces(test_case.test->collective) && test_case.op == ReduceOp::premul_sum ? Values::factor(rank) : 1;
    std::vector<double>& exact = exact_.emplace_back();
    double most = 0;
    for (std::int64_t i = 0; i < period; ++i) {
      exact.push_back(inputs[rank].at(i));
      sums[i] += exact.back() * factor;
      most = std::max(most, std::fabs(exact.back() * factor));
    }
    largest.push_back(most);
  }
  if (test_case.op == ReduceOp::avg) {
    for (double& sum : sums) sum /= test_case.ranks;
  }
  exact_.push_back(std::move(sums));
  bound_ = bound_of(test_case, quantization, largest);
}

std::int64_t Approximate::compare(int source, std::int64_t from, std::int64_t count, const void* found,
                                  Deviation& deviation) const {
  std::vector<float> results(static_cast<std::size_t>(count));
  stretto::kernels::convert(dtype_, found, DType::f32, results.data(), count);
  const std::vector<double>& exact = source == SourceRange::reduced ? exact_.back() : exact_[source];
  std::int64_t beyond = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const double error = std::fabs(results[i] - exact[from + i]);
    if (!(error <= bound_)) ++beyond;  // NaN is beyond it as well
    deviation.most = worse(deviation.most, error);
    deviation.squares += error * error;
  }
  deviation.elements += count;
  return beyond;
}

}  // namespace perf
