#include "stretto/tensor.hpp"

#include <fmt/ranges.h>

#include <cstring>

#include "core/fail.hpp"
#include "device/element_types.hpp"
#include "device/memory.hpp"
#include "stretto/memory.hpp"

namespace stretto {
namespace {

std::int64_t elements(const Shape& shape) {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) {
    require(extent >= 0, "A tensor of shape {} has a negative extent.", shape);
    require(!__builtin_mul_overflow(product, extent, &product) && product <= std::int64_t{1} << 56,
            "A tensor of shape {} has more elements than any memory.", shape);
  }
  return product;
}

}  // namespace

Tensor::Tensor(Shape shape, DType dtype, Allocate allocate)
    : shape_(std::move(shape)), size_(elements(shape_)), dtype_(dtype) {
  memory_ = allocate(bytes());
  memory_end_ = memory_.get() + bytes();
  data_ = memory_.get();
}

Tensor::Tensor(Shape shape, DType dtype) : Tensor(std::move(shape), dtype, pool_allocate) {}

Tensor Tensor::symmetric(Shape shape, DType dtype) { return {std::move(shape), dtype, stretto::allocate}; }

Tensor Tensor::zeros(Shape shape, DType dtype) {
  Tensor result(std::move(shape), dtype);
  result.zero();
  return result;
}

Tensor Tensor::view(std::int64_t first_element, Shape shape) const {
  const std::int64_t count = elements(shape);
  require(first_element >= 0 && first_element + count <= size_,
          "A view of {} elements from element {} on does not fit into a tensor of shape {}.", count, first_element, shape_);
  Tensor result = *this;
  result.data_ = static_cast<std::byte*>(data_) + static_cast<std::size_t>(first_element) * size_of(dtype_);
  result.shape_ = std::move(shape);
  result.size_ = count;
  return result;
}

Tensor Tensor::view(std::size_t first_byte, Shape shape, DType dtype) const {
  const std::size_t count = static_cast<std::size_t>(elements(shape)) * size_of(dtype);
  require(first_byte + count <= bytes(),
          "A view of {} bytes of {} from byte {} on does not fit into the {} bytes of a tensor.", count, name(dtype),
          first_byte, bytes());
  require((reinterpret_cast<std::uintptr_t>(data_) + first_byte) % size_of(dtype) == 0,
          "A view of {} from byte {} on is not aligned; begin where the address is a multiple of {}.", name(dtype),
          first_byte, size_of(dtype));
  Tensor result = *this;
  result.data_ = static_cast<std::byte*>(data_) + first_byte;
  result.shape_ = std::move(shape);
  result.size_ = elements(result.shape_);
  result.dtype_ = dtype;
  return result;
}

Tensor Tensor::spanning(std::int64_t elements) const {
  const auto room = (memory_end_ - static_cast<std::byte*>(data_)) / static_cast<std::ptrdiff_t>(size_of(dtype_));
  require(elements >= 0 && elements <= room, "A view of {} elements does not fit into the {} that are left there.", elements,
          room);
  Tensor result = *this;
  result.shape_ = {elements};
  result.size_ = elements;
  return result;
}

Tensor Tensor::clone() const {
  Tensor result(shape_, dtype_);
  result.copy_from(*this);
  return result;
}

double Tensor::at(std::int64_t i) const {
  double value = 0;
  with_element_type(dtype_, [&]<class T>(T) {
    const T element = static_cast<const T*>(data_)[i];
    if constexpr (std::is_arithmetic_v<T>) {
      value = static_cast<double>(element);
    } else {
      value = static_cast<float>(element);
    }
  });
  return value;
}

void Tensor::set(std::int64_t i, double value) const {
  with_element_type(dtype_, [&]<class T>(T) {
    T& element = static_cast<T*>(data_)[i];
    if constexpr (std::is_integral_v<T>) {
      element = to_integer<T>(value);
    } else if constexpr (std::is_floating_point_v<T>) {
      element = static_cast<T>(value);
    } else {
      element = T(static_cast<float>(value));
    }
  });
}

void Tensor::zero() const { std::memset(data_, 0, bytes()); }

void Tensor::copy_from(const Tensor& other) const {
  require(other.dtype_ == dtype_ && other.size_ == size_, "Cannot copy {} {} elements into {} {} elements.", other.size_,
          name(other.dtype_), size_, name(dtype_));
  std::memcpy(data_, other.data_, bytes());
}

void Tensor::check_type(DType wanted) const {
  require(wanted == dtype_, "A tensor of {} was read as {}.", name(dtype_), name(wanted));
}

}  // namespace stretto
