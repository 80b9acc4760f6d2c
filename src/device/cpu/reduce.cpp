#include <hwy/cache_control.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/reduce.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file again:
#include "device/cpu/cpu_level.hpp"
#include "device/cpu/host_kernels.hpp"
#include "device/cpu/simd-inl.hpp"
#include "device/element_types.hpp"

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
  std::int64_t divisor;
};

// ---- destinations of results: put() rounds vectors of consecutive elements to T and stores them from element i on

struct OneOut {
  void* out;
  std::int64_t first = 0;  // the element at the beginning of out

  template <class T, class D, class Which>
  HWY_INLINE void put(D d, std::int64_t i, Which which, hn::Vec<D> v) const {
    store_as<T>(d, v, element<T>(out, i - first), which);
  }
  template <class T, class D, class... V>
  HWY_INLINE void put_all(D d, std::int64_t i, V... v) const {
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    ((put<T>(d, i, AllLanes{}, v), i += lanes), ...);
  }
};

// For elements as wide as their lanes. Only vectors at multiples of their size are stored past the caches: memory does not
// take a store to parts of two cache lines.
struct ManyOuts {
  void* const* outs;
  int out_count;
  bool streaming;

  template <class T, class D>
  HWY_INLINE void put_one(D d, void* to, AllLanes all, hn::Vec<D> v) const {
    static_assert(sizeof(T) == sizeof(hn::TFromD<D>));
#if HWY_TARGET != HWY_SCALAR
    if (streaming && reinterpret_cast<std::uintptr_t>(to) % (hn::Lanes(d) * sizeof(T)) == 0) {
      return hn::Stream(v, d, static_cast<hn::TFromD<D>*>(to));
    }
#endif
    store_as<T>(d, v, to, all);
  }
  template <class T, class D>
  HWY_INLINE void put_one(D d, void* to, FirstLanes first, hn::Vec<D> v) const {
    store_as<T>(d, v, to, first);
  }

  template <class T, class D, class Which>
  HWY_INLINE void put(D d, std::int64_t i, Which which, hn::Vec<D> v) const {
    for (int k = 0; k < out_count; ++k) put_one<T>(d, element<T>(outs[k], i), which, v);
  }
  template <class T, class D, class... V>
  HWY_INLINE void put_all(D d, std::int64_t i, V... v) const {
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    for (int k = 0; k < out_count; ++k) {
      std::int64_t j = i;
      ((put_one<T>(d, element<T>(outs[k], j), AllLanes{}, v), j += lanes), ...);
    }
  }
};

// ---- one visit to all sources

// Combines the elements [begin, end) of all sources in the order of the sources, then applies finish, then rounds. The four
// accumulators stay in registers; there are four so that each visit to a source reads several cache lines.
template <class T, class Out, class Combine, class Finish>
void combine_sources(const Reduction& run, std::int64_t begin, std::int64_t end, Out out, Combine combine, Finish finish) {
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
    out.template put_all<T>(d, i, finish(v0), finish(v1), finish(v2), finish(v3));
  }
  for_each_vector(d, end - i, [&](std::int64_t j, auto which) HWY_ATTR {
    auto v = term(0, i + j, which);
    for (int source = 1; source < run.source_count; ++source) v = combine(v, term(source, i + j, which));
    out.template put<T>(d, i + j, which, finish(v));
  });
}

template <class T, class Out, class Finish>
HWY_INLINE void combine_range(const Reduction& run, std::int64_t begin, std::int64_t end, Out out, Finish finish) {
  // Integers are added and multiplied as unsigned integers, which wrap and have the same bits.
  using Wrapping = typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;
  const auto add = [](auto a, auto b) HWY_ATTR { return hn::Add(a, b); };
  const auto multiply = [](auto a, auto b) HWY_ATTR { return hn::Mul(a, b); };
  const auto smaller = [](auto a, auto b) HWY_ATTR { return minimum(a, b); };
  const auto larger = [](auto a, auto b) HWY_ATTR { return maximum(a, b); };
  switch (run.op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
    case ReduceOp::premul_sum: return combine_sources<Wrapping>(run, begin, end, out, add, finish);
    case ReduceOp::prod: return combine_sources<Wrapping>(run, begin, end, out, multiply, finish);
    case ReduceOp::min: return combine_sources<T>(run, begin, end, out, smaller, finish);
    case ReduceOp::max: return combine_sources<T>(run, begin, end, out, larger, finish);
  }
  fail(ErrorCode::invalid_argument, "{} is not the number of a reduction; use a ReduceOp.", static_cast<int>(run.op));
}

