#include <algorithm>
#include <vector>

#include "device/cpu/host_kernels.hpp"
#include "device/kernels/quantized_records.hpp"

namespace stretto::kernels::cpu {

void requantize(QuantizedFormat format, const void* const* vectors, int vector_count, QuantizedFormat to, void* records,
                std::int64_t count, std::int64_t divisor, const QuantizeOptions& options) {
  constexpr std::int64_t block = 4 * largest_group;  // whole groups of every format; stays in the L1 cache
  alignas(64) float sum[block];
  std::vector<const void*> parts(vectors, vectors + vector_count);
  for (std::int64_t begin = 0; begin < count; begin += block) {
    const std::int64_t there = std::min(block, count - begin);
    cpu::dequantize_reduce(format, parts.data(), vector_count, DType::f32, sum, there, divisor);
    QuantizeOptions of_block = options;
    of_block.first_element += static_cast<std::uint64_t>(begin);
    if (options.residual != nullptr) of_block.residual += begin;
    cpu::quantize(to, DType::f32, sum, static_cast<std::uint8_t*>(records) + packed_bytes(to, begin), there, of_block);
    for (const void*& part : parts) part = static_cast<const std::byte*>(part) + packed_bytes(format, block);
  }
}

}  // namespace stretto::kernels::cpu
