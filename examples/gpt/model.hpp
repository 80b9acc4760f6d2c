#pragma once
#include <optional>

#include "stretto/layers/transformer.hpp"
#include "stretto/layers/vocabulary.hpp"

namespace gpt {

struct ModelShape {
  std::int64_t layers = 4, hidden = 192, heads = 6, sequence = 128, vocabulary = 256;

  // Floating-point operations per trained token, forward and backward: 6 per parameter, and 12 layers hidden sequence for
  // attention, as in PaLM (Chowdhery et al. 2022) and nanoGPT. The causal mask's half is not subtracted.
  double flops_per_token(std::int64_t parameters) const {
    return 6.0 * static_cast<double>(parameters) + 12.0 * static_cast<double>(layers * hidden * sequence);
  }
};

// GPT-2 without dropout: embeddings, blocks, a last norm, logits from the tied embedding. It says nothing of how it is
// divided: the layers do. Parameters have GPT-2's names.
class Model {
 public:
  Model(stretto::Parameters& parameters, const ModelShape& shape, const stretto::TensorParallel& tensor_parallel);

  struct Saved {
    std::vector<stretto::TransformerBlock::Saved> blocks;
    stretto::LayerNorm::Saved norm;
    stretto::Tensor tokens, normed;
    stretto::VocabularyParallelCrossEntropy::Saved loss;
  };

  // tokens: batch sequences of the same length, at most shape.sequence, one after the other. This rank's columns of the
  // logits. needed: asked for parameters before they are used; may be empty.
  stretto::Tensor logits(const std::int32_t* tokens, std::int64_t batch, std::int64_t sequence, Saved& saved,
                         const stretto::ParametersNeeded& needed = {}) const;

  // The sum of the losses of all tokens; with a factor the gradients grow by factor times that of the sum. ready: told of
  // parameters that this microbatch completes; may be empty.
  double loss(const std::int32_t* tokens, const std::int32_t* targets, std::int64_t batch, std::int64_t sequence,
              std::optional<double> backward_factor, const stretto::GradientReady& ready,
              const stretto::ParametersNeeded& needed = {}) const;

  const ModelShape& shape() const { return shape_; }
  std::int64_t first_column() const { return table_.first(); }

 private:
  ModelShape shape_;
  stretto::TensorParallel tensor_parallel_;
  stretto::VocabularyParallelTable table_;
  stretto::Parameter* positions_;
  std::vector<stretto::TransformerBlock> blocks_;
  stretto::LayerNorm norm_;
  stretto::VocabularyParallelCrossEntropy cross_entropy_;
};

}  // namespace gpt
