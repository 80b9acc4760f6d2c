#include "layers/optimizer/kept_momentum.hpp"

#include <algorithm>
#include <cstring>

#include "core/parts.hpp"
#include "stretto/kernels.hpp"

namespace stretto {
namespace {

constexpr std::int64_t chunk = std::int64_t{1} << 16;  // elements that are unpacked at a time: whole groups

}  // namespace

KeptMomentum::KeptMomentum(QuantizedFormat format, const Communicator& group, std::int64_t elements, DType dtype)
    : format_(format), shares_(part_sizes(elements, group.size())) {
  const MemoryScope memory(MemoryKind::optimizer);
  if (format == QuantizedFormat::none) {
    kept_ = Tensor({elements}, dtype);
  } else {
    kept_ = Tensor({bytes(format, group.size(), elements, dtype)}, DType::u8);
  }
}

std::int64_t KeptMomentum::bytes(QuantizedFormat format, int ranks, std::int64_t elements, DType dtype) {
  if (format == QuantizedFormat::none) return elements * static_cast<std::int64_t>(size_of(dtype));
  std::int64_t sum = 0;
  for (const std::int64_t share : part_sizes(elements, ranks)) sum += packed_bytes(format, share);
  return sum;
}

// The mean of a group's magnitudes may be rounded, so that the scale is written once more, as it was.
void KeptMomentum::keep(const Tensor& momentum) {
  has_value_ = true;
  if (format_ == QuantizedFormat::none) return kept_.copy_from(momentum);
  const float* from = momentum.data<float>();
  auto* record = kept_.data<std::uint8_t>();
  for (const std::int64_t share : shares_) {
    kernels::quantize(format_, DType::f32, from, record, share);
    for (std::int64_t first = 0; first < share; first += group_elements(format_)) {
      const float scale = std::abs(from[first]);
      std::memcpy(record, &scale, sizeof scale);
      record += record_bytes(format_);
    }
    from += share;
  }
}

void KeptMomentum::add_to(const Tensor& to, double factor) const {
  const bool is_plain = format_ == QuantizedFormat::none;
  const MemoryScope memory(MemoryKind::buffers);
  const Tensor some({std::min(chunk, to.size())}, to.dtype(), Device::cpu);
  const std::uint8_t* record = is_plain ? nullptr : kept_.data<std::uint8_t>();
  std::int64_t begin = 0;  // of the share
  for (const std::int64_t share : shares_) {
    for (std::int64_t first = 0; first < share; first += chunk) {
      const std::int64_t count = std::min(chunk, share - first);
      const Tensor part = some.view(0, {count}), target = to.view(begin + first, {count});
      if (is_plain) {
        part.copy_from(kept_.view(begin + first, {count}));
      } else {
        kernels::dequantize(format_, record, DType::f32, part.raw(), count);
        record += packed_bytes(format_, count);
      }
      kernels::scale(part, factor);
      kernels::add(target, part, target);
    }
    begin += share;
  }
}

}  // namespace stretto
