#include "models/families/gguf/gguf_types.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "stretto/dtype.hpp"

namespace stretto {
namespace {

template <class T>
void plain(const std::byte* blocks, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    T element;
    std::memcpy(&element, blocks + i * static_cast<std::int64_t>(sizeof element), sizeof element);
    to[i] = static_cast<float>(element);
  }
}

constexpr std::int64_t q_elements = 32;  // of a block of a type Qn_0 or Qn_1

float half_at(const std::byte* at) {
  f16 half;
  std::memcpy(&half.bits, at, sizeof half.bits);
  return static_cast<float>(half);
}

void q8_0(const std::byte* blocks, std::int64_t count, float* to) {
  for (std::int64_t b = 0; b < count; ++b, blocks += 2 + q_elements, to += q_elements) {
    const float scale = half_at(blocks);
    const std::byte* const numbers = blocks + 2;
    for (std::int64_t i = 0; i < q_elements; ++i) to[i] = scale * static_cast<float>(static_cast<std::int8_t>(numbers[i]));
  }
}

// The lower halves of the 16 bytes are the first 16 numbers, the upper ones the others.
template <class Value>
void four_bits(const std::byte* bytes, float* to, Value value) {
  for (std::int64_t i = 0; i < q_elements / 2; ++i) {
    to[i] = value(static_cast<float>(bytes[i] & std::byte{15}));
    to[i + q_elements / 2] = value(static_cast<float>(bytes[i] >> 4));
  }
}

void q4_0(const std::byte* blocks, std::int64_t count, float* to) {
  for (std::int64_t b = 0; b < count; ++b, blocks += 2 + q_elements / 2, to += q_elements) {
    const float scale = half_at(blocks);
    four_bits(blocks + 2, to, [&](float number) { return scale * (number - 8); });
  }
}

void q4_1(const std::byte* blocks, std::int64_t count, float* to) {
  for (std::int64_t b = 0; b < count; ++b, blocks += 4 + q_elements / 2, to += q_elements) {
    const float scale = half_at(blocks), least = half_at(blocks + 2);
    four_bits(blocks + 4, to, [&](float number) { return scale * number + least; });  // the product is exact
  }
}

// Also those that nothing here reads: the places of all tensors of a file are checked.
constexpr GgufType gguf_types[] = {
    {0, "F32", 1, 4, plain<float>},    {1, "F16", 1, 2, plain<f16>},      {2, "Q4_0", 32, 18, q4_0},
    {3, "Q4_1", 32, 20, q4_1},         {6, "Q5_0", 32, 22, nullptr},      {7, "Q5_1", 32, 24, nullptr},
    {8, "Q8_0", 32, 34, q8_0},         {9, "Q8_1", 32, 40, nullptr},      {10, "Q2_K", 256, 84, nullptr},
    {11, "Q3_K", 256, 110, nullptr},   {12, "Q4_K", 256, 144, nullptr},   {13, "Q5_K", 256, 176, nullptr},
    {14, "Q6_K", 256, 210, nullptr},   {15, "Q8_K", 256, 292, nullptr},   {16, "IQ2_XXS", 256, 66, nullptr},
    {17, "IQ2_XS", 256, 74, nullptr},  {18, "IQ3_XXS", 256, 98, nullptr}, {19, "IQ1_S", 256, 50, nullptr},
    {20, "IQ4_NL", 32, 18, nullptr},   {21, "IQ3_S", 256, 110, nullptr},  {22, "IQ2_S", 256, 82, nullptr},
    {23, "IQ4_XS", 256, 136, nullptr}, {24, "I8", 1, 1, nullptr},         {25, "I16", 1, 2, nullptr},
    {26, "I32", 1, 4, nullptr},        {27, "I64", 1, 8, nullptr},        {28, "F64", 1, 8, nullptr},
    {29, "IQ1_M", 256, 56, nullptr},   {30, "BF16", 1, 2, plain<bf16>},   {34, "TQ1_0", 256, 54, nullptr},
    {35, "TQ2_0", 256, 66, nullptr},   {39, "MXFP4", 32, 17, nullptr},    {40, "NVFP4", 64, 36, nullptr},
    {41, "Q1_0", 128, 18, nullptr}};

}  // namespace

const GgufType* gguf_type(std::uint32_t number) {
  const auto* const found = std::ranges::find(gguf_types, number, &GgufType::number);
  return found == std::end(gguf_types) ? nullptr : found;
}

}  // namespace stretto
