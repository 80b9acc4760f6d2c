#pragma once
#include <cstdint>

#include "stretto/kernels.hpp"
#include "stretto/layers/norm.hpp"
#include "stretto/layers/rotary.hpp"

namespace stretto {

// The shape of a decoder: an embedding of tokens, blocks of attention and MLP that each add to the residual stream, a last
// norm, and logits. GPT-2 (Radford et al. 2019) is the value that has only the first five numbers; Llama (Touvron et al.
// 2023) and its like differ in the others (stretto/models/families.hpp).
struct STRETTO_API DecoderShape {
  std::int64_t layers = 4, hidden = 192, heads = 6;
  std::int64_t sequence = 128;  // the most tokens of a sequence
  std::int64_t vocabulary = 256;
  std::int64_t kv_heads = 0;   // heads of keys and values, a divisor of heads (AttentionCore::Shape); 0: as many as heads
  std::int64_t head_size = 0;  // 0: hidden / heads
  std::int64_t mlp_width = 0;  // 0: 4 hidden
  Norm::Options norm = {};
  kernels::Activation activation = kernels::Activation::gelu_tanh;
  struct Biases {
    bool qkv = true, projection = true, mlp = true;
    bool operator==(const Biases&) const = default;
  } biases = {};
  enum class Positions : std::uint8_t {
    learned,  // a vector for each position (LearnedPositions)
    rotary    // queries and keys are turned (RotaryPositions)
  } positions = Positions::learned;
  double rope_theta = 10000;
  RotaryScaling rope_scaling = {};
  bool qk_norm = false;     // an RMS norm of each head of queries and keys, before they are turned (Qwen 3)
  std::int64_t window = 0;  // tokens that a query sees, its own included (kernels::AttentionMask); 0: all before it
  bool tied = true;         // the logits' weights are the embedding's

  bool operator==(const DecoderShape&) const = default;

  // The same with all sizes given. Throws Error(invalid_argument), in one sentence, if the width does not divide into heads.
  DecoderShape filled() const;
  // Throws Error(invalid_argument), in one sentence, unless the sizes, which must all be given, make a block and the heads
  // divide over the ranks.
  void check_block(int tensor_ranks, int ulysses_ranks = 1) const;
};

}  // namespace stretto
