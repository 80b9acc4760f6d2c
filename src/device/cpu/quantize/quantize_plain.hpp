#pragma once
#include "device/kernels/quantized_records.hpp"
#include "stretto/kernels.hpp"

// Quantization without vectors, with the same bits as the vector code. The vector code uses it for rare groups; where
// vectors have one lane, it is used for all. Arguments are not checked.
namespace stretto::kernels {

// The mean of |x| in onebit from the sums that quantized_records.hpp describes.
float mean_of_sums(const float* sums, std::int64_t count);

struct GroupOptions {
  bool stochastic = false;
  std::uint64_t seed = 0;
  std::uint64_t first_element = 0;  // the number of the group's first element
  float* residual = nullptr;        // of the group; only written
};
// Makes the record of a whole group from its first `count` elements; the others are 0.
void quantize_group(QuantizedFormat format, const float* x, std::int64_t count, std::uint8_t* record,
                    const GroupOptions& options);
// The elements of a whole group.
void dequantize_group(QuantizedFormat format, const std::uint8_t* record, float* out);

// ---- the kernels of the same names
namespace plain {
void quantize(QuantizedFormat format, DType dtype, const void* x, void* records, std::int64_t count,
              const QuantizeOptions& options);
void dequantize(QuantizedFormat format, const void* records, DType dtype, void* out, std::int64_t count);
void dequantize_reduce(QuantizedFormat format, const void* const* vectors, int vector_count, DType dtype, void* out,
                       std::int64_t count, std::int64_t divisor);
void requantize(QuantizedFormat format, const void* const* vectors, int vector_count, QuantizedFormat to, void* records,
                std::int64_t count, std::int64_t divisor, const QuantizeOptions& options);
// The elements of one group, whose records are `offset` bytes into each of the vectors: summed over the vectors, then
// divided.
void add_group(QuantizedFormat format, const void* const* vectors, int vector_count, std::int64_t offset,
               std::int64_t divisor, float* out);
}  // namespace plain

}  // namespace stretto::kernels
