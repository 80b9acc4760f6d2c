#pragma once
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

}  // namespace stretto
