// Llama (Touvron et al. 2023) and the families that differ from it in a few keys: Mistral (Jiang et al. 2023), Qwen 2 and
// Qwen 3 (Yang et al. 2024, 2025).
#include "models/families/llama.hpp"

#include <algorithm>

#include "models/families/packed_rows.hpp"

namespace stretto {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using Kind = RotaryScaling::Kind;

constexpr std::pair<Kind, const char*> scaling_names[] = {{Kind::none, "default"},
                                                          {Kind::linear, "linear"},
                                                          {Kind::dynamic, "dynamic"},
                                                          {Kind::llama3, "llama3"},
                                                          {Kind::yarn, "yarn"}};

const char* name_of(Kind kind) {
  return std::ranges::find(scaling_names, kind, &std::pair<Kind, const char*>::first)->second;
}

// Files of before 2024 say "type" for "rope_type".
RotaryScaling read_scaling(const ConfigReader& config, std::int64_t positions) {
  RotaryScaling scaling;
  const char* const key = config.has("rope_type") || !config.has("type") ? "rope_type" : "type";
  const std::string type = config.text(key, "default");
  const auto* const found = std::ranges::find_if(scaling_names, [&](const auto& each) { return type == each.second; });
  if (found == std::end(scaling_names)) config.refuse(key, type, "known are default, linear, dynamic, llama3 and yarn");
  scaling.kind = found->first;
  if (scaling.kind == Kind::none) return scaling;
  scaling.factor = config.real("factor");
  if (scaling.kind == Kind::linear) return scaling;
  scaling.original_positions =
      scaling.kind == Kind::dynamic ? positions : config.number("original_max_position_embeddings", positions);
  if (scaling.kind == Kind::llama3) {
    scaling.low_frequency_factor = config.real("low_freq_factor");
    scaling.high_frequency_factor = config.real("high_freq_factor");
  }
  if (scaling.kind != Kind::yarn) return scaling;
  scaling.beta_fast = config.real("beta_fast", 32);
  scaling.beta_slow = config.real("beta_slow", 1);
  scaling.truncate = config.flag("truncate", true);
  if (config.has("attention_factor")) scaling.attention_factor = config.real("attention_factor", 1);
  if (config.has("mscale")) scaling.mscale = config.real("mscale", 1);
  if (config.has("mscale_all_dim")) scaling.mscale_all_dim = config.real("mscale_all_dim", 1);
  return scaling;
}

ordered_json scaling_json(const RotaryScaling& scaling) {
  if (scaling.kind == Kind::none) return nullptr;
  // Old versions, which have only these two kinds, ask for "type" and "factor" and nothing else; new ones take it.
  const bool is_old = scaling.kind == Kind::linear || scaling.kind == Kind::dynamic;
  ordered_json result = {{is_old ? "type" : "rope_type", name_of(scaling.kind)}, {"factor", scaling.factor}};
  if (scaling.kind == Kind::llama3) {
    result["low_freq_factor"] = scaling.low_frequency_factor;
    result["high_freq_factor"] = scaling.high_frequency_factor;
  }
  if (scaling.kind == Kind::llama3 || scaling.kind == Kind::yarn) {
    result["original_max_position_embeddings"] = scaling.original_positions;
  }
  if (scaling.kind != Kind::yarn) return result;
  result["beta_fast"] = scaling.beta_fast;
  result["beta_slow"] = scaling.beta_slow;
  if (!scaling.truncate) result["truncate"] = false;
  if (scaling.attention_factor) result["attention_factor"] = *scaling.attention_factor;
  if (scaling.mscale > 0) result["mscale"] = scaling.mscale;
  if (scaling.mscale_all_dim > 0) result["mscale_all_dim"] = scaling.mscale_all_dim;
  return result;
}

// Reads the keys that the families have in common. From transformers 5 on, rope_parameters holds rope_theta and
// rope_scaling; that version, too, prefers rope_scaling.
DecoderShape read_common(const ConfigReader& config, std::optional<std::int64_t> head_size = {}) {
  DecoderShape shape = llama_shape({.layers = config.number("num_hidden_layers"),
                                    .hidden = config.number("hidden_size"),
                                    .heads = config.number("num_attention_heads"),
                                    .sequence = config.number("max_position_embeddings"),
                                    .vocabulary = config.number("vocab_size")});
  shape.kv_heads = config.number("num_key_value_heads", shape.heads);
  if (head_size || config.has("head_dim")) shape.head_size = config.number("head_dim", head_size);
  shape.mlp_width = config.number("intermediate_size");
  shape.norm.epsilon = config.real("rms_norm_eps", 1e-6);
  shape.tied = config.flag("tie_word_embeddings", false);
  const char* const rope_key = config.has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  const ConfigReader rope = config.has(rope_key) ? config.inside(rope_key) : config;
  shape.rope_theta = rope.real("rope_theta", config.real("rope_theta", 10000));
  if (config.has(rope_key)) shape.rope_scaling = read_scaling(rope, shape.sequence);
  const json by_type = config.value(rope_key, json::object());
  for (const auto& [type, of_layers] : by_type.items()) {
    if (of_layers.is_object()) rope.refuse(type.c_str(), of_layers, "all layers of a model here turn alike");
  }
  rope.expect("partial_rotary_factor", 1.0, {1.0});
  config.expect("hidden_act", "silu", {"silu"});
  config.expect("attention_dropout", 0.0, {0.0});
  config.expect("partial_rotary_factor", 1.0, {1.0});
  for (const json& type : config.value("layer_types", json::array())) {
    if (type != "full_attention") config.refuse("layer_types", type, "all layers of a model here have full_attention");
  }
  return shape;
}

ordered_json write_common(const DecoderShape& shape, const char* architecture, const char* type) {
  return {{"architectures", {architecture}},
          {"model_type", type},
          {"vocab_size", shape.vocabulary},
          {"max_position_embeddings",  // dynamic scaling takes it for the original ones
           shape.rope_scaling.kind == Kind::dynamic ? shape.rope_scaling.original_positions : shape.sequence},
          {"hidden_size", shape.hidden},
          {"intermediate_size", shape.mlp_width},
          {"num_hidden_layers", shape.layers},
          {"num_attention_heads", shape.heads},
          {"num_key_value_heads", shape.kv_heads},
          {"head_dim", shape.head_size},
          {"hidden_act", "silu"},
          {"rms_norm_eps", shape.norm.epsilon},
          {"rope_theta", shape.rope_theta},
          {"rope_scaling", scaling_json(shape.rope_scaling)},
          {"attention_dropout", 0.0},
          {"tie_word_embeddings", shape.tied}};
}

// All that the families have in common is a Llama's.
bool is_like_llama(const DecoderShape& shape) {
  return shape.norm.kind == Norm::Kind::rms && shape.activation == kernels::Activation::silu_gate &&
         shape.positions == DecoderShape::Positions::rotary;
}
bool has_biases(const DecoderShape& shape, bool qkv, bool projection, bool mlp) {
  return shape.biases == DecoderShape::Biases{qkv, projection, mlp};
}

std::vector<ForeignRows> hf_rows(const DecoderShape& shape, const Parameter& parameter, std::int64_t /*positions*/) {
  return llama_rows(shape, parameter, LlamaTensors{});
}

bool hf_ignores(const std::string& tensor) { return tensor.ends_with(".rotary_emb.inv_freq"); }

bool is_llama(const DecoderShape& shape) {
  return is_like_llama(shape) && !shape.qk_norm && shape.window == 0 && shape.biases.qkv == shape.biases.projection;
}
DecoderShape read_llama(const ConfigReader& config) {
  DecoderShape shape = read_common(config);
  shape.biases.qkv = shape.biases.projection = config.flag("attention_bias", false);
  shape.biases.mlp = config.flag("mlp_bias", false);
  return shape;
}
ordered_json write_llama(const DecoderShape& shape) {
  ordered_json config = write_common(shape, "LlamaForCausalLM", "llama");
  config["attention_bias"] = shape.biases.qkv;
  config["mlp_bias"] = shape.biases.mlp;
  return config;
}

bool is_mistral(const DecoderShape& shape) {
  return is_like_llama(shape) && !shape.qk_norm && shape.window > 0 && has_biases(shape, false, false, false);
}
DecoderShape read_mistral(const ConfigReader& config) {
  DecoderShape shape = read_common(config);
  if (config.has("sliding_window") || !config.says("sliding_window")) shape.window = config.number("sliding_window", 4096);
  return shape;
}
ordered_json write_mistral(const DecoderShape& shape) {
  ordered_json config = write_common(shape, "MistralForCausalLM", "mistral");
  config["sliding_window"] = shape.window;
  return config;
}

bool is_qwen2(const DecoderShape& shape) {
  return is_like_llama(shape) && !shape.qk_norm && shape.window == 0 && has_biases(shape, true, false, false) &&
         shape.filled().head_size * shape.heads == shape.hidden;
}
DecoderShape read_qwen2(const ConfigReader& config) {
  DecoderShape shape = read_common(config);
  shape.biases.qkv = true;
  config.expect("use_sliding_window", false, {false});
  return shape;
}
ordered_json write_qwen2(const DecoderShape& shape) {
  ordered_json config = write_common(shape, "Qwen2ForCausalLM", "qwen2");
  config.erase("head_dim");
  config["use_sliding_window"] = false;
  return config;
}

bool is_qwen3(const DecoderShape& shape) {
  return is_like_llama(shape) && shape.qk_norm && shape.window == 0 && has_biases(shape, false, false, false);
}
DecoderShape read_qwen3(const ConfigReader& config) {
  DecoderShape shape = read_common(config, 128);
  shape.qk_norm = true;
  config.expect("attention_bias", false, {false});
  config.expect("use_sliding_window", false, {false});
  return shape;
}
ordered_json write_qwen3(const DecoderShape& shape) {
  ordered_json config = write_common(shape, "Qwen3ForCausalLM", "qwen3");
  config["attention_bias"] = config["use_sliding_window"] = false;
  return config;
}

// The number of the block and the name within it of "h.12.attn.c_attn.weight"; nothing for other names.
std::optional<std::pair<std::string, std::string>> of_block(const std::string& name) {
  if (!name.starts_with("h.")) return std::nullopt;
  const std::size_t dot = name.find('.', 2);
  return std::pair{name.substr(2, dot - 2), name.substr(dot + 1)};
}

}  // namespace

