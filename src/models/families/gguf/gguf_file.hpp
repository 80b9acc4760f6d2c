#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/files/input_file.hpp"
#include "models/families/gguf/gguf_types.hpp"
#include "stretto/shape.hpp"

namespace stretto {

// A tensor in a GGUF file.
struct GgufTensor {
  std::string name;
  const GgufType* type;
  Shape shape;              // the last dimension is contiguous, as in a Tensor: the file's order reversed
  std::uint64_t at, bytes;  // in the file
};

// A GGUF file (ggml's format of models) of version 2 or 3, little-endian: typed metadata, a table of tensors, and their
// data. Throws Error(io), in one sentence that names the file and the fault, for any other: everything in the file is
// checked against its size before it is believed, so that a damaged file costs neither time nor memory.
class GgufFile {
 public:
  explicit GgufFile(const std::string& path);
  ~GgufFile();
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  // An object of all keys. Numbers, booleans, strings (which may be no UTF-8) and arrays are JSON's, so that nothing is left
  // of how wide a number was in the file.
  const nlohmann::json& metadata() const { return *metadata_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // in the file's order
  const std::string& path() const { return file_.path(); }
  void read(std::uint64_t at, void* to, std::size_t bytes) const { file_.read(at, to, bytes); }

 private:
  void check_places() const;

  InputFile file_;
  std::unique_ptr<nlohmann::json> metadata_;
  std::vector<GgufTensor> tensors_;
};

}  // namespace stretto
