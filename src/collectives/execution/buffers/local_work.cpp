#include "collectives/execution/buffers/local_work.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/fail.hpp"

namespace stretto {
namespace {

// The offset of an element in bytes. A packed element must be the first of a group.
std::int64_t place_of(std::int64_t element, QuantizedFormat format, DType dtype) {
  return format == QuantizedFormat::none ? element * static_cast<std::int64_t>(size_of(dtype))
                                         : packed_bytes(format, element);
}

}  // namespace

std::size_t LocalWork::advance(std::size_t bytes) {
  // Sizes of groups are powers of two, so a group of the larger size holds whole groups of the smaller one.
  const std::int64_t group = std::max(group_elements(source_format), group_elements(destination_format));
  const auto width = static_cast<std::int64_t>(size_of(dtype)) * vectors;  // bytes read for each element
  const std::int64_t part = std::max<std::int64_t>(1, static_cast<std::int64_t>(bytes) / width / group) * group;
  const std::int64_t elements = std::min(part, count - done);
  const std::byte* const from = source + place_of(done, source_format, dtype);
  std::byte* const to = destination + place_of(done, destination_format, dtype);
  if (kind == StepKind::copy) {
    std::memcpy(to, from, static_cast<std::size_t>(elements * width));
  } else {
    compute(from, to, elements);
  }
  done += elements;
  return static_cast<std::size_t>(elements * width);
}

void LocalWork::compute(const std::byte* from, std::byte* to, std::int64_t elements) const {
  std::vector<const void*> sources;
  sources.reserve(static_cast<std::size_t>(vectors));
  for (int i = 0; i < vectors; ++i) sources.push_back(from + i * distance);
  kernels::QuantizeOptions options = quantizing;
  options.first_element += static_cast<std::uint64_t>(done);
  if (options.residual != nullptr) options.residual += done;
  switch (kind) {
    case StepKind::reduce: return kernels::reduce_all(op, dtype, sources.data(), vectors, to, elements, divisor);
    case StepKind::quantize: return kernels::quantize(destination_format, dtype, from, to, elements, options);
    case StepKind::dequantize: return kernels::dequantize(source_format, from, dtype, to, elements);
    case StepKind::dequantize_reduce:
      return kernels::dequantize_reduce(source_format, sources.data(), vectors, dtype, to, elements, divisor);
    case StepKind::requantize:
      return kernels::requantize(source_format, sources.data(), vectors, destination_format, to, elements, divisor, options);
    default: fail(ErrorCode::internal, "Step kind {} is no local work.", static_cast<int>(kind));
  }
}

}  // namespace stretto
