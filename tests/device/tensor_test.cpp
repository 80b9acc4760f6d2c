#include "stretto/tensor.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "stretto/error.hpp"

namespace stretto {
namespace {

TEST(Tensor, HoldsElementsOfEveryType) {
  for (int number = 0; number < 12; ++number) {
    const auto dtype = static_cast<DType>(number);
    SCOPED_TRACE(name(dtype));
    const Tensor tensor = Tensor::zeros({3}, dtype);
    EXPECT_EQ(tensor.bytes(), 3 * size_of(dtype));
    tensor.set(1, 12);
    EXPECT_EQ(tensor.at(0), 0);
    EXPECT_EQ(tensor.at(1), 12);
    EXPECT_EQ(tensor.at(2), 0);
  }
}

TEST(Tensor, RoundsToIntegersAndRefusesThoseBeyond) {
  const Tensor small({1}, DType::i8);
  small.set(0, -127.6);
  EXPECT_EQ(small.at(0), -128);
  for (const double beyond : {128.0, -129.0, std::nan("")}) EXPECT_THROW(small.set(0, beyond), Error);
  EXPECT_THROW(Tensor({1}, DType::u32).set(0, -1), Error);
  const Tensor large({1}, DType::u64);
  large.set(0, 0x1.8p63);
  EXPECT_EQ(*large.data<std::uint64_t>(), std::uint64_t{3} << 62);
  EXPECT_THROW(large.set(0, 0x1p64), Error);
  EXPECT_THROW(Tensor({1}, DType::i64).set(0, 0x1p63), Error);
}

TEST(Tensor, RefusesElementsThatAreNotThere) {
  const Tensor three = Tensor::zeros({3}, DType::f32);
  for (const std::int64_t i : {-1, 3}) {
    EXPECT_THROW(three.at(i), Error);
    EXPECT_THROW(three.set(i, 0), Error);
  }
  EXPECT_THROW(Tensor().data<float>(), Error);
  EXPECT_THROW(Tensor().at(0), Error);
  EXPECT_EQ(Tensor::wrap(nullptr, {0}, DType::f32).data<float>(), nullptr);
}

TEST(Tensor, WrapsMemoryOfTheProgram) {
  auto owner = std::make_shared<std::vector<float>>(std::vector<float>{1, 2, 3, 4, 5, 6});
  const std::weak_ptr<std::vector<float>> alive = owner;
  const std::size_t used = memory_use().bytes;
  Tensor view;
  {
    const Tensor tensor = Tensor::wrap(owner->data(), {2, 3}, DType::f32, owner);
    EXPECT_EQ(tensor.raw(), owner->data());
    EXPECT_EQ(tensor.device(), Device::cpu);
    EXPECT_EQ(tensor.at(5), 6);
    tensor.set(0, 7);
    EXPECT_EQ(owner->front(), 7);
    EXPECT_EQ(memory_use().bytes, used);
    owner.reset();
    view = tensor.view(std::int64_t{4}, {2});
  }
  EXPECT_FALSE(alive.expired());
  EXPECT_EQ(view.at(1), 6);
  view = {};
  EXPECT_TRUE(alive.expired());

  std::vector<double> own(4);
  EXPECT_TRUE(Tensor::wrap(own.data(), {4}, DType::f64));
  EXPECT_THROW(Tensor::wrap(nullptr, {4}, DType::f64), Error);
  EXPECT_THROW(Tensor::wrap(reinterpret_cast<char*>(own.data()) + 2, {1}, DType::f64), Error);
  EXPECT_EQ(Tensor::wrap(nullptr, {0}, DType::f64).size(), 0);
}

TEST(Tensor, ShowsItsBytesAsAnotherType) {
  const Tensor bytes = Tensor::zeros({64}, DType::u8);
  const Tensor numbers = bytes.view(std::size_t{16}, {2, 3}, DType::f64);
  EXPECT_EQ(numbers.shape(), (Shape{2, 3}));
  numbers.set(5, 1);
  EXPECT_EQ(bytes.at(16 + 47), 0x3f);
  EXPECT_EQ(numbers.view(std::size_t{40}, {}, DType::f64).at(0), 1);  // the last element
  EXPECT_THROW(bytes.view(std::size_t{12}, {2, 3}, DType::f64), Error);
  EXPECT_EQ(bytes.view(std::size_t{16}, {6}, DType::f64).size(), 6);
  EXPECT_THROW(bytes.view(std::size_t{24}, {6}, DType::f64), Error);
}

// A view may begin after the beginning of its memory.
TEST(Tensor, IsShownAsAnotherTypeWhereItsAddressIsAligned) {
  const Tensor bytes = Tensor::zeros({64}, DType::u8);
  const Tensor behind = bytes.view(std::int64_t{4}, {60});
  EXPECT_THROW(behind.view(std::size_t{0}, {2}, DType::f64), Error);
  EXPECT_THROW(behind.view(std::size_t{8}, {2}, DType::f64), Error);
  EXPECT_EQ(behind.view(std::size_t{0}, {2}, DType::f32).size(), 2);
  const Tensor numbers = behind.view(std::size_t{4}, {2}, DType::f64);
  numbers.set(0, 1);
  EXPECT_EQ(bytes.at(8 + 7), 0x3f);
}

}  // namespace
}  // namespace stretto