DecoderShape llama_shape(DecoderShape shape) {
  shape.norm = {.kind = Norm::Kind::rms};
  shape.activation = kernels::Activation::silu_gate;
  shape.biases = {.qkv = false, .projection = false, .mlp = false};
  shape.positions = DecoderShape::Positions::rotary;
  return shape;
}

std::vector<ForeignRows> llama_rows(const DecoderShape& shape, const Parameter& parameter, const LlamaTensors& names) {
  const auto whole = [&](const std::string& name) { return first_rows(parameter, {name, parameter.global_shape}); };
  if (parameter.global_name() == "wte.weight") return whole(names.table);
  if (parameter.global_name() == "ln_f.weight") return whole(names.last_norm);
  if (parameter.global_name() == "lm_head.weight") return whole(names.head);
  const auto its = of_block(parameter.global_name());
  require(its.has_value(), "Parameter {} is none of a Llama's.", parameter.name);
  const auto& [number, inner] = *its;
  const std::string prefix = names.block + number + ".", suffix = inner.substr(inner.rfind('.'));
  const std::string layer = inner.substr(0, inner.rfind('.'));
  const auto tensor = [&](const char* name, std::int64_t rows) {
    Shape extents{rows};
    if (suffix == ".weight") extents.push_back(shape.hidden);
    return ForeignTensor{prefix + name + suffix, extents};
  };
  if (layer == "attn.c_attn") {
    const std::int64_t queries = shape.heads * shape.head_size, keys = shape.kv_heads * shape.head_size;
    return packed_qkv_rows({shape.heads, shape.kv_heads, shape.head_size}, {tensor(names.q, queries), 0, queries},
                           {tensor(names.k, keys), 0, keys}, {tensor(names.v, keys), 0, keys},
                           names.interleaved ? RowOrder::interleaved : RowOrder::same);
  }
  if (layer == "mlp.c_fc") {
    return {{tensor(names.gate, shape.mlp_width), 0, shape.mlp_width},
            {tensor(names.up, shape.mlp_width), 0, shape.mlp_width}};
  }
  const std::pair<const char*, const char*> others[] = {{"ln_1", names.first_norm},    {"ln_2", names.second_norm},
                                                        {"attn.c_proj", names.output}, {"mlp.c_proj", names.down},
                                                        {"attn.q_norm", names.q_norm}, {"attn.k_norm", names.k_norm}};
  for (const auto& [ours, theirs] : others) {
    if (layer == ours) return whole(prefix + theirs + suffix);
  }
  fail(ErrorCode::invalid_argument, "Parameter {} is none of a Llama's.", parameter.name);
}

const ModelFamily llama_family{"llama", is_llama, read_llama, write_llama, hf_rows, "model.", hf_ignores};
const ModelFamily mistral_family{"mistral", is_mistral, read_mistral, write_mistral, hf_rows, "model.", hf_ignores};
const ModelFamily qwen2_family{"qwen2", is_qwen2, read_qwen2, write_qwen2, hf_rows, "model.", hf_ignores};
const ModelFamily qwen3_family{"qwen3", is_qwen3, read_qwen3, write_qwen3, hf_rows, "model.", hf_ignores};

}  // namespace stretto
