#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "device/element_types.hpp"
#include "device/kernels/elements.hpp"
#include "device/kernels/kernel_data.hpp"
#include "device/kernels/quantize_data.hpp"

// The vector code against the plain code.
namespace stretto::kernels::tested {
namespace {

constexpr DType all_dtypes[] = {DType::f32, DType::bf16, DType::f16};
using Bytes = Elements<std::uint8_t>;

// The numbers as elements of a type, at any address.
Bytes elements(const std::vector<float>& values, DType dtype, std::size_t misalignment = 0) {
  Bytes result(static_cast<std::int64_t>(values.size() * size_of(dtype)), misalignment);
  convert(DType::f32, values.data(), dtype, result.raw(), static_cast<std::int64_t>(values.size()));
  return result;
}

// Compares bits, except that any two NaNs are equal.
void expect_same_elements(DType dtype, const Bytes& actual, const Bytes& expected, std::int64_t count) {
  with_float_type(dtype, [&]<class T>(T) {
    for (std::int64_t i = 0; i < count; ++i) {
      T a, e;
      const std::size_t at = static_cast<std::size_t>(i) * sizeof(T);
      std::memcpy(static_cast<void*>(&a), static_cast<const std::byte*>(actual.raw()) + at, sizeof(T));
      std::memcpy(static_cast<void*>(&e), static_cast<const std::byte*>(expected.raw()) + at, sizeof(T));
      if (std::isnan(static_cast<float>(a)) && std::isnan(static_cast<float>(e))) continue;
      ASSERT_EQ(std::memcmp(&a, &e, sizeof(T)), 0)
          << "element " << i << " of " << count << " is " << static_cast<float>(a) << ", not " << static_cast<float>(e);
    }
  });
}

struct Call {
  QuantizedFormat format;
  DType dtype;
  std::int64_t count;
  Kind kind;
  Rounding rounding;
  bool feedback;
  std::size_t misalignment;
};

// Quantizes what the call says both ways, adds three such vectors both ways, and requantizes the sum both ways.
void expect_equal_to_plain(const Call& call) {
  const std::int64_t bytes = packed_bytes(call.format, call.count);
  std::vector<Bytes> records;
  for (unsigned seed = 1; seed <= 3; ++seed) {
    const Bytes x = elements(numbers(call.count, call.kind, seed), call.dtype, call.misalignment * seed);
    std::vector<float> residual = numbers(call.count, Kind::normal, seed + 10);
    std::vector<float> plain_residual = residual;
    QuantizeOptions options{call.rounding, 5, 0xfffffe00U * (seed - 1) + seed, call.feedback ? residual.data() : nullptr};
    Bytes made(bytes, call.misalignment + seed - 1);
    quantize(call.format, call.dtype, x.raw(), made.raw(), call.count, options);
    if (call.feedback) options.residual = plain_residual.data();
    Bytes expected(bytes);
    plain::quantize(call.format, call.dtype, x.raw(), expected.raw(), call.count, options);
    for (std::int64_t i = 0; i < bytes; ++i) {
      ASSERT_EQ(made[i], expected[i]) << "byte " << i % record_bytes(call.format) << " of record "
                                      << i / record_bytes(call.format);
    }
    made.expect_guards();
    ASSERT_TRUE(residual.empty() ||
                std::memcmp(residual.data(), plain_residual.data(), residual.size() * sizeof(float)) == 0);
    records.push_back(std::move(made));
  }
  const void* const vectors[] = {records[0].raw(), records[1].raw(), records[2].raw()};
  const auto out_bytes = call.count * static_cast<std::int64_t>(size_of(call.dtype));
  for (const auto& [sources, divisor] : {std::pair{1, 1}, {2, 1}, {3, 3}, {2, 4}}) {
    Bytes sum(out_bytes, call.misalignment);
    dequantize_reduce(call.format, vectors, sources, call.dtype, sum.raw(), call.count, divisor);
    Bytes expected(out_bytes);
    plain::dequantize_reduce(call.format, vectors, sources, call.dtype, expected.raw(), call.count, divisor);
    expect_same_elements(call.dtype, sum, expected, call.count);
    sum.expect_guards();
  }
  for (const QuantizedFormat to : all_formats) {
    SCOPED_TRACE(std::string("to ") + name(to));
    std::vector<float> residual = numbers(call.count, Kind::tiny);
    std::vector<float> plain_residual = residual;
    const bool rounds = to == int8 || to == int4;
    QuantizeOptions options{rounds ? call.rounding : Rounding::nearest_even, 6, 7,
                            call.feedback ? residual.data() : nullptr};
    Bytes made(packed_bytes(to, call.count), call.misalignment);
    requantize(call.format, vectors, 3, to, made.raw(), call.count, 3, options);
    if (call.feedback) options.residual = plain_residual.data();
    Bytes expected(packed_bytes(to, call.count));
    plain::requantize(call.format, vectors, 3, to, expected.raw(), call.count, 3, options);
    ASSERT_EQ(std::memcmp(made.raw(), expected.raw(), static_cast<std::size_t>(packed_bytes(to, call.count))), 0);
    made.expect_guards();
    ASSERT_TRUE(residual.empty() ||
                std::memcmp(residual.data(), plain_residual.data(), residual.size() * sizeof(float)) == 0);
  }
}

void expect_equal_to_plain(const std::vector<std::int64_t>& counts, const std::vector<Kind>& kinds) {
  for (const QuantizedFormat format : all_formats) {
    for (const DType dtype : all_dtypes) {
      for (const Rounding rounding : {Rounding::nearest_even, Rounding::stochastic}) {
        if (rounding == Rounding::stochastic && format != int8 && format != int4) continue;
        for (const bool feedback : {false, true}) {
          for (const Kind kind : kinds) {
            for (const std::int64_t count : counts) {
              SCOPED_TRACE(std::string(name(format)) + " of " + std::to_string(count) + " " + name(dtype) + ", kind " +
                           std::to_string(static_cast<int>(kind)) + (feedback ? ", feedback" : "") +
                           (rounding == Rounding::stochastic ? ", stochastic" : ""));
              expect_equal_to_plain({format, dtype, count, kind, rounding, feedback, static_cast<std::size_t>(count % 5)});
              if (testing::Test::HasFatalFailure()) return;
            }
          }
        }
      }
    }
  }
}

TEST(Quantize, EqualsThePlainCodeAtEverySize) {
  std::vector<std::int64_t> counts;
  const std::int64_t step = few_cases() ? 21 : calls_are_slow() ? 7 : 1;
  for (std::int64_t count = 0; count <= 1100; count += step * (count < 70 ? 1 : 37)) counts.push_back(count);
  for (const std::int64_t count : {1, 2, 31, 32, 64, 65, 255, 256, 257, 511, 512, 1023, 1024, 1025, 1100, 2048 + 77})
    counts.push_back(count);
  expect_equal_to_plain(counts, {Kind::normal});
}

TEST(Quantize, EqualsThePlainCodeWhateverTheNumbersAre) {
  expect_equal_to_plain(few_cases()        ? std::vector<std::int64_t>{1024 + 65}
                        : calls_are_slow() ? std::vector<std::int64_t>{2 * 1024 + 65}
                                           : std::vector<std::int64_t>{3 * 1024 + 1, 5 * 1024 + 65},
                        {Kind::mixed, Kind::bits, Kind::huge, Kind::tiny, Kind::denormal, Kind::halves, Kind::edges});
}

// Results have the same bits on every processor.
TEST(Quantize, AllInstructionSetsEqualThePlainCode) {
  on_each_instruction_set([&] { expect_equal_to_plain({63, 2 * 1024 + 77}, {Kind::normal, Kind::bits}); });
}

// The control: codes in another order give other records.
TEST(Quantize, AnotherOrderOfCodesIsSeen) {
  std::vector<float> x = numbers(64, Kind::normal);
  x[0] = 1;
  x[32] = -1;
  std::vector<float> swapped = x;
  std::swap(swapped[0], swapped[32]);
  for (const QuantizedFormat format : all_formats)
    EXPECT_NE(quantized(format, x), quantized(format, swapped)) << name(format);
}

}  // namespace
}  // namespace stretto::kernels::tested
