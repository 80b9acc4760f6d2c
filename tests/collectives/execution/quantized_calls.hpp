#pragma once
#include <gtest/gtest.h>

#include <vector>

#include "stretto/stretto.hpp"

namespace stretto {
// Calls and inputs that several tests of quantized collectives share.
namespace quantized_calls {

inline const std::vector<Collective> collectives{Collective::all_gather, Collective::reduce_scatter, Collective::all_reduce};
inline const std::vector<QuantizedFormat> formats{QuantizedFormat::int8, QuantizedFormat::int4, QuantizedFormat::fp8,
                                                  QuantizedFormat::onebit};
inline const std::vector<DType> dtypes{DType::f32, DType::bf16, DType::f16};

inline const Stream& calling_thread() {
  static const Stream stream = Stream::inline_();
  return stream;
}

inline Quantization as(QuantizedFormat format) {
  Quantization how;
  how.format = format;
  return how;
}

inline OperationOptions quantized_as(QuantizedFormat format, const Method& method = Algorithm::automatic) {
  OperationOptions options;
  options.method = method;
  options.quantization = as(format);
  return options;
}

}  // namespace quantized_calls

// Instantiated beside the tests of values.
class EveryQuantized : public testing::TestWithParam<Collective> {};

}  // namespace stretto
