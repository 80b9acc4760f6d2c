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

// A contiguous, row-major array of one element type. Its memory is on the calling thread's device (OnDevice), unless
// another is given, and is 64-byte aligned. Copies of a tensor share the memory, which lives as long as any of them. It
// comes from a pool, so a training step allocates nothing new after the first.
//
// GPU memory belongs to the stream that was computation() when the tensor was made, and is freed in that stream's order.
// So before the last copy goes, work on the tensor in other streams must be done, or that stream must have been made to
// wait for it. Communicator calls that take a Tensor need no such care: they keep it alive.
class STRETTO_API Tensor {
 public:
  Tensor() = default;
  Tensor(Shape shape, DType dtype);  // the contents are unspecified
  Tensor(Shape shape, DType dtype, Device device);
  static Tensor zeros(Shape shape, DType dtype);
  template <class T>
  static Tensor of(const std::vector<T>& elements) {  // a copy of the elements, with one dimension
    Tensor result({static_cast<std::int64_t>(elements.size())}, dtype_of<T>);
    result.copy_from_host(elements.data());
    return result;
  }
  // In the symmetric heap (stretto/memory.hpp); on a GPU the same as Tensor(shape, dtype).
  static Tensor symmetric(Shape shape, DType dtype);

  // A part of this tensor that begins at first_element, with another shape. Shares the memory.
  Tensor view(std::int64_t first_element, Shape shape) const;
  // Like the above, from first_byte on, with another element type. The address must be aligned for that type.
  Tensor view(std::size_t first_byte, Shape shape, DType dtype) const;
  Tensor reshaped(Shape shape) const { return view(0, std::move(shape)); }
  // A view of `elements` elements from this tensor's first on. If this tensor is itself a view, it may reach beyond this
  // tensor's end, up to the end of the memory.
  Tensor spanning(std::int64_t elements) const;
  // Whether `next` begins where this tensor ends, in the same memory.
  bool continues_in(const Tensor& next) const {
    return memory_ == next.memory_ && static_cast<std::byte*>(data_) + bytes() == next.data_;
  }
  Tensor clone() const;
  // The same elements on another device: a copy, or this tensor if it is already there. A copy to the host blocks until
  // it is complete.
  Tensor on(Device device) const;
  // Copy size() elements from or to ordinary host memory. For a tensor on a GPU they block until the copy is complete.
  void copy_from_host(const void* elements) const;
  void copy_to_host(void* elements) const;

  explicit operator bool() const { return memory_ != nullptr; }
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  std::int64_t size() const { return size_; }  // elements
  std::size_t bytes() const { return static_cast<std::size_t>(size_) * size_of(dtype_); }
  std::int64_t columns() const { return shape_.empty() ? 1 : shape_.back(); }  // the last dimension
  std::int64_t rows() const {  // the product of all other dimensions, even if columns() is 0
    std::int64_t product = shape_.empty() ? size_ : 1;
    for (std::size_t d = 0; d + 1 < shape_.size(); ++d) product *= shape_[d];
    return product;
  }

  // Internal: not part of the interface. The same memory, labelled as another device's.
  Tensor seen_as(Device device) const {
    Tensor result = *this;
    result.device_ = device;
    return result;
  }
  // Internal, like seen_as(), but without ownership: the caller must keep the memory alive.
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
  // Read or write one element of any type; slow, and very slow on a GPU: for tests and reports. Integers are exact up to
  // 2^53. set rounds to nearest, and throws Error(invalid_argument) for a value outside an integer type's range.
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

// Bytes that the tensors of this process hold now, and the most they have ever held: on all devices, or on one.
struct MemoryUse {
  std::size_t bytes = 0;
  std::size_t peak_bytes = 0;
};
STRETTO_API MemoryUse memory_use();
STRETTO_API MemoryUse memory_use(Device device);

}  // namespace stretto
