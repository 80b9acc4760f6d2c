#include "stretto/tensor.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "core/fail.hpp"
#include "device/element_types.hpp"
#include "device/gpu.hpp"
#include "device/memory/memory.hpp"
#include "device/missing.hpp"
#include "device/stream/graph_recording.hpp"
#include "stretto/memory.hpp"

namespace stretto {
namespace {

std::int64_t elements(const Shape& shape) {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) {
    require(extent >= 0, "A tensor of shape {} has a negative extent.", shape);
    require(!__builtin_mul_overflow(product, extent, &product) && product <= std::int64_t{1} << 56,
            "A tensor of shape {} has more elements than any memory holds.", shape);
  }
  return product;
}

std::shared_ptr<std::byte> counted(std::shared_ptr<std::byte> memory, std::size_t bytes) {
  const CountedBytes counted(bytes, Device::cuda);
  counted.add();
  std::byte* const block = memory.get();
  return {block, [kept = std::move(memory), counted](std::byte*) mutable {
            kept.reset();
            counted.remove();
          }};
}

void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) gpu().copy(to, from, bytes, gpu_stream());
}

}  // namespace

std::shared_ptr<std::byte> gpu_allocate(std::size_t wanted) {
  const std::size_t bytes = std::max<std::size_t>(wanted, 1);
  Gpu& on = gpu();
  const GpuStream stream = gpu_stream();
  if (recording != nullptr && on.is_capturing(stream)) return counted(recording->memory->allocate(bytes, stream), bytes);
  // The memory keeps the GPU's stream alive, in whose order it is released. (It does not keep the Stream alive: tasks of the
  // Stream may hold such memory.)
  return counted({on.allocate(bytes, stream),
                  [&on, kept = kept_handle_of(computation())](std::byte* block) {
                    if (recording != nullptr && on.is_capturing(kept.get())) {
                      recording->memory->take_over(block, kept);
                    } else {
                      on.release(block, kept.get());
                    }
                  }},
                 bytes);
}

Tensor::Tensor(Shape shape, DType dtype, Device device, Allocate allocate)
    : shape_(shape), size_(elements(shape_)), dtype_(dtype), device_(device) {
  memory_ = allocate(bytes());
  data_ = memory_.get();
}

Tensor::Tensor(Shape shape, DType dtype) : Tensor(shape, dtype, current_device()) {}

Tensor::Tensor(Shape shape, DType dtype, Device device)
    : Tensor(shape, dtype, device, device == Device::cpu ? pool_allocate : gpu_allocate) {}

Tensor Tensor::symmetric(Shape shape, DType dtype) {
  const Device device = current_device();
  return {shape, dtype, device, device == Device::cpu ? stretto::allocate : gpu_allocate};
}

Tensor Tensor::wrap(void* data, Shape shape, DType dtype, std::shared_ptr<void> owner) {
  Tensor result;
  result.size_ = elements(shape);
  require(data != nullptr || result.size_ == 0, "A tensor of shape {} cannot wrap a null pointer.", shape);
  require(reinterpret_cast<std::uintptr_t>(data) % size_of(dtype) == 0,
          "A tensor of {} cannot wrap {}, which is no multiple of {} bytes.", name(dtype), data, size_of(dtype));
  result.shape_ = shape;
  result.dtype_ = dtype;
  if (gpu_in_use() && data != nullptr && gpu().is_device_memory(data)) result.device_ = Device::cuda;
  result.memory_ = std::shared_ptr<std::byte>(std::move(owner), static_cast<std::byte*>(data));
  result.data_ = data;
  return result;
}

Tensor Tensor::zeros(Shape shape, DType dtype) {
  Tensor result(shape, dtype);
  result.zero();
  return result;
}

Tensor Tensor::view(std::int64_t first_element, Shape shape) const {
  const std::int64_t count = elements(shape);
  require(first_element >= 0 && first_element + count <= size_,
          "A view of {} elements from element {} on does not fit into a tensor of shape {}.", count, first_element, shape_);
  Tensor result = *this;
  result.data_ = static_cast<std::byte*>(data_) + static_cast<std::size_t>(first_element) * size_of(dtype_);
  result.shape_ = shape;
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
  result.shape_ = shape;
  result.size_ = elements(result.shape_);
  result.dtype_ = dtype;
  return result;
}

Tensor Tensor::clone() const {
  Tensor result(shape_, dtype_, device_);
  result.copy_from(*this);
  return result;
}

Tensor Tensor::on(Device device) const {
  if (device == device_) return *this;
  Tensor result(shape_, dtype_, device);
  copy_bytes(result.data_, data_, bytes());
  if (device == Device::cpu) computation().synchronize();
  return result;
}

void Tensor::copy_from_host(const void* elements) const {
  if (size_ == 0) return;  // an empty vector has no address
  if (device_ == Device::cpu) {
    std::memcpy(data_, elements, bytes());
  } else {
    copy_bytes(data_, elements, bytes());
    computation().synchronize();
  }
}

void Tensor::copy_to_host(void* elements) const {
  if (size_ == 0) return;
  if (device_ == Device::cpu) {
    std::memcpy(elements, data_, bytes());
  } else {
    copy_bytes(elements, data_, bytes());
    computation().synchronize();
  }
}

double Tensor::at(std::int64_t i) const {
  check_element(i);
  if (device_ == Device::cuda) {
    Tensor one({1}, dtype_, Device::cpu);
    view(i, {1}).copy_to_host(one.data_);
    return one.at(0);
  }
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
  check_element(i);
  if (device_ == Device::cuda) {
    const Tensor one({1}, dtype_, Device::cpu);
    one.set(0, value);
    return view(i, {1}).copy_from_host(one.data_);
  }
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

void Tensor::zero() const {
  if (device_ == Device::cpu) {
    std::memset(data_, 0, bytes());
  } else if (size_ > 0) {
    gpu().zero(data_, bytes(), gpu_stream());
  }
}

void Tensor::copy_from(const Tensor& other) const {
  require(other.dtype_ == dtype_ && other.size_ == size_, "Cannot copy {} {} elements into {} {} elements.", other.size_,
          name(other.dtype_), size_, name(dtype_));
  if (device_ == Device::cpu && other.device_ == Device::cpu) {
    std::memcpy(data_, other.data_, bytes());
  } else {
    copy_bytes(data_, other.data_, bytes());
    if (device_ == Device::cpu) computation().synchronize();
  }
}

void Tensor::check_access(DType wanted) const {
  require(!is_missing(*this), "The data of an empty tensor was asked for; {}.", why_missing);
  require(wanted == dtype_, "A tensor of {} was read as {}.", name(dtype_), name(wanted));
}

void Tensor::check_element(std::int64_t i) const {
  if (i >= 0 && i < size_) return;
  require(!is_missing(*this), "Element {} of an empty tensor was asked for; {}.", i, why_missing);
  fail(ErrorCode::invalid_argument, "Element {} was asked for of a tensor of shape {}, which has {}.", i, shape_, size_);
}

}  // namespace stretto
