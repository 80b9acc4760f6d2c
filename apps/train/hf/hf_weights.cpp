#include "apps/train/hf/hf_weights.hpp"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <vector>

#include "apps/common/fail.hpp"
#include "apps/common/missing_directories.hpp"
#include "apps/train/data/data_file.hpp"
#include "apps/train/hf/hf_config.hpp"
#include "stretto/output_file.hpp"

namespace apps {

using namespace stretto;
namespace fs = std::filesystem;

namespace {

fs::path finished_path(const std::string& directory) {
  return followed((fs::path(directory) / "").lexically_normal().parent_path());  // without a slash behind it
}

fs::path unfinished_path(const std::string& directory) { return finished_path(directory).string() + ".unfinished"; }

[[noreturn]] void fail_to_export(const std::string& directory, const std::error_code& error) {
  fail(ErrorCode::io, "Cannot export the model to {}: {}.", directory, error.message());
}

constexpr const char* model_prefix = "transformer.";  // of GPT2LMHeadModel; GPT2Model's files have none

std::vector<std::string> weight_files(const std::string& directory) {
  const std::string single = directory + "/model.safetensors", index = single + ".index.json";
  if (fs::exists(single)) return {single};
  if (!fs::exists(index)) {
    fail(ErrorCode::io, "{} has no model.safetensors; save_pretrained(..., safe_serialization=True) writes one.", directory);
  }
  const auto json = nlohmann::json::parse(DataFile(index).text(), nullptr, false);
  std::set<std::string> files;
  if (json.is_object() && json.contains("weight_map") && json["weight_map"].is_object()) {
    for (const auto& [tensor, file] : json["weight_map"].items()) {
      if (!file.is_string()) continue;
      const std::string name = file.get<std::string>();
      if (fs::path(name).filename() != name || name == "..") {
        fail(ErrorCode::io, "{} names '{}' for {}, which is no file beside it.", index, name, tensor);
      }
      files.insert(directory + "/" + name);
    }
  }
  if (files.empty()) fail(ErrorCode::io, "{} names no files of weights.", index);
  return {files.begin(), files.end()};
}

std::string prefix_in(const std::vector<StoredTensor>& tensors) {
  return std::ranges::any_of(tensors, [](const StoredTensor& t) { return t.name.starts_with(model_prefix); }) ? model_prefix
                                                                                                              : "";
}

bool is_ignored(const std::string& name) {
  return name == "lm_head.weight" || name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

void write_tokenizer(const fs::path& directory, const HfTokens& tokens, std::int64_t positions) {
  if (tokens.vocabulary_file.empty()) return;
  write_output_file(directory / "vocab.json", DataFile(tokens.vocabulary_file).text());
  write_output_file(directory / "merges.txt", DataFile(tokens.merges_file).text());
  nlohmann::ordered_json config = {{"tokenizer_class", "GPT2Tokenizer"}, {"model_max_length", positions}};
  config["add_prefix_space"] = false;
  if (tokens.end_of_text) config["bos_token"] = config["eos_token"] = config["unk_token"] = "<|endoftext|>";
  write_output_file(directory / "tokenizer_config.json", config.dump(2) + "\n");
}

}  // namespace

ForeignTensor hf_tensor(const Parameter& parameter, const std::string& prefix, std::int64_t positions) {
  const std::string name = prefix + parameter.name;
  const Shape& shape = parameter.global_shape;
  if (parameter.name == "wpe.weight") return {name, {positions, shape.back()}, false};
  std::int64_t elements = 1;
  for (const std::int64_t extent : shape) elements *= extent;
  const bool is_linear = name.find(".attn.c_") != std::string::npos || name.find(".mlp.c_") != std::string::npos;
  if (!is_linear) return {name, shape, false};
  if (name.ends_with(".bias")) return {name, {elements}, false};
  return {name, {shape.back(), elements / shape.back()}, true};
}

void check_hf_weights(const std::string& directory, const DecoderShape& shape) {
  const std::int64_t positions = read_hf_config(directory).sequence;
  const auto source = safetensors_weights(weight_files(directory));
  const std::vector<StoredTensor>& tensors = source->tensors();
  const std::string prefix = prefix_in(tensors);
  Parameters parameters;  // records only
  const Decoder model(parameters, shape, TensorParallel{});
  std::set<std::string> expected;
  for (const auto& parameter : parameters.all()) {
    const ForeignTensor wanted = hf_tensor(*parameter, prefix, positions);
    expected.insert(wanted.name);
    const auto found = std::ranges::find(tensors, wanted.name, &StoredTensor::name);
    if (found == tensors.end()) fail(ErrorCode::io, "The weights in {} lack {}.", directory, wanted.name);
    if (!found->is_floating()) {
      fail(ErrorCode::io, "The weights in {} have {} as {}; save them as floating-point numbers.", directory, wanted.name,
           found->type);
    }
    if (found->shape != wanted.shape) {
      fail(ErrorCode::io, "The weights in {} have {} of shape [{}], but its config.json makes it [{}].", directory,
           wanted.name, fmt::join(found->shape, ", "), fmt::join(wanted.shape, ", "));
    }
  }
  for (const StoredTensor& tensor : tensors) {
    if (!expected.contains(tensor.name) && !is_ignored(tensor.name)) {
      fail(ErrorCode::io, "The weights in {} have {}, which is no weight of a GPT-2 of {} layers.", directory, tensor.name,
           shape.layers);
    }
  }
}

void load_hf(Trainer& trainer, const std::string& directory) {
  const std::int64_t positions = read_hf_config(directory).sequence;
  const auto source = safetensors_weights(weight_files(directory));
  const std::string prefix = prefix_in(source->tensors());
  read_weights(trainer.sharded(), trainer.optimizer(), *source,
               [&](const Parameter& parameter) { return first_rows(parameter, hf_tensor(parameter, prefix, positions)); });
}

void export_hf(Trainer& trainer, const std::string& directory, const HfTokens& tokens) {
  const Communicator& world = trainer.mesh().world();
  const DecoderShape& shape = trainer.model().shape();
  const fs::path finished = finished_path(directory);
  const fs::path unfinished = unfinished_path(directory);
  const bool writes = world.rank() == 0;
  try {
    if (writes) {
      fs::remove_all(unfinished);
      fs::create_directories(unfinished);
      write_output_file(unfinished / "config.json", hf_config_text(shape, tokens.end_of_text));
      write_tokenizer(unfinished, tokens, shape.sequence);
    }
    write_weights(trainer.sharded(), trainer.optimizer(), unfinished / "model.safetensors",
                  [&](const Parameter& parameter) {
                    return first_rows(parameter, hf_tensor(parameter, model_prefix, shape.sequence));
                  },
                  {{"format", "pt"}});
    if (writes) fs::rename(unfinished, finished);
  } catch (const std::exception& error) {
    std::error_code ignored;
    if (writes) fs::remove_all(unfinished, ignored);
    const auto* filesystem = dynamic_cast<const fs::filesystem_error*>(&error);
    if (filesystem == nullptr) throw;
    fail_to_export(directory, filesystem->code());
  }
  world.barrier(Stream::inline_()).wait();  // no rank goes on, or ends, before it is complete
}

void check_hf_export(const std::string& directory) {
  std::error_code error;
  const fs::path finished = finished_path(directory);
  const bool is_there = fs::exists(finished, error);
  if (is_there && !(fs::is_directory(finished, error) && fs::is_empty(finished, error)) && !error) {
    fail(ErrorCode::io, "There is something in {} already; export to a directory that does not exist.", directory);
  }
  const std::vector<fs::path> made = missing_directories(unfinished_path(directory));
  if (!error) fs::create_directories(unfinished_path(directory), error);
  std::error_code ignored;
  for (const fs::path& each : made) fs::remove(each, ignored);
  if (error) fail_to_export(directory, error);
}

}  // namespace apps
