#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "stretto/layers/positions.hpp"
#include "stretto/layers/transformer.hpp"
#include "stretto/layers/vocabulary.hpp"
#include "stretto/layers/weight_gradients.hpp"
#include "stretto/models/decoder_cost.hpp"
#include "stretto/models/model_cut.hpp"
#include "stretto/overlap/offload_use.hpp"

namespace stretto {

// Sequences, or the tokens of each that a rank has, `length` of each, one after the other, in the memory of this thread's
// device.
struct STRETTO_API Batch {
  std::int64_t sequences = 0, length = 0;
  // i32, one a token. Targets are the tokens that follow, or below 0 where the loss does not count them; they are empty if
  // no loss is computed. Positions are those in the token's document.
  Tensor tokens, targets, positions;
  Tensor starts = {};  // AttentionCore::Shape::starts
  Tensor draws = {};   // Tokens::draws

  // Copies from host memory. Blocks until a GPU has the data, so that one copy for the whole step is best. positions: of the
  // tokens of each sequence.
  static Batch of(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets,
                  const std::vector<std::int64_t>& positions);
  static Batch of(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets, std::int64_t length);
  Batch part(std::int64_t first, std::int64_t count) const;  // a view of count sequences
};

// A decoder of any DecoderShape, without dropout but of adapters' inputs: embeddings, blocks, a last norm, logits. The
// layers, not this class, decide how the model is divided over tensor-parallel ranks. Parameters have GPT-2's names,
// whatever the shape, and the weights of a head that is not tied are "lm_head.weight". Those of other stages are records
// only, and so are all of them until ShardedParameters gives them memory: plans read the records of a model without any.
//
// With adapters, all else is frozen but AdapterOptions::modules_to_save. The constructor throws Error(invalid_argument) as
// AdapterOptions::check(), and for a name to save that is no module's.
class STRETTO_API Decoder {
 public:
  Decoder(Parameters& parameters, const DecoderShape& shape, const TensorParallel& tensor_parallel,
          const RecomputeOptions& recompute, const ModelCut& cut,
          const std::shared_ptr<const AttentionCore>& attention = std::make_shared<LocalAttention>(),
          const AdapterOptions& adapters = {});
  // The whole model on one stage.
  Decoder(Parameters& parameters, const DecoderShape& shape, const TensorParallel& tensor_parallel,
          const RecomputeOptions& recompute = {})
      : Decoder(parameters, shape, tensor_parallel, recompute, ModelCut::whole(shape.layers)) {}

  // Makes the file of RecomputeOptions::directory, if there is one; the first forward would. Throws Error(io) for a
  // directory that cannot hold it.
  void make_files();
  std::optional<OffloadUse> offloaded() const;  // of that file; empty: there is none

  // The activations of one microbatch in one chunk, between forward and backward. `later` holds the gradients of weights
  // that backward has left for later.
  struct Saved {
    std::vector<TransformerBlock::Saved> blocks;
    Norm::Saved norm;
    Tensor normed;
    WeightGradients later;
  };

  // Takes the output of the part before; the first part takes the batch's tokens instead, at most shape.sequence of each
  // sequence. Returns own rows (stretto/layers/linear.hpp) of [tokens, hidden], or this rank's columns of the logits from
  // the last part.
  Tensor forward(int chunk, const Batch& batch, Tensor x, Saved& saved, ParameterUse& use) const;
  // `gradient` is that of what forward returned, and is overwritten. Returns the gradient of what forward took. If
  // `weights_later`, the gradients of weights are left in saved.later. Frees what nothing needs any more.
  Tensor backward(int chunk, const Batch& batch, Tensor gradient, Saved& saved, ParameterUse& use,
                  bool weights_later = false) const;

  // The loss holds the sum over all tokens of a batch that count.
  using Loss = VocabularyParallelCrossEntropy::Saved;
  Loss loss(const Tensor& logits, const Batch& batch) const;
  // Replaces the logits by factor times the gradient of the loss.
  void loss_backward(const Tensor& logits, const Batch& batch, const Loss& loss, double factor) const;

  // The decoder must hold all parts of the model.
  DecoderCost cost(const CostedTokens& tokens) const;

  // Sets the factors of adapters on the base, from the next forward on; they are 1 at first. All ranks must set the same
  // between two steps, and training needs that of the trained ones to be 1. A Trainer has a function of its own for it.
  // Throws Error(invalid_argument) for a name that no adapters have, and for a factor that is not finite.
  void weigh_adapters(const AdapterWeights& weights);
  double weight_of_adapters(const std::string& name) const;

  const DecoderShape& shape() const { return shape_; }  // all sizes given
  // The shape of a message between parts of the model, for so many tokens.
  Shape message(std::int64_t tokens) const { return {tensor_parallel_.own_rows(tokens).count, shape_.hidden}; }
  std::int64_t first_column() const { return head().first(); }
  bool is_first(int chunk) const { return chunks_[static_cast<std::size_t>(chunk)].is_first; }
  bool is_last(int chunk) const { return chunks_[static_cast<std::size_t>(chunk)].is_last; }

 private:
  struct Chunk {
    bool is_first, is_last;
    std::vector<TransformerBlock> blocks;
  };
  static std::vector<Chunk> make_chunks(Parameters& parameters, const DecoderShape& shape,
                                        const TensorParallel& tensor_parallel, const RecomputeOptions& recompute,
                                        const ModelCut& cut, const std::shared_ptr<const AttentionCore>& attention,
                                        const AdapterOptions& adapters, const std::shared_ptr<const AdapterWeights>& weights,
                                        const std::shared_ptr<TensorFile>& inputs);
  Tensor head_backward(Tensor dlogits, Saved& saved, ParameterUse& use, WeightGradients* later) const;
  const VocabularyParallelTable& head() const { return head_ ? *head_ : table_; }

  DecoderShape shape_;
  TensorParallel tensor_parallel_;
  std::shared_ptr<AdapterWeights> adapter_weights_;
  VocabularyParallelTable table_;
  std::optional<LearnedPositions> positions_;
  std::shared_ptr<TensorFile> inputs_;  // of blocks; may be null
  std::vector<Chunk> chunks_;
  Norm norm_;
  std::optional<VocabularyParallelTable> head_;  // if it is not tied
  VocabularyParallelCrossEntropy cross_entropy_;
};

}  // namespace stretto
