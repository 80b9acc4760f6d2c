#include <cstddef>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/elementwise.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file again:
#include "device/cpu/cpu_level.hpp"
#include "device/cpu/host_kernels.hpp"
#include "device/cpu/simd-inl.hpp"
#include "device/element_types.hpp"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::HWY_NAMESPACE {
namespace {

template <class From, class To>
void convert_elements(const void* from, void* to, std::int64_t count) {
  constexpr bool wide = std::is_same_v<From, double> || std::is_same_v<To, double>;
  const hn::ScalableTag<std::conditional_t<wide, double, float>> d;
  const auto* const read = static_cast<const std::byte*>(from);
  auto* const written = static_cast<std::byte*>(to);
  for_each_vector(d, count, [&](std::int64_t i, auto lanes) HWY_ATTR {
    const auto v = load_as<From>(d, read + i * static_cast<std::int64_t>(sizeof(From)), lanes);
    store_as<To>(d, v, written + i * static_cast<std::int64_t>(sizeof(To)), lanes);
  });
}

template <class T>
void add_bias_rows(T* x, const T* bias, std::int64_t rows, std::int64_t columns) {
  const AccumulatorTag<T> d;
  for (std::int64_t row = 0; row < rows; ++row) {
    T* const to = x + row * columns;
    for_each_vector(d, columns, [&](std::int64_t c, auto lanes) HWY_ATTR {
      store_result(d, hn::Add(load(d, to + c, lanes), load(d, bias + c, lanes)), to + c, lanes);
    });
  }
}

}  // namespace

void convert_simd(DType from, const void* x, DType to, void* out, std::int64_t count) {
  with_float_type(from, [&]<class From>(From) {
    with_float_type(to, [&]<class To>(To) {
      if constexpr (!std::is_same_v<From, To>) convert_elements<From, To>(x, out, count);
    });
  });
}

void add_bias_simd(const Tensor& x, const Tensor& bias) {
  with_compute_type(x.dtype(), [&]<class T>(T) { add_bias_rows(x.data<T>(), bias.data<T>(), x.rows(), x.columns()); });
}

}  // namespace stretto::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stretto::kernels::cpu {

HWY_EXPORT(convert_simd);
HWY_EXPORT(add_bias_simd);

void convert(DType from, const void* x, DType to, void* out, std::int64_t count) {
  STRETTO_DISPATCH(convert_simd)(from, x, to, out, count);
  if (from == to && count > 0) std::memcpy(out, x, static_cast<std::size_t>(count) * size_of(from));
}

void add_bias(const Tensor& x, const Tensor& bias) { STRETTO_DISPATCH(add_bias_simd)(x, bias); }

}  // namespace stretto::kernels::cpu
#endif
