// GPT-2 (Radford et al. 2019), with shapes of any size. Its weights of linear layers are [in, out] in files.
#include "models/families/family.hpp"

namespace stretto {
namespace {

bool is_gpt2(const DecoderShape& shape) {
  const DecoderShape plain{.layers = shape.layers,
                           .hidden = shape.hidden,
                           .heads = shape.heads,
                           .sequence = shape.sequence,
                           .vocabulary = shape.vocabulary,
                           .mlp_width = shape.mlp_width,
                           .norm = {.epsilon = shape.norm.epsilon}};
  return shape.filled() == plain.filled();
}

DecoderShape read_gpt2(const ConfigReader& config) {
  DecoderShape shape{.layers = config.number("n_layer"),
                     .hidden = config.number("n_embd"),
                     .heads = config.number("n_head"),
                     .sequence = config.number("n_positions"),
                     .vocabulary = config.number("vocab_size")};
  if (config.has("n_inner")) shape.mlp_width = config.number("n_inner");
  shape.norm.epsilon = config.real("layer_norm_epsilon", 1e-5);
  config.expect("activation_function", "gelu_new", {"gelu_new", "gelu_pytorch_tanh"});
  config.expect("scale_attn_weights", true, {true});
  config.expect("scale_attn_by_inverse_layer_idx", false, {false});
  config.expect("tie_word_embeddings", true, {true});
  config.expect("add_cross_attention", false, {false});
  return shape;
}

nlohmann::ordered_json write_gpt2(const DecoderShape& shape) {
  nlohmann::ordered_json config = {{"architectures", {"GPT2LMHeadModel"}},
                                   {"model_type", "gpt2"},
                                   {"vocab_size", shape.vocabulary},
                                   {"n_positions", shape.sequence},
                                   {"n_embd", shape.hidden},
                                   {"n_layer", shape.layers},
                                   {"n_head", shape.heads},
                                   {"n_inner", nullptr},
                                   {"activation_function", "gelu_new"},
                                   {"layer_norm_epsilon", shape.norm.epsilon},
                                   {"scale_attn_weights", true},
                                   {"scale_attn_by_inverse_layer_idx", false},
                                   {"tie_word_embeddings", true},
                                   {"embd_pdrop", 0.0},
                                   {"attn_pdrop", 0.0},
                                   {"resid_pdrop", 0.0}};
  if (shape.mlp_width != 4 * shape.hidden) config["n_inner"] = shape.mlp_width;
  return config;
}

std::vector<ForeignRows> gpt2_rows(const DecoderShape& /*shape*/, const Parameter& parameter, std::int64_t positions) {
  const std::string name = gpt2_family.prefix + parameter.global_name();
  const Shape& global = parameter.global_shape;
  if (parameter.name == "wpe.weight") return first_rows(parameter, {name, {positions, global.back()}});
  std::int64_t elements = 1;
  for (const std::int64_t extent : global) elements *= extent;
  const bool is_linear = name.find(".attn.c_") != std::string::npos || name.find(".mlp.c_") != std::string::npos;
  if (!is_linear) return first_rows(parameter, {name, global});
  if (name.ends_with(".bias")) return first_rows(parameter, {name, {elements}});
  return first_rows(parameter, {name, {global.back(), elements / global.back()}, true});
}

// The tied head, and the masks of old versions.
bool gpt2_ignores(const std::string& tensor) {
  return tensor == "lm_head.weight" || tensor.ends_with(".attn.bias") || tensor.ends_with(".attn.masked_bias");
}

}  // namespace

const ModelFamily gpt2_family{"gpt2", is_gpt2, read_gpt2, write_gpt2, gpt2_rows, "transformer.", gpt2_ignores};

}  // namespace stretto
