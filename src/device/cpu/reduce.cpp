#include "stretto/kernels.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/reduce.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file again:
#include "device/cpu/simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::HWY_NAMESPACE {
namespace {

template <class T>
const void* element(const void* x, std::int64_t i) {
  return static_cast<const std::byte*>(x) + i * static_cast<std::int64_t>(sizeof(T));
}
template <class T>
void* element(void* x, std::int64_t i) {
  return static_cast<std::byte*>(x) + i * static_cast<std::int64_t>(sizeof(T));
}

struct Reduction {
  ReduceOp op;
  const void* const* sources;
  int source_count;
  void* out;
  std::int64_t divisor;
};

// The elements [begin, end) of all sources combined in the sources' order, then finished, then rounded. The accumulators
// stay in registers: four of them, so that a visit to a source is worth a few cache lines.
template <class T, class Combine, class Finish>
void combine_sources(const Reduction& run, std::int64_t begin, std::int64_t end, Combine combine, Finish finish) {
  const AccumulatorTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto term = [&](int source, std::int64_t i, auto which)
                        HWY_ATTR { return load_as<T>(d, element<T>(run.sources[source], i), which); };
  std::int64_t i = begin;
  for (; i + 4 * lanes <= end; i += 4 * lanes) {
    auto v0 = term(0, i, AllLanes{});
    auto v1 = term(0, i + lanes, AllLanes{});
    auto v2 = term(0, i + 2 * lanes, AllLanes{});
    auto v3 = term(0, i + 3 * lanes, AllLanes{});
    for (int source = 1; source < run.source_count; ++source) {
      v0 = combine(v0, term(source, i, AllLanes{}));
      v1 = combine(v1, term(source, i + lanes, AllLanes{}));
      v2 = combine(v2, term(source, i + 2 * lanes, AllLanes{}));
      v3 = combine(v3, term(source, i + 3 * lanes, AllLanes{}));
    }
    store_as<T>(d, finish(v0), element<T>(run.out, i));
    store_as<T>(d, finish(v1), element<T>(run.out, i + lanes));
    store_as<T>(d, finish(v2), element<T>(run.out, i + 2 * lanes));
    store_as<T>(d, finish(v3), element<T>(run.out, i + 3 * lanes));
  }
  for_each_vector(d, end - i, [&](std::int64_t j, auto which) HWY_ATTR {
    auto v = term(0, i + j, which);
    for (int source = 1; source < run.source_count; ++source) v = combine(v, term(source, i + j, which));
    store_as<T>(d, finish(v), element<T>(run.out, i + j), which);
  });
}

template <class T, class Finish>
void combine_range(const Reduction& run, std::int64_t begin, std::int64_t end, Finish finish) {
  // Sums and products of integers are of unsigned ones, which wrap, and have the same bits.
  using Wrapping = typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;
  const auto add = [](auto a, auto b) HWY_ATTR { return hn::Add(a, b); };
  const auto multiply = [](auto a, auto b) HWY_ATTR { return hn::Mul(a, b); };
  const auto smaller = [](auto a, auto b) HWY_ATTR { return minimum(a, b); };
  const auto larger = [](auto a, auto b) HWY_ATTR { return maximum(a, b); };
  switch (run.op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
    case ReduceOp::premul_sum: return combine_sources<Wrapping>(run, begin, end, add, finish);
    case ReduceOp::prod: return combine_sources<Wrapping>(run, begin, end, multiply, finish);
    case ReduceOp::min: return combine_sources<T>(run, begin, end, smaller, finish);
    case ReduceOp::max: return combine_sources<T>(run, begin, end, larger, finish);
  }
  fail(ErrorCode::invalid_argument, "{} is the number of no reduction; use a ReduceOp.", static_cast<int>(run.op));
}

// Doubles divide faster than integers do, and their quotient of integers of 32 bits never rounds up to the next one.
template <class T>
void divide_integers(void* x, std::int64_t count, std::int64_t divisor) {
  for (std::int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, element<T>(x, i), sizeof(T));
    if constexpr (sizeof(T) < 8) {
      value = static_cast<T>(static_cast<double>(value) / static_cast<double>(divisor));
    } else {
      value /= static_cast<T>(divisor);
    }
    std::memcpy(element<T>(x, i), &value, sizeof(T));
  }
}

