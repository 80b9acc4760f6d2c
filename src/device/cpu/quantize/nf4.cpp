#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/quantize/nf4.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file again:
#include "device/cpu/cpu_level.hpp"
#include "device/cpu/host_kernels.hpp"
#include "device/cpu/simd-inl.hpp"
#include "device/kernels/nf4.hpp"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::HWY_NAMESPACE {

void restore_nf4_simd(const std::uint8_t* record, float* out) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> whole;
  const hn::Rebind<std::uint8_t, decltype(d)> bytes;
  constexpr std::int64_t half = nf4::group / 2;
  nf4::Scales scales;
  std::memcpy(&scales.least, record, sizeof scales.least);
  std::memcpy(&scales.step, record + 2, sizeof scales.step);
  for (std::int64_t g = 0; g < nf4::groups; ++g) {
    const auto scale = hn::Set(d, scales.scale(record[nf4::scales_at + g]));
    const std::uint8_t* const codes = record + nf4::codes_at + g * half;
    float* const to = out + g * nf4::group;
    for (std::int64_t i = 0; i < half; i += static_cast<std::int64_t>(hn::Lanes(d))) {
      const auto both = hn::PromoteTo(whole, hn::LoadU(bytes, codes + i));
      const auto low = hn::And(both, hn::Set(whole, 15));
      hn::StoreU(hn::Mul(hn::GatherIndex(d, nf4::levels, low), scale), d, to + i);
      hn::StoreU(hn::Mul(hn::GatherIndex(d, nf4::levels, hn::ShiftRight<4>(both)), scale), d, to + half + i);
    }
  }
}

}  // namespace stretto::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stretto::kernels::cpu {

HWY_EXPORT(restore_nf4_simd);

void restore_nf4(const std::uint8_t* record, float* out) { STRETTO_DISPATCH(restore_nf4_simd)(record, out); }

void store_nf4(const float* x, std::uint8_t* record) {
  float largest[nf4::groups];
  float least = std::numeric_limits<float>::max(), most = 0;
  for (std::int64_t g = 0; g < nf4::groups; ++g) {
    largest[g] = 0;
    for (std::int64_t i = 0; i < nf4::group; ++i) largest[g] = std::max(largest[g], std::fabs(x[g * nf4::group + i]));
    if (largest[g] > 0) least = std::min(least, largest[g]);
    most = std::max(most, largest[g]);
  }
  const nf4::Scales scales = nf4::Scales::of(std::min(least, most), most);
  std::memcpy(record, &scales.least, sizeof scales.least);
  std::memcpy(record + 2, &scales.step, sizeof scales.step);
  constexpr std::int64_t half = nf4::group / 2;
  for (std::int64_t g = 0; g < nf4::groups; ++g) {
    const int number = scales.number_for(largest[g]);
    const float scale = scales.scale(number);
    const float inverse = scale > 0 ? 1 / scale : 0;
    const float* const from = x + g * nf4::group;
    record[nf4::scales_at + g] = static_cast<std::uint8_t>(number);
    for (std::int64_t i = 0; i < half; ++i) {
      const int low = nf4::code_of(from[i] * inverse), high = nf4::code_of(from[half + i] * inverse);
      record[nf4::codes_at + g * half + i] = static_cast<std::uint8_t>(low | high << 4);
    }
  }
}

}  // namespace stretto::kernels::cpu
#endif
