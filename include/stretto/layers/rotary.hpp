#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "stretto/tensor.hpp"

// The angles of rotary positions (Su et al. 2021; kernels::rotary). Pair i of a head of d elements turns by
// frequency[i] * position, with frequency[i] = theta^(-2i/d); models that were extended to longer contexts scale the
// frequencies. All arithmetic is that of transformers: in f32, in the same order, each operation rounded once. The tables of
// both differ by at most one unit in the last place, by which cos and sin of PyTorch are off.
namespace stretto {

// How frequencies are scaled, in the words of config.json (rope_scaling).
struct STRETTO_API RotaryScaling {
  enum class Kind : std::uint8_t {
    none,
    linear,   // all frequencies / factor
    dynamic,  // theta grows with the sequence, beyond original_positions
    llama3,   // frequencies of long waves / factor, of short ones unchanged, and of those between blended
    yarn      // the same by the number of turns within original_positions (Peng et al. 2023), and an attention factor
  };
  Kind kind = Kind::none;
  double factor = 1;
  // The longest sequence before the context was extended (original_max_position_embeddings): dynamic, llama3, yarn.
  std::int64_t original_positions = 0;
  // llama3: low_freq_factor and high_freq_factor.
  double low_frequency_factor = 1, high_frequency_factor = 4;
  // yarn. Without an attention_factor, it follows from the factor, mscale and mscale_all_dim (0: not given).
  double beta_fast = 32, beta_slow = 1;
  bool truncate = true;
  std::optional<double> attention_factor = {};
  double mscale = 0, mscale_all_dim = 0;

  bool operator==(const RotaryScaling&) const = default;
};

struct STRETTO_API RotaryFrequencies {
  std::vector<float> frequency;  // of each pair, in radians a position: inv_freq
  double attention_factor = 1;   // multiplies cosines and sines
};

// `sequence`, the length of the longest sequence, matters to dynamic scaling only; 0: original_positions. Throws
// Error(invalid_argument), in one sentence, for an odd head_size and for scalings that make no sense.
STRETTO_API RotaryFrequencies rotary_frequencies(double theta, std::int64_t head_size, const RotaryScaling& scaling = {},
                                                 std::int64_t sequence = 0);

// The table that kernels::rotary takes for elements of f, of the positions 0 to positions - 1. On the device of the calling
// thread.
STRETTO_API Tensor rotary_table(const RotaryFrequencies& frequencies, std::int64_t positions, DType f);

}  // namespace stretto
