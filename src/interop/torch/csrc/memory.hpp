#pragma once
#include <cstring>

#include "torch_version.hpp"

// Tensors as contiguous memory, which operations need.
namespace stretto_torch {

// One tensor: its own memory if it is contiguous, otherwise a copy.
class Memory {
 public:
  explicit Memory(const at::Tensor& tensor) : tensor_(tensor), run_(tensor.resolve_conj().resolve_neg().contiguous()) {}

  void* data() const { return run_.data_ptr(); }
  std::int64_t bytes() const { return static_cast<std::int64_t>(run_.nbytes()); }
  std::int64_t elements() const { return run_.numel(); }
  const at::Tensor& run() const { return run_; }
  // Must be called after an operation has written to data().
  void write_back() const {
    if (!run_.is_same(tensor_)) tensor_.copy_(run_);
  }

 private:
  at::Tensor tensor_, run_;
};

// Tensors of one type, one after the other. Makes no copy if they already lie one after the other in memory.
class Pack {
 public:
  explicit Pack(Tensors parts) : parts_(std::move(parts)) {
    std::int64_t elements = 0;
    for (const at::Tensor& part : parts_) elements += part.numel();
    if (!lie_so()) run_ = at::empty({elements}, parts_.front().options().requires_grad(false));
  }

  void* data() const { return run_.defined() ? run_.data_ptr() : first_; }
  void collect() const {  // before an operation reads data()
    for_each([](const at::Tensor& part, const at::Tensor& place) { place.copy_(part); });
  }
  void spread() const {  // after an operation has written to data()
    for_each([](const at::Tensor& part, const at::Tensor& place) { part.copy_(place); });
  }

 private:
  bool lie_so() {
    std::byte* end = nullptr;
    for (const at::Tensor& part : parts_) {
      if (!part.is_contiguous() || part.is_conj() || part.is_neg()) return false;
      if (part.nbytes() == 0) continue;
      auto* const begin = static_cast<std::byte*>(part.data_ptr());
      if (end != nullptr && begin != end) return false;
      if (first_ == nullptr) first_ = begin;
      end = begin + part.nbytes();
    }
    return true;
  }
  template <class Copy>
  void for_each(Copy copy) const {
    if (!run_.defined()) return;
    std::int64_t at = 0;
    for (const at::Tensor& part : parts_) {
      copy(part, run_.narrow(0, at, part.numel()).view(part.sizes()));
      at += part.numel();
    }
  }

  Tensors parts_;
  at::Tensor run_;
  void* first_ = nullptr;
};

}  // namespace stretto_torch
