// The kernels of collectives for host memory. For GPU memory, collectives call GpuKernels themselves.
#include <cstring>

#include "core/fail.hpp"
#include "device/cpu/host_kernels.hpp"

namespace stretto::kernels {
namespace {

void check_source_count(int source_count) {
  require(source_count >= 1, "There is nothing to reduce in {} sources; give at least one.", source_count);
}
void check_divisor(std::int64_t divisor) {
  require(divisor >= 1, "Elements cannot be divided by {}; a divisor counts ranks and is at least 1.", divisor);
}

}  // namespace

void reduce(ReduceOp op, DType dtype, const void* a, const void* b, void* out, std::int64_t count) {
  const void* const sources[] = {a, b};
  cpu::reduce_all({op, dtype, 2}, sources, out, count, 1);
}

void reduce_all(ReduceOp op, DType dtype, const void* const* sources, int source_count, void* out, std::int64_t count,
                std::int64_t divisor) {
  check_source_count(source_count);
  check_divisor(divisor);
  cpu::reduce_all({op, dtype, source_count}, sources, out, count, divisor);
}

void reduce_all(ReduceOp op, DType dtype, const void* const* sources, int source_count, void* const* outs, int out_count,
                std::int64_t count, std::int64_t divisor, bool streaming) {
  require(out_count >= 1, "A result cannot be written to {} outs; give at least one.", out_count);
  if (out_count == 1 && !streaming) return reduce_all(op, dtype, sources, source_count, outs[0], count, divisor);
  check_source_count(source_count);
  check_divisor(divisor);
  cpu::reduce_all({op, dtype, source_count}, sources, outs, out_count, count, divisor, streaming);
}

void copy(const void* from, void* to, std::size_t bytes, bool streaming) {
  if (!streaming) {
    std::memcpy(to, from, bytes);
  } else {
    cpu::copy_streaming(from, to, bytes);
  }
}

void divide(DType dtype, void* x, std::int64_t count, std::int64_t divisor) {
  check_divisor(divisor);
  cpu::divide(dtype, x, count, divisor);
}

void multiply(DType dtype, const void* x, void* out, std::int64_t count, double factor) {
  cpu::multiply(dtype, x, out, count, factor);
}

void convert(DType from, const void* x, DType to, void* out, std::int64_t count) { cpu::convert(from, x, to, out, count); }

}  // namespace stretto::kernels
