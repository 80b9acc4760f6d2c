// The frequencies of rotary positions: numbers that transformers' formulas give in PyTorch 1.13, in f32.
#include "stretto/layers/rotary.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "stretto/stretto.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using Kind = RotaryScaling::Kind;

// One unit in the last place: powers of PyTorch are nearly always the rounded ones.
void expect_numbers(const std::vector<float>& found, const std::vector<float>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1.2e-7 * expected[i]) << "pair " << i;
}

std::vector<float> frequencies(double theta, const RotaryScaling& scaling, std::int64_t sequence = 0) {
  return rotary_frequencies(theta, 16, scaling, sequence).frequency;
}

const std::vector<float> unscaled = {1,     0.316227764F,   0.100000001F,   0.0316227786F,
                                     0.01F, 0.00316227786F, 0.00100000005F, 0.000316227786F};

TEST(RotaryFrequencies, FallWithThePair) {
  expect_numbers(frequencies(1e4, {}), unscaled);
  const RotaryFrequencies smol = rotary_frequencies(1e5, 64);
  expect_numbers({smol.frequency[0], smol.frequency[1], smol.frequency[15], smol.frequency[31]},
                 {1, 0.697830558F, 0.00453158375F, 1.43301268e-05F});
  EXPECT_EQ(smol.attention_factor, 1);
}

TEST(RotaryFrequencies, AreScaledAsTransformersScalesThem) {
  expect_numbers(
      frequencies(1e4, {.kind = Kind::linear, .factor = 4}),
      {0.25F, 0.079056941F, 0.0250000004F, 0.00790569466F, 0.0025F, 0.000790569466F, 0.000250000012F, 7.90569466e-05F});
  const RotaryScaling dynamic{.kind = Kind::dynamic, .factor = 2, .original_positions = 2048};
  expect_numbers(frequencies(1e4, dynamic, 5000), {1, 0.260517091F, 0.0678691566F, 0.0176810753F, 0.00460622227F,
                                                   0.00119999971F, 0.000312620425F, 8.14429659e-05F});
  expect_numbers(frequencies(1e4, dynamic, 100), unscaled);
  expect_numbers(frequencies(1e4, dynamic), unscaled);
  expect_numbers(
      frequencies(5e5, {.kind = Kind::llama3, .factor = 8, .original_positions = 8192}),
      {1, 0.193922758F, 0.0376060307F, 0.00729266508F, 0.000524846022F, 3.42810235e-05F, 6.64786967e-06F, 1.28917316e-06F});
  RotaryScaling yarn{.kind = Kind::yarn, .factor = 4, .original_positions = 4096};
  expect_numbers(frequencies(1e4, yarn), {1, 0.316227764F, 0.100000001F, 0.025693506F, 0.00624999963F, 0.00138349656F,
                                          0.000250000012F, 7.90569466e-05F});
  yarn.truncate = false;
  expect_numbers(frequencies(1e4, yarn), {1, 0.316227764F, 0.100000001F, 0.0286136102F, 0.006556971F, 0.00128563191F,
                                          0.000250000012F, 7.90569466e-05F});
  yarn = {.kind = Kind::yarn, .factor = 2.5, .original_positions = 32768, .beta_fast = 16, .beta_slow = 2};
  expect_numbers(frequencies(1e6, yarn), {1, 0.177827939F, 0.0316227786F, 0.00562341325F, 0.0007F, 7.11311732e-05F,
                                          1.26491104e-05F, 2.24936525e-06F});
  EXPECT_GT(std::abs(frequencies(1e4, dynamic, 5000)[3] - unscaled[3]), 1e-3) << "the control";
}

