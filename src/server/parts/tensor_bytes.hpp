#pragma once
#include <string>

#include "stretto/tensor.hpp"
#include "transport/bootstrap/packing.hpp"

namespace stretto {

// Copies of the memory, which lies on the host; of no tensor, no bytes.
inline Bytes bytes_in(const Tensor& tensor) {
  const auto* const begin = tensor ? static_cast<const std::byte*>(tensor.raw()) : nullptr;
  return tensor ? Bytes(begin, begin + tensor.bytes()) : Bytes();
}
inline Tensor tensor_of(const Bytes& bytes) {
  Tensor tensor({std::ssize(bytes)}, DType::u8);
  tensor.copy_from_host(bytes.data());
  return tensor;
}

// A text of any length, and of no characters also no tensor.
inline Tensor tensor_of(const std::string& text) {
  if (text.empty()) return {};
  Tensor tensor({std::ssize(text)}, DType::u8);
  tensor.copy_from_host(text.data());
  return tensor;
}
inline std::string text_in(const Tensor& tensor) {
  return tensor ? std::string(static_cast<const char*>(tensor.raw()), tensor.bytes()) : std::string();
}

}  // namespace stretto
