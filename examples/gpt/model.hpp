#pragma once
#include <optional>
#include <vector>

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

// Sequences of one length, one after the other, in the memory of this thread's device.
struct Batch {
  std::int64_t sequences = 0, length = 0;
  stretto::Tensor tokens, targets, positions;  // i32, one a token; targets are empty if no loss is computed

  // Copies from host memory. Blocks until a GPU has the data, so that one copy for the whole step is best.
  static Batch of(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets, std::int64_t length);
  Batch part(std::int64_t first, std::int64_t count) const;  // a view of count sequences
};

// GPT-2 without dropout: embeddings, blocks, a last norm, logits from the tied embedding. The layers, not this class, decide
// how the model is divided. Parameters have GPT-2's names.
class Model {
 public:
  Model(stretto::Parameters& parameters, const ModelShape& shape, const stretto::TensorParallel& tensor_parallel,
        const stretto::RecomputeOptions& recompute = {});

  struct Saved {
    std::vector<stretto::TransformerBlock::Saved> blocks;
    stretto::LayerNorm::Saved norm;
    stretto::Tensor normed;
  };

  // This rank's columns of the logits, for sequences of at most shape.sequence tokens.
  stretto::Tensor logits(const Batch& batch, Saved& saved, stretto::ParameterUse& use) const;

  // The loss holds the sum over all tokens. With a factor, adds factor times the gradient of that sum to the gradients.
  using Loss = stretto::VocabularyParallelCrossEntropy::Saved;
  Loss loss(const Batch& batch, std::optional<double> backward_factor, stretto::ParameterUse& use) const;

  const ModelShape& shape() const { return shape_; }
  std::int64_t first_column() const { return table_.first(); }

 private:
  void backward(const Batch& batch, stretto::Tensor dlogits, Saved& saved, stretto::ParameterUse& use) const;
  void add_positions(const Batch& batch, const stretto::Tensor& x, stretto::ParameterUse& use) const;
  void add_positions_gradient(const Batch& batch, const stretto::Tensor& dx, stretto::ParameterUse& use) const;

  ModelShape shape_;
  stretto::VocabularyParallelTable table_;
  stretto::Parameter* positions_;
  std::vector<stretto::TransformerBlock> blocks_;
  stretto::LayerNorm norm_;
  stretto::VocabularyParallelCrossEntropy cross_entropy_;
};

}  // namespace gpt
