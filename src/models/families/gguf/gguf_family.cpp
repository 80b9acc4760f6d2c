#include "models/families/gguf/gguf_family.hpp"

#include <algorithm>

#include "models/families/gguf/gguf_file.hpp"
#include "models/families/llama.hpp"
#include "stretto/models/model_files.hpp"

namespace stretto {
namespace {

const LlamaTensors gguf_names{.table = "token_embd.weight",
                              .last_norm = "output_norm.weight",
                              .head = "output.weight",
                              .block = "blk.",
                              .first_norm = "attn_norm",
                              .second_norm = "ffn_norm",
                              .q = "attn_q",
                              .k = "attn_k",
                              .v = "attn_v",
                              .output = "attn_output",
                              .q_norm = "attn_q_norm",
                              .k_norm = "attn_k_norm",
                              .gate = "ffn_gate",
                              .up = "ffn_up",
                              .down = "ffn_down"};

// Metadata of one architecture: its keys begin with its name.
class Metadata {
 public:
  Metadata(const GgufFile& file, std::string architecture)
      : reader_(file.metadata(), file.path()), prefix_(std::move(architecture) + ".") {}
  bool has(const char* key) const { return reader_.has(of(key).c_str()); }
  std::int64_t number(const char* key, std::optional<std::int64_t> otherwise = {}) const {
    return reader_.number(of(key).c_str(), otherwise);
  }
  double real(const char* key, double otherwise) const { return reader_.real(of(key).c_str(), otherwise); }
  std::string text(const char* key, const std::string& otherwise) const { return reader_.text(of(key).c_str(), otherwise); }
  [[noreturn]] void refuse(const char* key, const std::string& value, const std::string& instead) const {
    reader_.refuse(of(key).c_str(), value, instead);
  }

 private:
  std::string of(const char* key) const { return prefix_ + key; }
  ConfigReader reader_;
  std::string prefix_;
};

bool has_tensor(const GgufFile& file, const std::string& name) {
  return std::ranges::find(file.tensors(), name, &GgufTensor::name) != file.tensors().end();
}

RotaryScaling scaling_of(const Metadata& metadata, std::int64_t positions) {
  RotaryScaling scaling;
  const std::string type = metadata.text("rope.scaling.type", "none");
  if (type == "none") return scaling;
  if (type != "linear" && type != "yarn") metadata.refuse("rope.scaling.type", type, "known are none, linear and yarn");
  scaling.kind = type == "linear" ? RotaryScaling::Kind::linear : RotaryScaling::Kind::yarn;
  scaling.factor = metadata.real("rope.scaling.factor", 1);
  if (type == "yarn") scaling.original_positions = metadata.number("rope.scaling.original_context_length", positions);
  return scaling;
}

}  // namespace

GgufModel gguf_model(const std::string& path) {
  const GgufFile file(path);
  const ConfigReader general(file.metadata(), path);
  const std::string architecture = general.text("general.architecture");
  if (architecture != "llama" && architecture != "qwen2" && architecture != "qwen3") {
    general.refuse("general.architecture", architecture, "known are llama, qwen2 and qwen3");
  }
  const Metadata metadata(file, architecture);
  const auto table = std::ranges::find(file.tensors(), gguf_names.table, &GgufTensor::name);
  if (table == file.tensors().end()) fail(ErrorCode::io, "The weights in {} lack {}.", path, gguf_names.table);
  DecoderShape shape = llama_shape({.layers = metadata.number("block_count"),
                                    .hidden = metadata.number("embedding_length"),
                                    .heads = metadata.number("attention.head_count"),
                                    .sequence = metadata.number("context_length"),
                                    .vocabulary = table->shape.front()});
  shape.kv_heads = metadata.number("attention.head_count_kv", shape.heads);
  if (metadata.has("attention.key_length")) shape.head_size = metadata.number("attention.key_length");
  shape.mlp_width = metadata.number("feed_forward_length");
  shape.norm.epsilon = metadata.real("attention.layer_norm_rms_epsilon", 1e-6);
  shape.rope_theta = metadata.real("rope.freq_base", 10000);
  shape.rope_scaling = scaling_of(metadata, shape.sequence);
  shape.tied = !has_tensor(file, gguf_names.head);
  shape.biases.qkv = architecture == "qwen2";
  shape.qk_norm = architecture == "qwen3";
  check_shape(shape, path);
  shape = shape.filled();
  const std::int64_t turned = metadata.number("rope.dimension_count", shape.head_size);
  if (turned != shape.head_size) {
    metadata.refuse("rope.dimension_count", std::to_string(turned),
                    "all " + std::to_string(shape.head_size) + " elements of a head are turned here");
  }
  LlamaTensors names = gguf_names;
  names.interleaved = architecture == "llama";
  return {shape, [shape, names](const Parameter& parameter) { return llama_rows(shape, parameter, names); }};
}

std::string gguf_metadata(const std::string& path) {
  return GgufFile(path).metadata().dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace stretto
