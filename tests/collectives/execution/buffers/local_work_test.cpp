// A rank's local work in parts: any cut gives the same bits as a single part.
#include "collectives/execution/buffers/local_work.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "collectives/gaussian_data.hpp"

namespace stretto {
namespace {

using gaussian_data::gaussian;

constexpr std::int64_t count = 5001;
constexpr int vectors = 3;

struct Memory {
  std::vector<std::byte> destination;
  std::vector<float> residual;
  bool operator==(const Memory&) const = default;
};

// Does the work in parts of at most `bytes` bytes, or of one quantization group if that is larger.
Memory done_in_parts(LocalWork work, std::size_t bytes, bool keeps_errors) {
  Memory memory{std::vector<std::byte>(std::size_t{1} << 16), std::vector<float>(count, 0.25F)};
  work.destination = memory.destination.data();
  if (keeps_errors) work.quantizing.residual = memory.residual.data();
  const std::int64_t group = std::max(group_elements(work.source_format), group_elements(work.destination_format));
  const auto least = static_cast<std::size_t>(group) * size_of(work.dtype) * static_cast<std::size_t>(work.vectors);
  int parts = 0;
  while (!work.complete()) {
    EXPECT_LE(work.advance(bytes), std::max(bytes, least));
    ++parts;
  }
  EXPECT_EQ(parts > 1, bytes < count * size_of(work.dtype) * static_cast<std::size_t>(work.vectors)) << bytes << " bytes";
  return memory;
}

void expect_same_in_parts(const LocalWork& work, bool keeps_errors = false) {
  const Memory whole = done_in_parts(work, std::size_t{1} << 30, keeps_errors);
  for (const std::size_t bytes : {1, 1000, 10'000, 20'000}) {
    EXPECT_EQ(done_in_parts(work, bytes, keeps_errors), whole)
        << bytes << " bytes, step kind " << static_cast<int>(work.kind);
  }
}

std::vector<std::byte> packed_vectors(QuantizedFormat format, std::int64_t distance) {
  std::vector<std::byte> records(static_cast<std::size_t>(vectors * distance));
  for (int i = 0; i < vectors; ++i) {
    kernels::quantize(format, DType::f32, gaussian(count, DType::f32, i).raw(), records.data() + i * distance, count);
  }
  return records;
}

TEST(LocalWork, MovesAndAddsElements) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    const Tensor x = gaussian(vectors * count, dtype, 1);
    LocalWork work;
    work.source = static_cast<const std::byte*>(x.raw());
    work.count = count;
    work.dtype = dtype;
    expect_same_in_parts(work);
    work.kind = StepKind::reduce;
    work.vectors = vectors;
    work.distance = count * static_cast<std::int64_t>(size_of(dtype));
    work.divisor = 3;
    expect_same_in_parts(work);
  }
}

TEST(LocalWork, Quantizes) {
  for (const QuantizedFormat format : {QuantizedFormat::int8, QuantizedFormat::int4, QuantizedFormat::onebit}) {
    const Tensor x = gaussian(count, DType::bf16, 1);
    LocalWork work;
    work.kind = StepKind::quantize;
    work.source = static_cast<const std::byte*>(x.raw());
    work.count = count;
    work.dtype = DType::bf16;
    work.destination_format = format;
    expect_same_in_parts(work, false);
    expect_same_in_parts(work, true);
    if (format == QuantizedFormat::onebit) continue;
    work.quantizing.rounding = Rounding::stochastic;
    expect_same_in_parts(work, true);
    LocalWork elsewhere = work;  // the control: rounding depends on the elements' numbers
    elsewhere.quantizing.first_element = 64;
    EXPECT_NE(done_in_parts(elsewhere, 1000, true), done_in_parts(work, 1000, true));
  }
}

TEST(LocalWork, AddsUpRecords) {
  for (const QuantizedFormat format : {QuantizedFormat::int8, QuantizedFormat::int4, QuantizedFormat::onebit}) {
    LocalWork work;
    work.distance = packed_bytes(format, count) + record_bytes(format);
    const std::vector<std::byte> records = packed_vectors(format, work.distance);
    work.kind = StepKind::dequantize;
    work.source = records.data();
    work.count = count;
    work.source_format = format;
    expect_same_in_parts(work);
    work.kind = StepKind::dequantize_reduce;
    work.vectors = vectors;
    work.divisor = 3;
    expect_same_in_parts(work);
    work.kind = StepKind::requantize;
    for (const QuantizedFormat to : {QuantizedFormat::int8, QuantizedFormat::int4, QuantizedFormat::onebit}) {
      work.destination_format = to;
      expect_same_in_parts(work, true);
    }
  }
}

}  // namespace
}  // namespace stretto
