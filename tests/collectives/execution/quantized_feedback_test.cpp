// Errors of quantized collectives that are fed back.
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "collectives/gaussian_data.hpp"
#include "quantized_calls.hpp"
#include "support/data.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

using gaussian_data::gaussian;
using gaussian_data::normal;
using quantized_calls::calling_thread;
using quantized_calls::quantized_as;

// The error of the mean of many results, relative to the exact result.
double error_of_the_mean(const Communicator& world, Collective collective, const Method& method, ErrorFeedback* errors) {
  constexpr int steps = 400;
  const int size = world.size();
  const std::int64_t count = 600;
  const std::int64_t inputs = collective == Collective::reduce_scatter ? count * size : count;
  const std::int64_t outputs = collective == Collective::all_gather ? count * size : count;
  const Tensor x = gaussian(inputs, DType::f32, world.rank());
  const Tensor out({outputs}, DType::f32);
  std::vector<double> sum(static_cast<std::size_t>(outputs));
  OperationOptions options = quantized_as(QuantizedFormat::onebit, method);
  options.quantization.errors = errors;
  options.quantization.tensor = "x";
  const Operation operation =
      world.prepare({.collective = collective, .input = x.raw(), .output = out.raw(), .count = count}, options);
  for (int step = 0; step < steps; ++step) {
    std::ignore = operation.start(calling_thread());
    for (std::int64_t i = 0; i < outputs; ++i) sum[static_cast<std::size_t>(i)] += out.at(i);
  }
  double error = 0;
  double square = 0;
  for (std::int64_t i = 0; i < outputs; ++i) {
    double exact = 0;
    if (collective == Collective::all_gather) {
      exact = static_cast<float>(normal(static_cast<int>(i / count), i % count));
    } else {
      const std::int64_t at = collective == Collective::reduce_scatter ? world.rank() * count + i : i;
      for (int rank = 0; rank < size; ++rank) exact += static_cast<float>(normal(rank, at));
    }
    error += std::pow(sum[static_cast<std::size_t>(i)] / steps - exact, 2);
    square += exact * exact;
  }
  return std::sqrt(error / square);
}

TEST_P(EveryQuantized, ErrorFeedbackLosesNothingInTheLongRun) {
  const Variable nodes("STRETTO_RANKS_PER_NODE", "2");
  const Algorithm one_level = GetParam() == Collective::all_reduce ? Algorithm::two_shot : Algorithm::direct;
  for (const Algorithm algorithm : {one_level, Algorithm::two_level}) {
    run_threads(4, [&](const Communicator& world) {
      ErrorFeedback errors;
      const double with = error_of_the_mean(world, GetParam(), algorithm, &errors);
      const double without = error_of_the_mean(world, GetParam(), algorithm, nullptr);
      EXPECT_LT(with, 0.05) << name(algorithm);
      EXPECT_GT(without, 0.3) << name(algorithm);  // the control
      std::vector<Hop> hops;
      for (const auto& entry : errors.entries()) hops.push_back(entry.hop);
      std::vector<Hop> expected{Hop::contribution};
      if (GetParam() != Collective::all_gather && algorithm == Algorithm::two_level) expected.push_back(Hop::node_sum);
      if (GetParam() == Collective::all_reduce) expected.push_back(Hop::result);
      EXPECT_EQ(hops, expected) << name(algorithm);
    });
  }
}

TEST(Quantized, ErrorStateIsExplicit) {
  run_threads(2, [](const Communicator& world) {
    ErrorFeedback errors;
    OperationOptions options = quantized_as(QuantizedFormat::int4);
    options.quantization.errors = &errors;
    options.quantization.tensor = "w";
    const auto sum = [&](ErrorFeedback& state) {
      Tensor x = gaussian(900, DType::f32, world.rank());
      options.quantization.errors = &state;
      std::ignore = world.all_reduce(x, ReduceOp::sum, calling_thread(), options);
      return x;
    };
    const Tensor first = sum(errors);
    const auto entries = errors.entries();
    ASSERT_FALSE(entries.empty());
    EXPECT_EQ(entries.front().tensor, "w");
    EXPECT_EQ(entries.front().hop, Hop::contribution);
    ErrorFeedback restored;  // as a checkpoint restores it
    for (const auto& entry : entries) restored.restore(entry.tensor, entry.hop, entry.values);
    const Tensor second = sum(errors);
    EXPECT_TRUE(same_bits(second, sum(restored)));
    EXPECT_FALSE(same_bits(second, first));
    errors.clear();
    EXPECT_TRUE(same_bits(sum(errors), first));
  });
}

}  // namespace
}  // namespace stretto
