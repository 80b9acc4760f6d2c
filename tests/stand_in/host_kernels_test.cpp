// Kernels that training does not call: the stand-in's against the host's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "device/kernels/kernel_data.hpp"
#include "stand_in/host_gpu.hpp"
#include "stretto/device.hpp"
#include "stretto/kernels.hpp"

namespace stretto {
namespace {

using testing::IsEmpty;

constexpr std::int64_t count = 300;  // not a multiple of the quantization group

// Runs the computation on copies of the tensors on the stand-in and on the host, and compares all tensors.
void expect_same_bits(const std::vector<Tensor>& tensors, const std::function<void(const std::vector<Tensor>&)>& compute) {
  HostGpu gpu({.longest_delay_us = 200});
  {
    const GpuInUse in_use(gpu);
    const OnDevice device(Device::cuda);
    std::vector<Tensor> there;
    for (const Tensor& tensor : tensors) there.push_back(tensor.on(Device::cuda));
    compute(there);
    compute(tensors);
    for (std::size_t i = 0; i < tensors.size(); ++i) EXPECT_EQ(values(there[i].on(Device::cpu)), values(tensors[i])) << i;
  }
  EXPECT_THAT(gpu.violations(), IsEmpty());
}

TEST(HostKernels, OfTensorsHaveTheHostsBits) {
  const auto x = [](unsigned seed) { return random_tensor({3, 100}, DType::f32, seed); };
  expect_same_bits({x(1), x(2)}, [](const auto& t) { kernels::gelu_forward(t[0], t[1]); });
  expect_same_bits({x(1), x(2)}, [](const auto& t) { kernels::softmax(t[0], t[1]); });
  expect_same_bits({x(1), random_tensor({3, 100}, DType::bf16, 2)}, [](const auto& t) { kernels::convert(t[0], t[1]); });
  expect_same_bits({x(1)}, [](const auto& t) { kernels::scale(t[0], 0.3); });
  for (const StoredFormat format : {StoredFormat::nf4, StoredFormat::int8}) {
    expect_same_bits({x(1), Tensor({stored_bytes(format, 300)}, DType::u8), x(2)}, [&](const auto& t) {
      kernels::store_values(format, t[0], t[1]);
      kernels::restore_values(format, t[1], t[2]);
    });
  }
  expect_same_bits({x(1), random_tensor({}, DType::f64)}, [](const auto& t) { t[1].set(0, kernels::sum_of_squares(t[0])); });
  expect_same_bits({x(1), x(2), random_tensor({2}, DType::f64)}, [](const auto& t) {
    const std::vector<double> sums = kernels::sums_of_squares({t[0], t[1]});
    t[2].set(0, sums[0]);
    t[2].set(1, sums[1]);
  });
}

// The heads of 3 tokens: 4 of 24 elements, in two parts.
kernels::TokenHeads heads_in(const Tensor& tensor) { return {tensor, 2, 2, 49}; }

TEST(HostKernels, OfDecodersHaveTheHostsBits) {
  const auto x = [](unsigned seed) { return random_tensor({3, 100}, DType::f32, seed); };
  const auto vector = [](std::int64_t size, unsigned seed) { return random_tensor({size}, DType::f32, seed); };
  expect_same_bits({x(1), vector(100, 2), x(3), vector(3, 4)},
                   [](const auto& t) { kernels::rms_norm_forward(t[0], t[1], 1e-5, t[2], t[3]); });
  expect_same_bits({x(1), vector(100, 2), vector(3, 3), x(4), x(5), vector(100, 6)},
                   [](const auto& t) { kernels::rms_norm_backward(t[0], t[1], t[2], t[3], t[4], t[5]); });
  expect_same_bits({x(1), vector(24, 2), x(3), vector(12, 4)},
                   [](const auto& t) { kernels::head_norm_forward(heads_in(t[0]), 4, t[1], 1e-5, heads_in(t[2]), t[3]); });
  expect_same_bits({x(1), vector(24, 2), vector(12, 3), x(4), x(5), vector(24, 6)}, [](const auto& t) {
    kernels::head_norm_backward(heads_in(t[0]), 4, t[1], t[2], heads_in(t[3]), heads_in(t[4]), t[5]);
  });
  expect_same_bits({x(1), Tensor::of(std::vector<std::int32_t>{1, 0, 1}), random_tensor({2, 2, 12}, DType::f32, 2), x(3)},
                   [](const auto& t) { kernels::rotary(heads_in(t[0]), 4, t[1], t[2], heads_in(t[3]), true); });
  expect_same_bits({x(1), Tensor::of(std::vector<std::int64_t>{1, 0, -1}), x(2)},
                   [](const auto& t) { kernels::dropout({.probability = 0.5}, t[0], t[1], t[2]); });
  for (const auto activation : {kernels::Activation::gelu, kernels::Activation::silu_gate}) {
    const auto y = [&](unsigned seed) {
      return random_tensor({3, 100 / kernels::products_of(activation)}, DType::f32, seed);
    };
    expect_same_bits({x(1), y(2)}, [&](const auto& t) { kernels::activation_forward(activation, t[0], t[1]); });
    expect_same_bits({x(1), y(2), x(3)}, [&](const auto& t) { kernels::activation_backward(activation, t[0], t[1], t[2]); });
  }
}

void reduce_all(const std::vector<Tensor>& t) {
  const void* sources[] = {t[0].raw(), t[1].raw()};
  if (t[0].device() == Device::cuda) {
    gpu().kernels().reduce_all(ReduceOp::max, DType::f32, sources, 2, t[2].raw(), count, 3, gpu_stream());
  } else {
    kernels::reduce_all(ReduceOp::max, DType::f32, sources, 2, t[2].raw(), count, 3);
  }
}

TEST(HostKernels, ReduceAllHasTheHostsBits) {
  const auto x = [](unsigned seed) { return random_tensor({count}, DType::f32, seed); };
  expect_same_bits({x(1), x(2), x(3)}, reduce_all);
}

// The tensors: x, residual, x's records, their values, the average of the records taken twice, and that average quantized
// again.
void quantize_and_back(const std::vector<Tensor>& t) {
  const QuantizedFormat format = QuantizedFormat::int8;
  const QuantizedFormat to = QuantizedFormat::int4;
  kernels::QuantizeOptions options{.rounding = Rounding::stochastic, .seed = 5, .residual = t[1].data<float>()};
  const void* vectors[] = {t[2].raw(), t[2].raw()};
  if (t[0].device() == Device::cuda) {
    GpuKernels& on = gpu().kernels();
    on.quantize(format, DType::f32, t[0].raw(), t[2].raw(), count, options, gpu_stream());
    on.dequantize(format, t[2].raw(), DType::f32, t[3].raw(), count, gpu_stream());
    on.dequantize_reduce(format, vectors, 2, DType::f32, t[4].raw(), count, 2, gpu_stream());
    on.requantize(format, vectors, 2, to, t[5].raw(), count, 2, {}, gpu_stream());
    on.multiply(DType::f32, t[3].raw(), t[3].raw(), count, 0.5, gpu_stream());
    vectors[0] = vectors[1] = nullptr;  // the launches have copied the array
    options = {};
  } else {
    kernels::quantize(format, DType::f32, t[0].raw(), t[2].raw(), count, options);
    kernels::dequantize(format, t[2].raw(), DType::f32, t[3].raw(), count);
    kernels::dequantize_reduce(format, vectors, 2, DType::f32, t[4].raw(), count, 2);
    kernels::requantize(format, vectors, 2, to, t[5].raw(), count, 2);
    kernels::multiply(DType::f32, t[3].raw(), t[3].raw(), count, 0.5);
  }
}

TEST(HostKernels, OfQuantizationHaveTheHostsBits) {
  const auto f32 = [](unsigned seed) { return random_tensor({count}, DType::f32, seed); };
  const auto records = [](QuantizedFormat format) { return Tensor::zeros({packed_bytes(format, count)}, DType::u8); };
  expect_same_bits({f32(1), f32(2), records(QuantizedFormat::int8), f32(3), f32(4), records(QuantizedFormat::int4)},
                   quantize_and_back);
}

}  // namespace
}  // namespace stretto
