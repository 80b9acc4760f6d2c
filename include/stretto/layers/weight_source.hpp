#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "stretto/export.hpp"
#include "stretto/shape.hpp"

namespace stretto {

// A tensor in a file.
struct StoredTensor {
  std::string name;
  std::string type;  // "F32", "F64", "BF16", "F16", "I32"; in other formats also others, such as "Q4_1"
  Shape shape;
  bool is_floating() const { return type != "I8" && type != "I16" && type != "I32" && type != "I64"; }
};

// Tensors in files of some format, from which read_weights() takes a model's weights. One thread may use an object.
class STRETTO_API WeightSource {
 public:
  WeightSource() = default;
  virtual ~WeightSource() = default;
  WeightSource(const WeightSource&) = delete;
  WeightSource& operator=(const WeightSource&) = delete;

  virtual const std::vector<StoredTensor>& tensors() const = 0;  // each name once
  // The path of the file that has a tensor, for messages.
  virtual const std::string& file_of(const std::string& tensor) const = 0;
  // Writes `count` elements of a tensor, in row-major order from element `first` on. The tensor must be among tensors() and
  // have them. Memory does not grow with the tensor. Throws Error(io) if the tensor holds no floating-point numbers, is of a
  // type that cannot be read, or if the file no longer has it.
  virtual void read(const std::string& tensor, std::int64_t first, std::int64_t count, double* to) const = 0;
};

// The tensors of safetensors files; one that is in several of them is that of the first. Throws Error(io) if a file is
// missing or no safetensors file.
STRETTO_API std::unique_ptr<WeightSource> safetensors_weights(const std::vector<std::string>& paths);

}  // namespace stretto
