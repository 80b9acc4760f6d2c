// Quantized calls that are refused, and what is said of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <tuple>

#include "collectives/gaussian_data.hpp"
#include "quantized_calls.hpp"
#include "support/error.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

using gaussian_data::gaussian;
using quantized_calls::as;
using quantized_calls::calling_thread;
using quantized_calls::quantized_as;

TEST(Quantized, RefusesWhatItCannotDoAndSaysWhy) {
  run_threads(2, [](const Communicator& world) {
    const Tensor x = Tensor::zeros({64}, DType::f64);
    ErrorFeedback errors;
    const auto refused = [&](Call call, const Quantization& how, const char* said) {
      call.input = call.output = x.raw();
      OperationOptions options;
      options.quantization = how;
      expect_refusal([&] { std::ignore = world.start(call, calling_thread(), options); }, said);
    };
    const Call sum{.count = 8};
    refused({.collective = Collective::broadcast, .count = 8}, as(QuantizedFormat::int8),
            "broadcast cannot be quantized to int8");
    refused({.count = 8, .dtype = DType::f64}, as(QuantizedFormat::int4), "all_reduce of f64 cannot be quantized to int4");
    refused({.count = 8, .dtype = DType::i32}, as(QuantizedFormat::int4), "all_reduce of i32 cannot");
    refused({.count = 8, .op = ReduceOp::max}, as(QuantizedFormat::fp8), "all_reduce (max) cannot be quantized to fp8");
    refused(sum, as(static_cast<QuantizedFormat>(9)), "number 9");
    Quantization how = as(QuantizedFormat::int8);
    how.result = QuantizedFormat::int4;
    refused({.collective = Collective::all_gather, .count = 8}, how, "int4 as the format of its result");
    how.format = QuantizedFormat::none;
    refused(sum, how, "none for what goes there");
    how = as(QuantizedFormat::fp8);
    how.rounding = Rounding::stochastic;
    refused(sum, how, "fp8 cannot round stochastically");
    how = as(QuantizedFormat::int8);
    how.rounding = Rounding::stochastic;
    how.result = QuantizedFormat::onebit;
    refused(sum, how, "onebit cannot round stochastically");
    how = as(QuantizedFormat::int8);
    how.rounding = static_cast<Rounding>(7);
    refused(sum, how, "rounding number 7");
    how = as(QuantizedFormat::int8);
    how.errors = &errors;
    refused(sum, how, "no name of the tensor");
    EXPECT_TRUE(errors.entries().empty());
    const Call narrow{.count = 8, .dtype = DType::f32};  // options of quantization without a format
    for (int round = 0; round < 2; ++round) {
      refused(narrow, {.rounding = Rounding::stochastic}, "all_reduce got Quantization::rounding, but no format");
      refused(narrow, {.only_if_faster = true}, "Quantization::only_if_faster");
      refused(narrow, {.errors = &errors}, "Quantization::errors");
      refused(narrow, {.tensor = "w"}, "Quantization::tensor");
      // The control; after it, such a call takes the inline fast path.
      world.all_reduce(x.raw(), x.raw(), 8, DType::f32, ReduceOp::sum, calling_thread()).wait();
    }
    how.tensor = "w";
    OperationOptions options;
    options.quantization = how;
    std::ignore = world.all_reduce(x.raw(), x.raw(), 40, DType::f32, ReduceOp::sum, calling_thread(), options);
    refused({.count = 8}, how, "The error state of 'w'");
    OperationOptions by_ring = quantized_as(QuantizedFormat::int8, Algorithm::ring);
    EXPECT_THROW(world.all_reduce(x.raw(), x.raw(), 8, DType::f32, ReduceOp::sum, calling_thread(), by_ring), Error);
    // The refusals have changed nothing.
    std::ignore = world.all_reduce(x.raw(), x.raw(), 40, DType::f32, ReduceOp::sum, calling_thread(), options);
  });
}

TEST(Quantized, NothingIsReducedInItsOwnErrorState) {
  run_threads(2, [](const Communicator& world) {
    ErrorFeedback errors;
    OperationOptions options = quantized_as(QuantizedFormat::int8);
    options.quantization.errors = &errors;
    options.quantization.tensor = "w";
    const Tensor x = gaussian(600, DType::f32, world.rank());
    const Tensor y({600}, DType::f32);
    const auto sum = [&](const Tensor& from, const Tensor& to) {
      return sentence_of([&] {
        std::ignore = world.all_reduce(from.raw(), to.raw(), 600, DType::f32, ReduceOp::sum, calling_thread(), options);
      });
    };
    EXPECT_EQ(sum(x, y), "");
    const Tensor state = errors.entries().front().values;
    EXPECT_THAT(sum(state, state), testing::HasSubstr("an input that lies in its own error state, 'w'"));
    EXPECT_THAT(sum(state, y), testing::HasSubstr("an input that"));
    EXPECT_THAT(sum(x, state), testing::HasSubstr("an output that lies in its own error state, 'w'"));
    options.quantization.tensor = "another";  // the control: another tensor's state is ordinary memory
    EXPECT_EQ(sum(state, y), "");
  });
}

TEST(Quantized, TwoOperationsOfAGroupMustNotShareAnErrorState) {
  run_threads(2, [](const Communicator& world) {
    const Communicator copy = world.duplicate("copy");
    const Tensor x = Tensor::zeros({64}, DType::f32);
    const Tensor y = Tensor::zeros({64}, DType::f32);
    ErrorFeedback errors;
    OperationOptions options = quantized_as(QuantizedFormat::int8);
    options.quantization.errors = &errors;
    options.quantization.tensor = "one";
    {
      OperationGroup group;
      std::ignore = world.all_reduce(x, ReduceOp::sum, calling_thread(), options);
      std::ignore = copy.all_reduce(y, ReduceOp::sum, calling_thread(), options);
      EXPECT_THROW(group.end(), Error);
    }
    OperationGroup group;
    std::ignore = world.all_reduce(x, ReduceOp::sum, calling_thread(), options);
    options.quantization.tensor = "another";
    std::ignore = copy.all_reduce(y, ReduceOp::sum, calling_thread(), options);
    group.end().wait();
  });
}

TEST(Quantized, ARankThatQuantizesBesideOneThatDoesNotIsTold) {
  const Variable check("STRETTO_CHECK", "1");
  const Variable timeout("STRETTO_TIMEOUT", "20");
  std::atomic<int> heard = 0;
  EXPECT_THROW(run_threads(2,
                           [&](const Communicator& world) {
                             const Tensor x = Tensor::zeros({64}, DType::f32);
                             const auto format = world.rank() == 0 ? QuantizedFormat::int8 : QuantizedFormat::none;
                             try {
                               std::ignore = world.all_reduce(x, ReduceOp::sum, calling_thread(), quantized_as(format));
                             } catch (const Error& error) {
                               EXPECT_THAT(error.what(), testing::HasSubstr("of 64 f32 (sum), quantized to int8"));
                               ++heard;
                               throw;
                             }
                           }),
               Error);
  EXPECT_EQ(heard, 2);
  run_threads(2, [](const Communicator& world) {  // the control: matching calls pass
    world.all_reduce(Tensor::zeros({64}, DType::f32), ReduceOp::sum, calling_thread(), quantized_as(QuantizedFormat::int8))
        .wait();
  });
}

}  // namespace
}  // namespace stretto
