#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>

// The parts of nf4 that the host and the GPU share. A record is of 256 groups of 64 elements:
//   least   bf16  the least scale of the groups, rounded down
//   step    bf16  rounded up, so that the largest scale is reached
//   scales  256 bytes: the scale of group g is least + scales[g] * step, where the product is exact in f32
//   codes   256 times 32 bytes: byte i of a group is the code of element i, and 16 times that of element i + 32
namespace stretto::kernels::nf4 {

constexpr std::int64_t group = 64, groups = 256, record_elements = group * groups;
constexpr std::int64_t scales_at = 4, codes_at = scales_at + groups, record_bytes = codes_at + record_elements / 2;

// Quantiles of a normal distribution between -1 and 1, with 0 among them (Dettmers et al. 2023, appendix E).
constexpr float levels[16] = {-1.0F,
                              -0.6961928009986877F,
                              -0.5250730514526367F,
                              -0.39491748809814453F,
                              -0.28444138169288635F,
                              -0.18477343022823334F,
                              -0.09105003625154495F,
                              0.0F,
                              0.07958029955625534F,
                              0.16093020141124725F,
                              0.24611230194568634F,
                              0.33791524171829224F,
                              0.44070982933044434F,
                              0.5626170039176941F,
                              0.7229568362236023F,
                              1.0F};
constexpr float between(int lower) { return levels[lower] + (levels[lower + 1] - levels[lower]) / 2; }
// The code of the level nearest to x.
constexpr int code_of(float x) {
  constexpr float limits[15] = {between(0),  between(1),  between(2),  between(3),  between(4),
                                between(5),  between(6),  between(7),  between(8),  between(9),
                                between(10), between(11), between(12), between(13), between(14)};
  int code = 0;
  for (const float limit : limits) code += x > limit ? 1 : 0;
  return code;
}

constexpr std::uint16_t rounded_down(float x) { return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16); }
constexpr std::uint16_t rounded_up(float x) {
  return static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(x) + 0xffff) >> 16);
}
constexpr float widened(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

// The scales of a record's groups.
struct Scales {
  std::uint16_t least = 0, step = 0;

  // Of the largest |x| of the groups; groups of zeros do not count for the smallest.
  static constexpr Scales of(float smallest, float largest) {
    constexpr float smallest_step = 0x1p-120F;  // its products have all their bits
    Scales scales{rounded_down(smallest), 0};
    const float spread = largest - widened(scales.least);
    if (spread > 0) scales.step = rounded_up(std::max(spread / 255, smallest_step));
    return scales;
  }
  constexpr float scale(int number) const { return widened(least) + static_cast<float>(number) * widened(step); }
  // The number of the least scale that is not below `largest`, the largest |x| of a group.
  constexpr int number_for(float largest) const {
    if (step == 0) return 0;
    int number = static_cast<int>(std::clamp((largest - widened(least)) / widened(step), 0.0F, 255.0F));
    while (number < 255 && scale(number) < largest) ++number;
    return number;
  }
};

}  // namespace stretto::kernels::nf4