template <class T>
void divide_floats(void* x, std::int64_t count, std::int64_t divisor) {
  const AccumulatorTag<T> d;
  const auto by = hn::Set(d, static_cast<Accumulator<T>>(divisor));
  for_each_vector(d, count, [&](std::int64_t i, auto which) HWY_ATTR {
    store_as<T>(d, hn::Div(load_as<T>(d, element<T>(x, i), which), by), element<T>(x, i), which);
  });
}

template <class T>
void reduce_integers(const Reduction& run, std::int64_t count) {
  const auto as_it_is = [](auto v) HWY_ATTR { return v; };
  if (run.divisor == 1) return combine_range<T>(run, 0, count, as_it_is);
  constexpr std::int64_t block = 8192 / sizeof(T);  // divided while it is still in the cache
  for (std::int64_t begin = 0; begin < count; begin += block) {
    const std::int64_t end = std::min(begin + block, count);
    combine_range<T>(run, begin, end, as_it_is);
    divide_integers<T>(element<T>(run.out, begin), end - begin, run.divisor);
  }
}

template <class T>
void reduce_floats(const Reduction& run, std::int64_t count) {
  const AccumulatorTag<T> d;
  const auto by = hn::Set(d, static_cast<Accumulator<T>>(run.divisor));
  const bool divides = run.divisor != 1;
  combine_range<T>(run, 0, count, [=](auto v) HWY_ATTR { return divides ? hn::Div(v, by) : v; });
}

template <class T>
void multiply_elements(const void* x, void* out, std::int64_t count, Accumulator<T> factor) {
  const AccumulatorTag<T> d;
  const auto by = hn::Set(d, factor);
  for_each_vector(d, count, [&](std::int64_t i, auto which) HWY_ATTR {
    store_as<T>(d, hn::Mul(load_as<T>(d, element<T>(x, i), which), by), element<T>(out, i), which);
  });
}

}  // namespace

void reduce_all_simd(ReduceOp op, DType dtype, const void* const* sources, int source_count, void* out, std::int64_t count,
                     std::int64_t divisor) {
  const Reduction run{op, sources, source_count, out, divisor};
  with_element_type(dtype, [&]<class T>(T) {
    if constexpr (std::is_integral_v<T>) {
      reduce_integers<T>(run, count);
    } else {
      reduce_floats<T>(run, count);
    }
  });
}

void divide_simd(DType dtype, void* x, std::int64_t count, std::int64_t divisor) {
  with_element_type(dtype, [&]<class T>(T) {
    if constexpr (std::is_integral_v<T>) {
      divide_integers<T>(x, count, divisor);
    } else {
      divide_floats<T>(x, count, divisor);
    }
  });
}

void multiply_simd(DType dtype, const void* x, void* out, std::int64_t count, double factor) {
  with_element_type(dtype, [&]<class T>(T) {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;  // which wraps, and has the same bits
      multiply_elements<U>(x, out, count, static_cast<U>(to_integer<T>(factor)));
    } else {
      multiply_elements<T>(x, out, count, static_cast<Accumulator<T>>(factor));
    }
  });
}

}  // namespace stretto::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stretto::kernels {

HWY_EXPORT(reduce_all_simd);
HWY_EXPORT(divide_simd);
HWY_EXPORT(multiply_simd);

namespace {
void check_divisor(std::int64_t divisor) {
  require(divisor >= 1, "Elements cannot be divided by {}; a divisor counts ranks and is at least 1.", divisor);
}
}  // namespace

void reduce(ReduceOp op, DType dtype, const void* a, const void* b, void* out, std::int64_t count) {
  const void* const sources[] = {a, b};
  HWY_DYNAMIC_DISPATCH(reduce_all_simd)(op, dtype, sources, 2, out, count, 1);
}

void reduce_all(ReduceOp op, DType dtype, const void* const* sources, int source_count, void* out, std::int64_t count,
                std::int64_t divisor) {
  require(source_count >= 1, "There is nothing to reduce in {} sources; give at least one.", source_count);
  check_divisor(divisor);
  HWY_DYNAMIC_DISPATCH(reduce_all_simd)(op, dtype, sources, source_count, out, count, divisor);
}

void divide(DType dtype, void* x, std::int64_t count, std::int64_t divisor) {
  check_divisor(divisor);
  HWY_DYNAMIC_DISPATCH(divide_simd)(dtype, x, count, divisor);
}

void multiply(DType dtype, const void* x, void* out, std::int64_t count, double factor) {
  HWY_DYNAMIC_DISPATCH(multiply_simd)(dtype, x, out, count, factor);
}

}  // namespace stretto::kernels
#endif
