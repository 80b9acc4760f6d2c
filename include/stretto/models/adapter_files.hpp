#pragma once
#include <memory>
#include <string>

#include "stretto/layers/adapter.hpp"
#include "stretto/layers/weight_source.hpp"
#include "stretto/models/trainer.hpp"

// Adapters in the files of Hugging Face's peft: a directory of adapter_config.json and adapter_model.safetensors, which has
// for each module the factors lora_A [rank, in] and lora_B [out, rank], and modules that were trained whole.
namespace stretto {

// Returns the adapters that an adapter_config.json describes. Throws Error(io), in one sentence that names `file` and the
// key, for text that is no such file, and for adapters that compute otherwise, such as DoRA's.
STRETTO_API AdapterOptions adapter_options_from_config(const std::string& config, const std::string& file);
// The adapter_config.json of such adapters. base: the directory or the name of the model that they adapt, which peft loads;
// may be empty.
STRETTO_API std::string adapter_config_text(const AdapterOptions& options, const DecoderShape& shape,
                                            const std::string& base);

// One thread may use an object.
class STRETTO_API AdapterFiles {
 public:
  // Throws Error(io), in one sentence, for files that are missing or damaged, and as adapter_options_from_config().
  static AdapterFiles of_directory(const std::string& directory);
  const AdapterOptions& options() const { return options_; }
  const std::string& base() const { return base_; }
  // Reads the adapters that this rank updates into a trainer that was made with options(), or those of a name for which
  // options() are among AdapterOptions::others. Not collective; afterwards all ranks must call
  // trainer.optimizer().restore(0). Throws Error(io), in one sentence that names the tensor, unless the file has exactly
  // these adapters of this model.
  void load(Trainer& trainer, const std::string& name = {}) const;

 private:
  std::string directory_, base_;
  AdapterOptions options_;
  std::shared_ptr<const WeightSource> source_;
};

// Collective, between two steps. Writes the trained adapters into the directory, in fp32; it appears under its name when it
// is complete. Throws Error(io) if it cannot be written.
STRETTO_API void save_adapters(Trainer& trainer, const std::string& directory, const std::string& base);
// Throws Error(io) if the directory exists and is not empty, or cannot be made, which it tries.
STRETTO_API void check_adapter_directory(const std::string& directory);

}  // namespace stretto
