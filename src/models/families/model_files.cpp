#include "stretto/models/model_files.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "core/files/text_file.hpp"
#include "models/families/family.hpp"
#include "models/families/gguf/gguf_family.hpp"
#include "models/families/gguf/gguf_tensors.hpp"

namespace stretto {

namespace fs = std::filesystem;

namespace {

std::string text_of(const std::string& path) {
  try {
    return text_of_file(path, path);
  } catch (const Error& error) {
    fail(ErrorCode::io, "{}", error.what());
  }
}

std::vector<std::string> weight_files(const std::string& directory) {
  const std::string single = directory + "/model.safetensors", index = single + ".index.json";
  if (fs::exists(single)) return {single};
  if (!fs::exists(index)) {
    fail(ErrorCode::io, "{} has no model.safetensors; save_pretrained(..., safe_serialization=True) writes one.", directory);
  }
  const auto parsed = nlohmann::json::parse(text_of(index), nullptr, false);
  std::set<std::string> files;
  if (parsed.is_object() && parsed.contains("weight_map") && parsed["weight_map"].is_object()) {
    for (const auto& [tensor, file] : parsed["weight_map"].items()) {
      if (!file.is_string()) continue;
      const auto name = file.get<std::string>();
      if (fs::path(name).filename() != name || name == "..") {
        fail(ErrorCode::io, "{} names '{}' for {}, which is no file beside it.", index, name, tensor);
      }
      files.insert(directory + "/" + name);
    }
  }
  if (files.empty()) fail(ErrorCode::io, "{} names no files of weights.", index);
  return {files.begin(), files.end()};
}

// Models without a head, such as GPT2Model, have names without the family's prefix.
void drop_prefix(const std::string& prefix, std::vector<ForeignRows>& rows) {
  for (ForeignRows& block : rows) {
    if (block.tensor.name.starts_with(prefix)) block.tensor.name.erase(0, prefix.size());
  }
}

}  // namespace

ModelFiles ModelFiles::of_directory(const std::string& directory) {
  ModelFiles files;
  const std::string config = directory + "/config.json";
  files.place_ = directory;
  files.shape_ = decoder_shape_from_config(text_of(config), config);
  files.source_ = safetensors_weights(weight_files(directory));
  const ModelFamily& family = family_of(files.shape_);
  const std::string prefix = family.prefix;
  const bool has_prefix =
      std::ranges::any_of(files.source_->tensors(), [&](const StoredTensor& each) { return each.name.starts_with(prefix); });
  files.rows_ = [&family, prefix, has_prefix, shape = files.shape_](const Parameter& parameter) {
    std::vector<ForeignRows> rows = family.rows(shape.filled(), parameter, shape.sequence);
    if (!has_prefix) drop_prefix(prefix, rows);
    return rows;
  };
  files.ignores_ = [&family, tied = files.shape_.tied](const std::string& tensor) {
    return family.ignores(tensor) || (tied && tensor == "lm_head.weight");
  };
  return files;
}

ModelFiles ModelFiles::of_gguf(const std::string& path) {
  ModelFiles files;
  files.place_ = path;
  const GgufModel model = gguf_model(path);
  files.shape_ = model.shape;
  files.source_ = gguf_weights(path);
  files.rows_ = model.rows;
  files.ignores_ = [](const std::string& /*tensor*/) { return false; };
  return files;
}

void ModelFiles::check(const DecoderShape& shape) const {
  const std::vector<StoredTensor>& tensors = source_->tensors();
  Parameters parameters;  // records only
  const Decoder model(parameters, shape, TensorParallel{});
  std::set<std::string> expected;
  for (const auto& parameter : parameters.all()) {
    for (const ForeignRows& block : rows_(*parameter)) {
      const ForeignTensor& wanted = block.tensor;
      if (!expected.insert(wanted.name).second) continue;
      const auto found = std::ranges::find(tensors, wanted.name, &StoredTensor::name);
      if (found == tensors.end()) fail(ErrorCode::io, "The weights in {} lack {}.", place_, wanted.name);
      if (!found->is_floating()) {
        fail(ErrorCode::io, "The weights in {} have {} as {}; save them as floating-point numbers.", place_, wanted.name,
             found->type);
      }
      if (found->shape != wanted.shape) {
        fail(ErrorCode::io, "The weights in {} have {} of shape [{}], but its configuration makes it [{}].", place_,
             wanted.name, fmt::join(found->shape, ", "), fmt::join(wanted.shape, ", "));
      }
    }
  }
  for (const StoredTensor& tensor : tensors) {
    if (!expected.contains(tensor.name) && !ignores_(tensor.name)) {
      fail(ErrorCode::io, "The weights in {} have {}, which is no weight of a {} of {} layers.", place_, tensor.name,
           family_name(shape_), shape.layers);
    }
  }
}

// Adapters stay as they are: files of models have none.
void ModelFiles::load(Trainer& trainer) const {
  read_weights(trainer.sharded(), trainer.optimizer(), *source_, [&](const Parameter& parameter) {
    return parameter.is_adapter ? std::vector<ForeignRows>() : rows_(parameter);
  });
}

}  // namespace stretto
