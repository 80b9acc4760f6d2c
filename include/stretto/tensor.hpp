#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <vector>

#include "stretto/dtype.hpp"
#include "stretto/shape.hpp"
#include "stretto/stream.hpp"

namespace stretto {

// A contiguous, row-major array of one element type. The memory is 64-byte aligned, and lies on the calling thread's
// device (OnDevice) unless the caller names another device. Copies of a tensor share the memory, which is freed with the
// last copy. The memory comes from a pool, so only the first training step allocates from the system.
//
// GPU memory belongs to the stream that was computation() when the tensor was made, and is freed in that stream's order.
// Before the last copy is destroyed, either all work on the tensor in other streams must be done, or the owning stream
// must have been made to wait for that work. This rule does not apply to Communicator calls that take a Tensor: they
// keep the tensor alive.
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
  // Makes a tensor in the symmetric heap (stretto/memory.hpp). On a GPU, the result is that of Tensor(shape, dtype).
  static Tensor symmetric(Shape shape, DType dtype);

  // A tensor of memory that the program owns, on the host or on the GPU, such as the gradients of a trainer of one's own.
  // The address must be a multiple of the element's size. The tensor and its views hold `owner` until the last of them is
  // destroyed; without an owner, the memory must outlive them. memory_use() does not count it. Ranks of a host
  // reach it through the kernel: all-reduces of 8 B to 64 MiB take 1.7 to 2 times as long as in symmetric memory (geometric
  // means; the first row of README.md's table).
  static Tensor wrap(void* data, Shape shape, DType dtype, std::shared_ptr<void> owner = nullptr);

  // Returns the part of this tensor that begins at first_element, with the given shape. The view shares the memory.
  Tensor view(std::int64_t first_element, Shape shape) const;
  // Like the overload above, but begins at first_byte and has another element type. The address must be aligned for that
  // type.
  Tensor view(std::size_t first_byte, Shape shape, DType dtype) const;
  Tensor reshaped(Shape shape) const { return view(0, shape); }
  Tensor clone() const;
  // Returns a copy of this tensor on the given device, or this tensor itself if it is already there. A copy to the host
  // blocks until it is complete.
  Tensor on(Device device) const;
  // Copy size() elements from or to ordinary host memory. For a tensor on a GPU, both functions block until the copy is
  // complete.
  void copy_from_host(const void* elements) const;
  void copy_to_host(void* elements) const;

  explicit operator bool() const { return memory_ != nullptr; }
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  std::int64_t size() const { return size_; }  // elements
  std::size_t bytes() const { return static_cast<std::size_t>(size_) * size_of(dtype_); }
  std::int64_t columns() const { return shape_.empty() ? 1 : shape_.back(); }  // the last dimension
  std::int64_t rows() const {  // the product of all dimensions but the last, even if columns() is 0
    std::int64_t product = shape_.empty() ? size_ : 1;
    for (std::size_t d = 0; d + 1 < shape_.size(); ++d) product *= shape_[d];
    return product;
  }

  // Internal: not part of the interface. Returns a tensor of the same memory, labelled as memory of another device.
  Tensor seen_as(Device device) const {
    Tensor result = *this;
    result.device_ = device;
    return result;
  }
  // Internal: like seen_as(), but without ownership. The caller must keep the memory alive.
  Tensor borrowed_as(Device device) const {
    Tensor result = seen_as(device);
    result.memory_ = std::shared_ptr<std::byte>(std::shared_ptr<std::byte>(), memory_.get());
    return result;
  }

  void* raw() const { return data_; }  // null if the tensor is empty
  // T must be this tensor's element type. data(), at() and set() throw Error(invalid_argument) if the tensor has no memory.
  template <class T>
  T* data() const {
    check_access(dtype_of<T>);
    return static_cast<T*>(data_);
  }
  // Read or write one element of any type. Both functions are slow, and very slow on a GPU; they are for tests and
  // reports. Integers are exact up to 2^53. set() rounds to nearest. Both throw Error(invalid_argument) for an element that
  // does not exist, set() also for a value outside an integer type's range.
  double at(std::int64_t i) const;
  void set(std::int64_t i, double value) const;
  void zero() const;
  void copy_from(const Tensor& other) const;  // same type and size

 private:
  using Allocate = std::shared_ptr<std::byte> (*)(std::size_t bytes);
  Tensor(Shape shape, DType dtype, Device device, Allocate allocate);
  void check_access(DType wanted) const;
  void check_element(std::int64_t i) const;

  std::shared_ptr<std::byte> memory_;
  void* data_ = nullptr;
  Shape shape_;
  std::int64_t size_ = 0;
  DType dtype_ = DType::f32;
  Device device_ = Device::cpu;
};

// The purpose of memory in training, for reports of what a rank's memory holds.
enum class MemoryKind : std::uint8_t {
  other,
  values,       // of parameters
  gradients,    // of parameters
  optimizer,    // its state: moments and master weights
  activations,  // results of layers
  buffers,      // what communication needs: gathered parameters, gradients on their way, scratch memory of collectives
};
inline constexpr int memory_kinds = 6;
STRETTO_API const char* name(MemoryKind kind);

// While the object lives, memory that the calling thread allocates is counted as of this kind, until it is freed. Scopes may
// be nested; the innermost counts.
class STRETTO_API MemoryScope {
 public:
  explicit MemoryScope(MemoryKind kind);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  MemoryKind before_;
};

// The bytes that tensors and allocate() (stretto/memory.hpp) hold now in this process, and their largest number so far: on
// all devices, on one, or of one kind. Bytes are counted as they were asked for; the allocator rounds them up, by an eighth
// at most, and keeps what was freed for later requests.
struct MemoryUse {
  std::size_t bytes = 0;
  std::size_t peak_bytes = 0;
};
STRETTO_API MemoryUse memory_use();
STRETTO_API MemoryUse memory_use(Device device);
STRETTO_API MemoryUse memory_use(MemoryKind kind);
// The bytes of host memory that the allocator has taken from the system: what tensors hold, and what it keeps for later
// requests of the same sizes. Training steps that are alike take none after the first.
STRETTO_API std::size_t reserved_memory();

}  // namespace stretto
