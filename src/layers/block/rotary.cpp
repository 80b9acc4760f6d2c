#include "stretto/layers/rotary.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/fail.hpp"
#include "stretto/device.hpp"
#include "stretto/kernels.hpp"

namespace stretto {
namespace {

using Kind = RotaryScaling::Kind;

void check(double theta, std::int64_t head_size, const RotaryScaling& scaling) {
  require(head_size >= 2 && head_size % 2 == 0, "Rotary positions turn pairs of elements, so heads cannot have {} elements.",
          head_size);
  require(theta > 1 && std::isfinite(theta), "Rotary positions need a theta above 1, but were given {}.", theta);
  if (scaling.kind == Kind::none) return;
  require(scaling.factor >= 1, "A context is extended by a factor of at least 1, not by {}.", scaling.factor);
  require(scaling.kind == Kind::linear || scaling.original_positions >= 1,
          "This scaling of rotary positions needs the number of original positions, at least 1, but was given {}.",
          scaling.original_positions);
  require(scaling.kind != Kind::dynamic || head_size > 2,
          "Dynamic scaling of rotary positions needs heads of more than 2 elements.");
  require(scaling.kind != Kind::llama3 ||
              (scaling.low_frequency_factor > 0 && scaling.high_frequency_factor > scaling.low_frequency_factor),
          "Llama 3's scaling needs a high frequency factor above the low one, but was given {} and {}.",
          scaling.high_frequency_factor, scaling.low_frequency_factor);
  require(scaling.kind != Kind::yarn || (scaling.beta_slow > 0 && scaling.beta_fast >= scaling.beta_slow),
          "YaRN needs a beta_fast of at least beta_slow, but was given {} and {}.", scaling.beta_fast, scaling.beta_slow);
}

// theta^(2i/d) in f32. Computed in f64 and rounded: PyTorch's power in f32 is nearly always the rounded one.
std::vector<float> wave_factors(double theta, std::int64_t head_size) {
  std::vector<float> result;
  for (std::int64_t i = 0; i < head_size; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(head_size);
    result.push_back(static_cast<float>(std::pow(double{static_cast<float>(theta)}, double{exponent})));
  }
  return result;
}

double dynamic_theta(double theta, std::int64_t head_size, const RotaryScaling& scaling, std::int64_t sequence) {
  const auto d = static_cast<double>(head_size), original = static_cast<double>(scaling.original_positions);
  const double longest = std::max(original, static_cast<double>(sequence));
  return theta * std::pow(scaling.factor * longest / original - (scaling.factor - 1), d / (d - 2));
}

float of_llama3(float frequency, const RotaryScaling& scaling) {
  const auto original = static_cast<double>(scaling.original_positions);
  const double low = scaling.low_frequency_factor, high = scaling.high_frequency_factor;
  const float factor = static_cast<float>(scaling.factor);
  const float wave = 1 / frequency * static_cast<float>(2 * std::numbers::pi);
  if (wave > static_cast<float>(original / low)) return frequency / factor;
  if (wave < static_cast<float>(original / high)) return frequency;
  const float turns = 1 / wave * static_cast<float>(original);
  const float smooth = (turns - static_cast<float>(low)) / static_cast<float>(high - low);
  return (1 - smooth) * frequency / factor + smooth * frequency;
}

// From the pair `begin` on, frequencies are blended with those divided by the factor, which are alone from `end` on.
struct Ramp {
  double begin, end;
};
Ramp yarn_ramp(double theta, std::int64_t head_size, const RotaryScaling& scaling) {
  const auto d = static_cast<double>(head_size);
  const auto pair_of_turns = [&](double turns) {
    return d * std::log(static_cast<double>(scaling.original_positions) / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(theta));
  };
  Ramp ramp{pair_of_turns(scaling.beta_fast), pair_of_turns(scaling.beta_slow)};
  if (scaling.truncate) ramp = {std::floor(ramp.begin), std::ceil(ramp.end)};
  ramp = {std::max(ramp.begin, 0.0), std::min(ramp.end, d - 1)};
  if (ramp.begin == ramp.end) ramp.end += 0.001;  // the ramp is a division by their difference
  return ramp;
}

double yarn_attention_factor(const RotaryScaling& scaling) {
  if (scaling.attention_factor) return *scaling.attention_factor;
  const auto factor = [&](double mscale) { return scaling.factor <= 1 ? 1 : 0.1 * mscale * std::log(scaling.factor) + 1; };
  if (scaling.mscale != 0 && scaling.mscale_all_dim != 0) return factor(scaling.mscale) / factor(scaling.mscale_all_dim);
  return factor(1);
}

float of_yarn(float wave_factor, std::size_t pair, const Ramp& ramp, double scaling_factor) {
  const float place =
      (static_cast<float>(pair) - static_cast<float>(ramp.begin)) / static_cast<float>(ramp.end - ramp.begin);
  const float unscaled = 1 - std::clamp(place, 0.0F, 1.0F);
  const float interpolated = 1 / (static_cast<float>(scaling_factor) * wave_factor);
  return interpolated * (1 - unscaled) + 1 / wave_factor * unscaled;
}

}  // namespace

RotaryFrequencies rotary_frequencies(double theta, std::int64_t head_size, const RotaryScaling& scaling,
                                     std::int64_t sequence) {
  check(theta, head_size, scaling);
  if (scaling.kind == Kind::dynamic) theta = dynamic_theta(theta, head_size, scaling, sequence);
  RotaryFrequencies result{wave_factors(theta, head_size)};
  std::vector<float>& frequency = result.frequency;
  if (scaling.kind == Kind::yarn) {
    const Ramp ramp = yarn_ramp(theta, head_size, scaling);
    for (std::size_t i = 0; i < frequency.size(); ++i) frequency[i] = of_yarn(frequency[i], i, ramp, scaling.factor);
    result.attention_factor = yarn_attention_factor(scaling);
    return result;
  }
  for (float& each : frequency) {
    each = 1 / each;
    if (scaling.kind == Kind::linear) each /= static_cast<float>(scaling.factor);
    if (scaling.kind == Kind::llama3) each = of_llama3(each, scaling);
  }
  return result;
}

Tensor rotary_table(const RotaryFrequencies& frequencies, std::int64_t positions, DType f) {
  const auto half = static_cast<std::int64_t>(frequencies.frequency.size());
  const float factor = static_cast<float>(frequencies.attention_factor);
  const auto fill = [&]<class A>(A) {
    std::vector<A> table(static_cast<std::size_t>(positions * 2 * half));
    A* to = table.data();
    for (std::int64_t position = 0; position < positions; ++position, to += 2 * half) {
      for (std::int64_t i = 0; i < half; ++i) {
        const double angle = double{static_cast<float>(position) * frequencies.frequency[static_cast<std::size_t>(i)]};
        to[i] = A{static_cast<float>(std::cos(angle)) * factor};
        to[half + i] = A{static_cast<float>(std::sin(angle)) * factor};
      }
    }
    return Tensor::of(table).reshaped({positions, 2, half});
  };
  return kernels::accumulator(f) == DType::f64 ? fill(double{}) : fill(float{});
}

}  // namespace stretto
