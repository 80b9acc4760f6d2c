#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/embedding.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file again:
#include "device/cpu/cpu_level.hpp"
#include "device/cpu/host_kernels.hpp"
#include "device/cpu/simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::HWY_NAMESPACE {
namespace {

template <class T>
void add_row(const T* from, Accumulator<T>* to, std::int64_t columns) {
  const AccumulatorTag<T> d;
  for_each_vector(d, columns, [&](std::int64_t c, auto lanes) HWY_ATTR {
    store(d, hn::Add(load(d, to + c, lanes), load(d, from + c, lanes)), to + c, lanes);
  });
}

}  // namespace

void embedding_backward_simd(const Tensor& tokens, std::int64_t first, const Tensor& dy, const Tensor& dtable) {
  with_compute_type(dy.dtype(), [&]<class T>(T) {
    const std::int64_t columns = dy.columns();
    const std::int32_t* const numbers = tokens.data<std::int32_t>();
    for (std::int64_t row = 0; row < dy.rows(); ++row) {
      const std::int64_t entry = numbers[row] - first;
      if (entry < 0 || entry >= dtable.rows()) continue;
      add_row(dy.data<T>() + row * columns, dtable.data<Accumulator<T>>() + entry * columns, columns);
    }
  });
}

}  // namespace stretto::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stretto::kernels::cpu {

HWY_EXPORT(embedding_backward_simd);

void embedding_forward(const Tensor& tokens, std::int64_t first, const Tensor& table, const Tensor& y) {
  const std::int32_t* const numbers = tokens.data<std::int32_t>();
  const std::size_t row_bytes = static_cast<std::size_t>(y.columns()) * size_of(y.dtype());
  for (std::int64_t row = 0; row < y.rows(); ++row) {
    const std::int64_t entry = numbers[row] - first;
    std::byte* const to = static_cast<std::byte*>(y.raw()) + row * row_bytes;
    if (entry >= 0 && entry < table.rows()) {
      std::memcpy(to, static_cast<const std::byte*>(table.raw()) + entry * row_bytes, row_bytes);
    } else {
      std::memset(to, 0, row_bytes);
    }
  }
}

void embedding_backward(const Tensor& tokens, std::int64_t first, const Tensor& dy, const Tensor& dtable) {
  STRETTO_DISPATCH(embedding_backward_simd)(tokens, first, dy, dtable);
}

}  // namespace stretto::kernels::cpu
#endif