TEST(RotaryFrequencies, HaveYarnsAttentionFactor) {
  RotaryScaling yarn{.kind = Kind::yarn, .factor = 4, .original_positions = 4096};
  const auto factor = [&] { return rotary_frequencies(1e4, 16, yarn).attention_factor; };
  EXPECT_DOUBLE_EQ(factor(), 0.1 * std::log(4) + 1);
  yarn.mscale = 0.707;
  EXPECT_DOUBLE_EQ(factor(), 0.1 * std::log(4) + 1) << "it takes both";
  yarn.mscale_all_dim = 1;
  EXPECT_DOUBLE_EQ(factor(), (0.0707 * std::log(4) + 1) / (0.1 * std::log(4) + 1));
  yarn.attention_factor = 1.25;
  EXPECT_EQ(factor(), 1.25);
  const Tensor plain = rotary_table(rotary_frequencies(1e4, 16), 5, DType::f32);
  RotaryFrequencies twice = rotary_frequencies(1e4, 16);
  twice.attention_factor = 2;
  const Tensor table = rotary_table(twice, 5, DType::f32);
  for (std::int64_t i = 0; i < table.size(); ++i) EXPECT_EQ(table.at(i), 2 * plain.at(i));
}

TEST(RotaryTable, HoldsCosinesAndSinesOfAnglesInF32) {
  const RotaryFrequencies frequencies = rotary_frequencies(1e4, 64);
  const Tensor wide = rotary_table(frequencies, 3001, DType::f64), table = rotary_table(frequencies, 3001, DType::bf16);
  EXPECT_EQ(wide.dtype(), DType::f64);
  EXPECT_EQ(table.dtype(), DType::f32);
  EXPECT_EQ(table.shape(), (Shape{3001, 2, 32}));
  double beyond_f32 = 0;
  for (std::int64_t position = 0; position < 3001; position += 500) {
    for (std::int64_t i = 0; i < 32; ++i) {
      const float frequency = frequencies.frequency[static_cast<std::size_t>(i)],
                  angle = static_cast<float>(position) * frequency;
      const std::int64_t cosine = position * 64 + i;
      EXPECT_EQ(table.at(cosine), static_cast<float>(std::cos(double{angle})));
      EXPECT_EQ(table.at(cosine + 32), static_cast<float>(std::sin(double{angle})));
      EXPECT_EQ(wide.at(cosine), table.at(cosine));
      const double exact = std::cos(static_cast<double>(position) * double{frequency});
      beyond_f32 = std::max(beyond_f32, std::abs(table.at(cosine) - exact));
    }
  }
  EXPECT_GT(beyond_f32, 1e-6) << "the control: angles in f64";
}

TEST(RotaryFrequencies, AreRefusedInASentence) {
  const auto refusal = [](double theta, std::int64_t head_size, const RotaryScaling& scaling) {
    return sentence_of([&] { (void)rotary_frequencies(theta, head_size, scaling); });
  };
  EXPECT_EQ(refusal(1e4, 16, {}), "");
  EXPECT_EQ(refusal(1e4, 15, {}), "Rotary positions turn pairs of elements, so heads cannot have 15 elements.");
  EXPECT_EQ(refusal(0, 16, {}), "Rotary positions need a theta above 1, but were given 0.");
  EXPECT_EQ(refusal(1e4, 16, {.kind = Kind::linear, .factor = 0.5}),
            "A context is extended by a factor of at least 1, not by 0.5.");
  EXPECT_EQ(refusal(1e4, 16, {.kind = Kind::yarn, .factor = 2}),
            "This scaling of rotary positions needs the number of original positions, at least 1, but was given 0.");
  EXPECT_EQ(refusal(1e4, 2, {.kind = Kind::dynamic, .factor = 2, .original_positions = 8}),
            "Dynamic scaling of rotary positions needs heads of more than 2 elements.");
  EXPECT_EQ(refusal(1e4, 16, {.kind = Kind::llama3, .factor = 2, .original_positions = 8, .low_frequency_factor = 4}),
            "Llama 3's scaling needs a high frequency factor above the low one, but was given 4 and 4.");
  EXPECT_EQ(refusal(1e4, 16, {.kind = Kind::yarn, .factor = 2, .original_positions = 8, .beta_fast = 0.5}),
            "YaRN needs a beta_fast of at least beta_slow, but was given 0.5 and 1.");
}

}  // namespace
}  // namespace stretto