// Division of f64 is faster than of integers, and the f64 quotient of integers of 32 bits never rounds up to the next
// integer.
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

// Everything except the division of integers.
template <class T, class Out>
HWY_INLINE void reduce_range(const Reduction& run, std::int64_t begin, std::int64_t end, Out out) {
  if constexpr (std::is_integral_v<T>) {
    combine_range<T>(run, begin, end, out, [](auto v) HWY_ATTR { return v; });
  } else {
    const AccumulatorTag<T> d;
    const auto by = hn::Set(d, static_cast<Accumulator<T>>(run.divisor));
    const bool divides = run.divisor != 1;
    combine_range<T>(run, begin, end, out, [=](auto v) HWY_ATTR { return divides ? hn::Div(v, by) : v; });
  }
}

// Integers are divided in a second pass, while they are still in the cache.
constexpr std::int64_t block_bytes = 4096;

template <class T>
void reduce_to_one(const Reduction& run, std::int64_t count, void* out) {
  if (!std::is_integral_v<T> || run.divisor == 1) return reduce_range<T>(run, 0, count, OneOut{out});
  if constexpr (std::is_integral_v<T>) {
    constexpr std::int64_t block = block_bytes / sizeof(T);
    for (std::int64_t begin = 0; begin < count; begin += block) {
      const std::int64_t end = std::min(begin + block, count);
      reduce_range<T>(run, begin, end, OneOut{out});
      divide_integers<T>(element<T>(out, begin), end - begin, run.divisor);
    }
  }
}

constexpr std::size_t line = 64;  // bytes of one line of the cache

#if HWY_TARGET == HWY_SCALAR
void copy_bytes(const std::byte* from, std::byte* to, std::size_t bytes, bool /*streaming*/) {
  std::memcpy(to, from, bytes);
}
#else
// Streams whole cache lines only: part of a line would be a memory access of its own.
void copy_bytes(const std::byte* from, std::byte* to, std::size_t bytes, bool streaming) {
  const hn::ScalableTag<std::uint8_t> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto* source = reinterpret_cast<const std::uint8_t*>(from);
  auto* target = reinterpret_cast<std::uint8_t*>(to);
  const auto ordinary = [&](std::size_t count) HWY_ATTR {
    for_each_vector(d, static_cast<std::int64_t>(count), [&](std::int64_t i, auto which) HWY_ATTR {
      store_lanes(d, load_lanes(d, source + i, which), target + i, which);
    });
    source += count;
    target += count;
    bytes -= count;
  };
  if (streaming && bytes >= 2 * line) {
    if (const std::size_t beyond = reinterpret_cast<std::uintptr_t>(to) % line; beyond != 0) ordinary(line - beyond);
    const std::size_t whole = bytes / line * line;
    for (std::size_t i = 0; i < whole; i += lanes) hn::Stream(hn::LoadU(d, source + i), d, target + i);
    source += whole;
    target += whole;
    bytes -= whole;
  }
  ordinary(bytes);
}
#endif

// Stores from registers into all outs. Streaming stores begin at a cache line of the first out; outs that are not aligned
// like the first get ordinary stores.
template <class T>
void reduce_directly(const Reduction& run, std::int64_t count, void* const* outs, int out_count, bool streaming) {
  std::int64_t begin = 0;
  if (streaming) {
    const std::size_t beyond = reinterpret_cast<std::uintptr_t>(outs[0]) % line;
    begin = std::min(count, static_cast<std::int64_t>((line - beyond) % line / sizeof(T)));
    if (begin != 0) reduce_range<T>(run, 0, begin, ManyOuts{outs, out_count, false});
  }
  reduce_range<T>(run, begin, count, ManyOuts{outs, out_count, streaming});
}

