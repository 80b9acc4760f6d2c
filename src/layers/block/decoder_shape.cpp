#include "stretto/layers/decoder_shape.hpp"

#include "core/fail.hpp"

namespace stretto {

DecoderShape DecoderShape::filled() const {
  DecoderShape shape = *this;
  if (shape.kv_heads == 0) shape.kv_heads = heads;
  if (shape.mlp_width == 0) shape.mlp_width = 4 * hidden;
  if (shape.head_size > 0) return shape;
  require(heads >= 1 && hidden % heads == 0,
          "A hidden size of {} does not divide into {} attention heads; choose a multiple of the heads.", hidden, heads);
  shape.head_size = hidden / heads;
  return shape;
}

void DecoderShape::check_block(int tensor_ranks, int ulysses_ranks) const {
  const std::int64_t ranks = std::int64_t{tensor_ranks} * ulysses_ranks;
  require(
      hidden >= 1 && head_size >= 1 && mlp_width >= 1 && layers >= 1,
      "A block of width {} with heads of {} elements and an MLP of width {}, one of {}, computes nothing; give all sizes.",
      hidden, head_size, mlp_width, layers);
  require(heads >= 1 && heads % ranks == 0,
          "{} attention heads do not divide over {} tensor-parallel x {} ulysses ranks; choose a multiple of {}.", heads,
          tensor_ranks, ulysses_ranks, ranks);
  require(kv_heads >= 1 && heads % kv_heads == 0,
          "{} attention heads do not divide over {} heads of keys and values; choose a divisor of the heads.", heads,
          kv_heads);
  require(window >= 0, "A window of {} tokens is none; give 1 or more, or 0 for no window.", window);
  const bool copies = ulysses_ranks == 1 && ranks % kv_heads == 0;  // one head on several tensor-parallel ranks
  require(
      kv_heads % ranks == 0 || copies,
      "{} heads of keys and values do not divide over {} tensor-parallel x {} ulysses ranks; choose a multiple of {}, or "
      "without ulysses ranks a divisor.",
      kv_heads, tensor_ranks, ulysses_ranks, ranks);
}

}  // namespace stretto
