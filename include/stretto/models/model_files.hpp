#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "stretto/layers/weight_source.hpp"
#include "stretto/models/families.hpp"
#include "stretto/models/trainer.hpp"

namespace stretto {

// A decoder's weights in files of other tools.
class STRETTO_API ModelFiles {
 public:
  // Hugging Face's transformers: a directory of config.json and model.safetensors, or of several files that
  // model.safetensors.index.json names. Both functions throw Error(io), in one sentence, for files that are missing or
  // damaged, and for models that a Decoder cannot compute.
  static ModelFiles of_directory(const std::string& directory);
  // A GGUF file of the architectures llama, qwen2 or qwen3, in the types of gguf_weights(), which are dequantized.
  static ModelFiles of_gguf(const std::string& path);

  const DecoderShape& shape() const { return shape_; }  // `sequence` is the number of positions
  // Throws Error(io), in one sentence that names the tensor, unless the files hold exactly the weights of a model of this
  // shape: shape(), or one with shorter sequences. What transformers ignores is ignored.
  void check(const DecoderShape& shape) const;
  // Reads the weights that this rank updates. Not collective; afterwards all ranks must call trainer.optimizer().restore(0).
  void load(Trainer& trainer) const;

 private:
  std::string place_;  // for messages
  DecoderShape shape_;
  std::shared_ptr<const WeightSource> source_;
  std::function<std::vector<ForeignRows>(const Parameter&)> rows_;
  std::function<bool(const std::string&)> ignores_;
};

// The metadata of a GGUF file as the text of a JSON object, with a tokenizer's vocabulary in it. Bytes that are no UTF-8 are
// replaced. Throws Error(io), in one sentence, for a file that is none.
STRETTO_API std::string gguf_metadata(const std::string& path);

// Collective. Writes a directory that transformers' from_pretrained takes, in fp32, which appears under its name when it is
// complete. add_files: called on rank 0 with the directory in which they belong, such as a tokenizer's. Throws Error(io) if
// the directory cannot be written, and as config_text().
STRETTO_API void export_hf(
    Trainer& trainer, const std::string& directory, std::optional<std::int32_t> end_of_text,
    const std::function<void(const std::string& directory)>& add_files = [](const std::string&) {});
// Throws Error(io) if the directory exists and is not empty, or cannot be made, which it tries; and as config_text() if no
// family has such a shape.
STRETTO_API void check_hf_export(const std::string& directory, const DecoderShape& shape);

}  // namespace stretto
