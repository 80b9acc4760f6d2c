#include <algorithm>
#include <cstring>
#include <vector>

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

template <class From, class To>
void convert_row(const From* from, To* to, std::int64_t columns) {
  const hn::ScalableTag<float> d;
  for_each_vector(d, columns,
                  [&](std::int64_t c, auto lanes) HWY_ATTR { store(d, load(d, from + c, lanes), to + c, lanes); });
}

// The rows of dy whose entry the table has, sorted by entry and then by row.
struct RowOfEntry {
  std::int64_t entry, row;
  auto operator<=>(const RowOfEntry&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14 misreads it
};
std::vector<RowOfEntry> rows_by_entry(const Tensor& tokens, std::int64_t first, std::int64_t entries) {
  std::vector<RowOfEntry> result;
  for (std::int64_t row = 0; row < tokens.size(); ++row) {
    const std::int64_t entry = tokens.data<std::int32_t>()[row] - first;
    if (entry >= 0 && entry < entries) result.push_back({entry, row});
  }
  std::sort(result.begin(), result.end());
  return result;
}

// A table of 16-bit elements: each of its rows is rounded once, after all rows of dy have been added.
template <class T>
void add_rows_and_round(const std::vector<RowOfEntry>& rows, const T* dy, T* dtable, std::int64_t columns) {
  std::vector<float> sum(static_cast<std::size_t>(columns));
  for (std::size_t i = 0; i < rows.size();) {
    T* const entry = dtable + rows[i].entry * columns;
    convert_row(entry, sum.data(), columns);
    const std::size_t begin = i;
    for (; i < rows.size() && rows[i].entry == rows[begin].entry; ++i)
      add_row(dy + rows[i].row * columns, sum.data(), columns);
    convert_row(sum.data(), entry, columns);
  }
}

}  // namespace

void embedding_backward_simd(const Tensor& tokens, std::int64_t first, const Tensor& dy, const Tensor& dtable) {
  with_compute_type(dy.dtype(), [&]<class T>(T) {
    const std::int64_t columns = dy.columns();
    if constexpr (sizeof(T) == 2) {
      if (dtable.dtype() == dtype_of<T>)
        return add_rows_and_round(rows_by_entry(tokens, first, dtable.rows()), dy.data<T>(), dtable.data<T>(), columns);
    }
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
