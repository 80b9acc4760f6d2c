#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <vector>

#include "stretto/dtype.hpp"
#include "stretto/stream.hpp"

namespace stretto {

using Shape = std::vector<std::int64_t>;

// A contiguous, row-major array of one element type, in the memory of this thread's device (OnDevice) where nothing else is
// said. Copies share the memory, which lives as long as any of them; it is 64-byte aligned and comes from a pool, so that a
// training step allocates nothing new after the first. A GPU's memory belongs to the stream that was computation() when the
// tensor was made: what other streams do with it must be over, or waited for by that one, when the last copy goes. (What
// communicators do with tensors keeps them by itself.)
class STRETTO_API Tensor {
 public:
  Tensor() = default;
  Tensor(Shape shape, DType dtype);  // the contents are unspecified
  Tensor(Shape shape, DType dtype, Device device);
  static Tensor zeros(Shape shape, DType dtype);
  template <class T>
  static Tensor of(const std::vector<T>& elements) {  // a copy of them, in one dimension
    Tensor result({static_cast<std::int64_t>(elements.size())}, dtype_of<T>);
    result.copy_from_host(elements.data());
    return result;
  }
  // From the symmetric heap, see stretto/memory.hpp; on a GPU like any other.
  static Tensor symmetric(Shape shape, DType dtype);

  // count elements of this tensor from the given one on, under another shape; shares the memory.
  Tensor view(std::int64_t first_element, Shape shape) const;
  // The same of another element type: memory from that byte on, which must be aligned for it.
  Tensor view(std::size_t first_byte, Shape shape, DType dtype) const;
  Tensor reshaped(Shape shape) const { return view(0, std::move(shape)); }
  // elements from this tensor's first on, also behind its end, where this is a view and the memory goes on there.
  Tensor spanning(std::int64_t elements) const;
  // next begins where this tensor ends, in the same memory.
  bool continues_in(const Tensor& next) const {
    return memory_ == next.memory_ && static_cast<std::byte*>(data_) + bytes() == next.data_;
  }
  Tensor clone() const;
  // The same elements in that device's memory: a copy, or this tensor where it lies there already. To the host: waits.
  Tensor on(Device device) const;
  // Copies of so many elements from and to ordinary host memory. Both wait on a GPU.
  void copy_from_host(const void* elements) const;
  void copy_to_host(void* elements) const;

  explicit operator bool() const { return memory_ != nullptr; }
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  std::int64_t size() const { return size_; }  // elements
  std::size_t bytes() const { return static_cast<std::size_t>(size_) * size_of(dtype_); }
  std::int64_t columns() const { return shape_.empty() ? 1 : shape_.back(); }  // the last dimension
  std::int64_t rows() const {  // all the others together; also where there are no columns
    std::int64_t product = shape_.empty() ? size_ : 1;
    for (std::size_t d = 0; d + 1 < shape_.size(); ++d) product *= shape_[d];
    return product;
  }

  // The library's own: this memory, called another device's.
  Tensor seen_as(Device device) const {
    Tensor result = *this;
    result.device_ = device;
    return result;
  }
  // The same, without a share in the memory: whoever uses it makes sure that it lives.
  Tensor borrowed_as(Device device) const {
    Tensor result = seen_as(device);
    result.memory_ = std::shared_ptr<std::byte>(std::shared_ptr<std::byte>(), memory_.get());
    return result;
  }

  void* raw() const { return data_; }
  template <class T>
  T* data() const {  // T must be this tensor's element type
    check_type(dtype_of<T>);
    return static_cast<T*>(data_);
  }
  // One element, of whatever type; slow (on a GPU very), for tests and reports. Integers are exact up to 2^53; set rounds to
  // nearest, and throws Error(invalid_argument) for a value beyond an integer type.
  double at(std::int64_t i) const;
  void set(std::int64_t i, double value) const;
  void zero() const;
  void copy_from(const Tensor& other) const;  // same type and size

 private:
  using Allocate = std::shared_ptr<std::byte> (*)(std::size_t bytes);
  Tensor(Shape shape, DType dtype, Device device, Allocate allocate);
  void check_type(DType wanted) const;

  std::shared_ptr<std::byte> memory_;
  std::byte* memory_end_ = nullptr;
  void* data_ = nullptr;
  Shape shape_;
  std::int64_t size_ = 0;
  DType dtype_ = DType::f32;
  Device device_ = Device::cpu;
};

// Bytes that tensors of this process hold now, and the most they ever held: of all devices, or of one.
struct MemoryUse {
  std::size_t bytes = 0;
  std::size_t peak_bytes = 0;
};
STRETTO_API MemoryUse memory_use();
STRETTO_API MemoryUse memory_use(Device device);

}  // namespace stretto