// Reduces one block at a time into the L1 cache and copies it from there to all outs, so that elements are rounded or
// divided only once.
template <class T>
void reduce_in_blocks(const Reduction& run, std::int64_t count, void* const* outs, int out_count, bool streaming) {
  HWY_ALIGN std::byte block[block_bytes];
  // Blocks end at a cache line of the first out; the other outs are often aligned like it.
  const auto beyond = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(outs[0]) % line);
  std::int64_t begin = 0;
  std::int64_t end = (block_bytes - beyond) / static_cast<std::int64_t>(sizeof(T));
  while (begin < count) {
    end = std::min(end, count);
    reduce_range<T>(run, begin, end, OneOut{block, begin});
    if constexpr (std::is_integral_v<T>) {
      if (run.divisor != 1) divide_integers<T>(block, end - begin, run.divisor);
    }
    for (int i = 0; i < out_count; ++i) {
      copy_bytes(block, static_cast<std::byte*>(element<T>(outs[i], begin)), (end - begin) * sizeof(T), streaming);
    }
    begin = end;
    end += block_bytes / sizeof(T);
  }
}

template <class T>
void reduce_to_many(const Reduction& run, std::int64_t count, void* const* outs, int out_count, bool streaming) {
  if constexpr (sizeof(T) == sizeof(Accumulator<T>)) {
    if (!std::is_integral_v<T> || run.divisor == 1) return reduce_directly<T>(run, count, outs, out_count, streaming);
  }
  reduce_in_blocks<T>(run, count, outs, out_count, streaming);
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

void reduce_all_simd(cpu::Reduction what, const void* const* sources, void* out, std::int64_t count, std::int64_t divisor) {
  const Reduction run{what.op, sources, what.source_count, divisor};
  with_element_type(what.dtype, [&]<class T>(T) { reduce_to_one<T>(run, count, out); });
}

void reduce_all_to_many_simd(cpu::Reduction what, const void* const* sources, void* const* outs, int out_count,
                             std::int64_t count, std::int64_t divisor, bool streaming) {
  const Reduction run{what.op, sources, what.source_count, divisor};
  with_element_type(what.dtype, [&]<class T>(T) { reduce_to_many<T>(run, count, outs, out_count, streaming); });
  if (streaming) hwy::FlushStream();
}

void copy_simd(const void* from, void* to, std::size_t bytes) {
  copy_bytes(static_cast<const std::byte*>(from), static_cast<std::byte*>(to), bytes, true);
  hwy::FlushStream();
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
      using U = std::make_unsigned_t<T>;  // wraps, and has the same bits
      multiply_elements<U>(x, out, count, static_cast<U>(to_integer<T>(factor)));
    } else {
      multiply_elements<T>(x, out, count, static_cast<Accumulator<T>>(factor));
    }
  });
}

}  // namespace stretto::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stretto::kernels::cpu {

HWY_EXPORT(reduce_all_simd);
HWY_EXPORT(reduce_all_to_many_simd);
HWY_EXPORT(copy_simd);
HWY_EXPORT(divide_simd);
HWY_EXPORT(multiply_simd);

void reduce_all(Reduction reduction, const void* const* sources, void* out, std::int64_t count, std::int64_t divisor) {
  STRETTO_DISPATCH(reduce_all_simd)(reduction, sources, out, count, divisor);
}

void reduce_all(Reduction reduction, const void* const* sources, void* const* outs, int out_count, std::int64_t count,
                std::int64_t divisor, bool streaming) {
  STRETTO_DISPATCH(reduce_all_to_many_simd)(reduction, sources, outs, out_count, count, divisor, streaming);
}

void copy_streaming(const void* from, void* to, std::size_t bytes) { STRETTO_DISPATCH(copy_simd)(from, to, bytes); }

void divide(DType dtype, void* x, std::int64_t count, std::int64_t divisor) {
  STRETTO_DISPATCH(divide_simd)(dtype, x, count, divisor);
}

void multiply(DType dtype, const void* x, void* out, std::int64_t count, double factor) {
  STRETTO_DISPATCH(multiply_simd)(dtype, x, out, count, factor);
}

}  // namespace stretto::kernels::cpu
#endif
