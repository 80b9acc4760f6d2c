#include "stretto/stored_format.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "device/kernels/kernel_data.hpp"
#include "device/kernels/nf4.hpp"
#include "stretto/error.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using kernels::nf4::levels;

constexpr StoredFormat formats[] = {StoredFormat::nf4, StoredFormat::int8};

Tensor records_of(StoredFormat format, const Tensor& values) {
  Tensor records({stored_bytes(format, values.size())}, DType::u8);
  Mirror mirror;
  kernels::store_values(format, mirror(values), mirror(records));
  return records;
}

Tensor restored(StoredFormat format, const Tensor& records, const Shape& shape, DType dtype) {
  Tensor values(shape, dtype);
  Mirror mirror;
  kernels::restore_values(format, mirror(records), mirror(values));
  return values;
}

TEST(StoredFormat, TakesTheBitsThatItSays) {
  const double elements = 1 << 20;
  EXPECT_NEAR(8 * static_cast<double>(stored_bytes(StoredFormat::nf4, 1 << 20)) / elements, 4 + 8.0 / 64 + 32.0 / (64 * 256),
              1e-12);
  EXPECT_NEAR(8 * static_cast<double>(stored_bytes(StoredFormat::int8, 1 << 20)) / elements, 8.125, 1e-12);
  EXPECT_EQ(stored_bytes(StoredFormat::nf4, 1), stored_record_bytes(StoredFormat::nf4));
  EXPECT_EQ(stored_bytes(StoredFormat::plain, 1000), 0);
  for (const StoredFormat format : {StoredFormat::plain, StoredFormat::nf4, StoredFormat::int8}) {
    EXPECT_EQ(stored_format_from_name(name(format)), format);
  }
  EXPECT_EQ(sentence_of([] { stored_format_from_name("nf5"); }),
            "'nf5' is no format of stored values; choose one of plain, nf4, int8.");
}

// Groups of one scale, which is exact: each has 1 and -1, and so all levels come back as they are.
TEST(StoredFormat, LevelsOfNf4AreExact) {
  Tensor values({64 * 300}, DType::f32);
  for (std::int64_t i = 0; i < values.size(); ++i) values.set(i, 0.5 * levels[(i + i / 64) % 16]);
  const Tensor records = records_of(StoredFormat::nf4, values);
  const Tensor again = restored(StoredFormat::nf4, records, values.shape(), DType::f32);
  for (std::int64_t i = 0; i < values.size(); ++i) ASSERT_EQ(again.at(i), values.at(i)) << i;
  const Tensor same = records_of(StoredFormat::nf4, again);
  EXPECT_TRUE(std::equal(same.data<std::uint8_t>(), same.data<std::uint8_t>() + same.size(), records.data<std::uint8_t>()));
}

TEST(StoredFormat, ErrorsOfNf4AreSmall) {
  constexpr std::int64_t count = 64 * 300 + 17;  // one whole record and a short one
  const double most_of_gap = (levels[1] - levels[0]) / 2;
  for (const DType dtype : compute_types) {
    const Tensor values = random_tensor({count}, dtype, 3);
    const Tensor again = restored(StoredFormat::nf4, records_of(StoredFormat::nf4, values), values.shape(), dtype);
    for (std::int64_t first = 0; first < count; first += 64) {
      double largest = 0, error = 0;
      for (std::int64_t i = first; i < std::min(first + 64, count); ++i) {
        largest = std::max(largest, std::abs(values.at(i)));
        error = std::max(error, std::abs(values.at(i) - again.at(i)));
      }
      ASSERT_LE(error, most_of_gap * largest * 1.02 + 2e-3) << "group " << first / 64 << " of " << name(dtype);
    }
  }
}

// Groups of zeros among others, and a record of zeros alone.
TEST(StoredFormat, KeepsZeros) {
  Tensor values({64 * 257}, DType::f32);
  values.zero();
  for (std::int64_t i = 0; i < 64 * 256; ++i)
    values.set(i, i / 64 % 2 == 0 ? 0 : std::ldexp(1, static_cast<int>(i / 64 % 8)));
  for (const StoredFormat format : formats) {
    const Tensor again = restored(format, records_of(format, values), values.shape(), DType::f32);
    for (std::int64_t i = 0; i < values.size(); ++i) {
      if (values.at(i) == 0) {
        ASSERT_EQ(again.at(i), 0) << i;
      } else {
        ASSERT_NEAR(again.at(i), values.at(i), 1.01) << i;  // 1/255 of the largest, rounded up
        ASSERT_LE(values.at(i), again.at(i) * 1.0001) << i;
      }
    }
  }
}

TEST(StoredFormat, TypesGiveTheSameRecords) {
  const Tensor narrow = random_tensor({64 * 260}, DType::bf16, 5);
  for (const StoredFormat format : formats) {
    const Tensor expected = records_of(format, narrow);
    for (const DType dtype : {DType::f64, DType::f32}) {
      Tensor wide(narrow.shape(), dtype);
      for (std::int64_t i = 0; i < wide.size(); ++i) wide.set(i, narrow.at(i));
      const Tensor records = records_of(format, wide);
      EXPECT_TRUE(std::equal(records.data<std::uint8_t>(), records.data<std::uint8_t>() + records.size(),
                             expected.data<std::uint8_t>()));
      const Tensor a = restored(format, expected, narrow.shape(), DType::f32);
      const Tensor b = restored(format, expected, narrow.shape(), DType::f64);
      for (std::int64_t i = 0; i < a.size(); ++i) ASSERT_EQ(a.at(i), b.at(i)) << i;
    }
  }
}

TEST(StoredFormat, RefusesWhatDoesNotFit) {
  const Tensor values({100}, DType::f32), records({10}, DType::u8);
  EXPECT_EQ(sentence_of([&] { kernels::store_values(StoredFormat::nf4, values, records); }),
            "store_values needs 8452 bytes of nf4 records for 100 values, and got 10 of u8.");
  EXPECT_THROW(kernels::restore_values(StoredFormat::plain, records, values), Error);
}

}  // namespace
}  // namespace stretto
