#pragma once
#include <string>
#include <vector>

#include "models/families/family.hpp"

namespace stretto {

// The names that a format has for the tensors of a Llama; by default transformers'. Names in blocks are without ".weight".
struct LlamaTensors {
  const char* table = "model.embed_tokens.weight";
  const char* last_norm = "model.norm.weight";
  const char* head = "lm_head.weight";
  const char* block = "model.layers.";  // in front of the number of a block
  const char* first_norm = "input_layernorm";
  const char* second_norm = "post_attention_layernorm";
  const char* q = "self_attn.q_proj";
  const char* k = "self_attn.k_proj";
  const char* v = "self_attn.v_proj";
  const char* output = "self_attn.o_proj";
  const char* q_norm = "self_attn.q_norm";
  const char* k_norm = "self_attn.k_norm";
  const char* gate = "mlp.gate_proj";
  const char* up = "mlp.up_proj";
  const char* down = "mlp.down_proj";
  bool interleaved = false;  // the rotary pairs of q and k are neighbours
};

// shape: all sizes given.
std::vector<ForeignRows> llama_rows(const DecoderShape& shape, const Parameter& parameter, const LlamaTensors& names);

}  // namespace stretto
