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

// How far quantizing takes an element, as a part of the largest one of its group: half a step of the grid, and a little for
// scales, which are rounded up. In one bit, x becomes the mean of the magnitudes at most.
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

// Half a step of the type, as a part of the value.
double part_rounded(DType dtype) { return dtype == DType::bf16 ? 0x1p-9 : dtype == DType::f16 ? 0x1p-11 : 0x1p-20; }

// As if all largest elements met: the sum of the contributions, that of the nodes' sums, and the result.
double bound_of(const Case& of, const Quantization& how, const std::vector<double>& largest) {
  const double lost = part_lost(how.format, how.rounding);
  if (!reduces(of.test->collective)) {
    return *std::max_element(largest.begin(), largest.end()) * (lost + part_rounded(of.dtype) * (1 + lost));
  }
  double most = 0;
  for (const double one : largest) most += one;
  double bound = lost * most;
  bound += lost * (most + bound);
  if (of.test->collective == stretto::Collective::all_reduce) {
    bound += part_lost(how.result == QuantizedFormat::none ? how.format : how.result, how.rounding) * (most + bound);
  }
  bound += part_rounded(of.dtype) * (most + bound);
  return of.op == ReduceOp::avg ? bound / of.ranks : bound;
}

}  // namespace

std::vector<Tensor> Approximate::inputs_of(const Case& of, std::uint64_t seed, std::int64_t period) {
  std::vector<Tensor> inputs;
  for (int rank = 0; rank < of.ranks; ++rank) {
    inputs.emplace_back(stretto::Shape{period}, of.dtype, stretto::Device::cpu);
    for (std::int64_t i = 0; i < period; ++i) inputs.back().set(i, normal_at(seed, rank, i));
  }
  return inputs;
}

Approximate::Approximate(const Case& of, const Quantization& quantization, const std::vector<Tensor>& inputs)
    : dtype_(of.dtype) {
  const std::int64_t period = inputs.front().size();
  std::vector<double> sums(static_cast<std::size_t>(period));
  std::vector<double> largest;
  for (int rank = 0; rank < of.ranks; ++rank) {
    const double factor = reduces(of.test->collective) && of.op == ReduceOp::premul_sum ? Values::factor(rank) : 1;
    std::vector<double>& exact = exact_.emplace_back();
    double most = 0;
    for (std::int64_t i = 0; i < period; ++i) {
      exact.push_back(inputs[rank].at(i));
      sums[i] += exact.back() * factor;
      most = std::max(most, std::fabs(exact.back() * factor));
    }
    largest.push_back(most);
  }
  if (of.op == ReduceOp::avg) {
    for (double& sum : sums) sum /= of.ranks;
  }
  exact_.push_back(std::move(sums));
  bound_ = bound_of(of, quantization, largest);
}

std::int64_t Approximate::compare(int source, std::int64_t from, std::int64_t count, const void* found,
                                  Deviation& deviation) const {
  std::vector<float> results(static_cast<std::size_t>(count));
  stretto::kernels::convert(dtype_, found, DType::f32, results.data(), count);
  const std::vector<double>& exact = source == Part::reduced ? exact_.back() : exact_[source];
  std::int64_t beyond = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const double error = std::fabs(results[i] - exact[from + i]);
    if (!(error <= bound_)) ++beyond;  // nor is NaN within it
    deviation.most = worse(deviation.most, error);
    deviation.squares += error * error;
  }
  deviation.elements += count;
  return beyond;
}

}  // namespace perf
