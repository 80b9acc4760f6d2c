#pragma once
#include <cstdint>

#include "stretto/layers/linear.hpp"

// The first and the last layer of a language model, divided over the vocabulary (Megatron-LM; Shoeybi et al. 2019). No
// rank ever holds a whole row of logits.
namespace stretto {

// A table of embedding vectors, of which rank r holds a share of the rows. It embeds tokens; the same weights turn
// states into logits (tied weights, Press & Wolf 2017). Any vocabulary size will do; shares differ by at most one row.
// A backward with `later` leaves the table's gradient there (weight_gradients.hpp), and keeps its first two arguments: until
// it is computed, the caller must not overwrite these.
class STRETTO_API VocabularyParallelTable {
 public:
  VocabularyParallelTable(Parameters& parameters, const std::string& name, std::int64_t vocabulary, std::int64_t hidden,
                          Initial initial, const TensorParallel& tensor_parallel);

  // tokens: i32. Returns own rows (layers/linear.hpp) of [tokens, hidden]. Costs one all-reduce of the result, or a
  // reduce-scatter if rows are divided.
  Tensor embed(const Tensor& tokens, ParameterUse& use) const;
  // dy: own rows, which are gathered if they are divided. With `later`, only leaves its work there.
  void embed_backward(const Tensor& tokens, const Tensor& dy, ParameterUse& use, WeightGradients* later = nullptr) const;

  // This rank's columns of the logits: [tokens, this rank's share of the vocabulary]. x and *for_backward as in
  // ColumnParallelLinear::forward.
  Tensor logits(const Tensor& x, std::int64_t tokens, ParameterUse& use, Tensor* for_backward = nullptr) const;
  // Returns own rows of the gradient with respect to x, summed over the group while the table's gradient is computed. With
  // `later`, the sum is waited for at once.
  Tensor logits_backward(const Tensor& x, const Tensor& dlogits, ParameterUse& use, WeightGradients* later = nullptr) const;

  LayerCost embed_cost(const CostedTokens& tokens) const;  // backward computes the gradient of the table alone
  LayerCost logits_cost(const CostedTokens& tokens) const;
  std::int64_t elements() const { return table_->elements(); }  // on this rank, which both costs count

  std::int64_t first() const { return table_->first[0]; }

 private:
  TensorParallel tensor_parallel_;
  Parameter* table_;
  const UsedParameters* used_;
};

// Softmax cross entropy over logits that are divided over the vocabulary. Costs two all-reduces, of 3 numbers per row
// in all, instead of gathering whole rows.
class STRETTO_API VocabularyParallelCrossEntropy {
 public:
  explicit VocabularyParallelCrossEntropy(const TensorParallel& tensor_parallel) : tensor_parallel_(tensor_parallel) {}

  // The data that backward needs in addition to the logits, and that the loss is computed from.
  struct STRETTO_API Saved {
    Tensor row_max;  // [rows]
    Tensor sums;     // [2, rows]: the sums of exp(logit - row_max), and the logits of the targets
    Tensor targets;  // those that forward got, which must not change meanwhile
    // The sum over all rows that count of -log softmax(logits)[target]; the same on every rank of the group. On a GPU it
    // blocks, so call it after backward has been enqueued.
    double loss() const;
  };
  // first: the index of this rank's first column; targets: i32, below 0 for a row that does not count.
  void forward(const Tensor& logits, const Tensor& targets, std::int64_t first, Saved& saved) const;
  // Replaces the logits by factor times the gradient of Saved::loss().
  void backward(const Tensor& logits, const Tensor& targets, std::int64_t first, const Saved& saved, double factor) const;
  // columns: this rank's columns of the logits.
  LayerCost cost(const CostedTokens& tokens, std::int64_t columns) const;

 private:
  TensorParallel tensor_parallel_;
};

}  // namespace stretto
