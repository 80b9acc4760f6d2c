#pragma once
#include <cstdint>

#include "stretto/layers/linear.hpp"

// The two ends of a language model, divided over the vocabulary (Megatron-LM; Shoeybi et al. 2019): no rank ever holds a
// whole row of logits.
namespace stretto {

// A table of which rank r holds a share of the rows; it embeds tokens and, tied (Press & Wolf 2017), turns states into
// logits. Any vocabulary size divides, unevenly if need be.
class STRETTO_API VocabularyParallelTable {
 public:
  VocabularyParallelTable(Parameters& parameters, const std::string& name, std::int64_t vocabulary, std::int64_t hidden,
                          Initial initial, const TensorParallel& tensor_parallel);

  // tokens: i32. [tokens, hidden], complete on every rank: one all-reduce of it.
  Tensor embed(const Tensor& tokens) const;
  void embed_backward(const Tensor& tokens, const Tensor& dy) const;

  // This rank's columns of the logits: [tokens, share].
  Tensor logits(const Tensor& x) const;
  Tensor logits_backward_input(const Tensor& dlogits) const;  // this rank's part of a sum, which the caller starts
  void logits_backward_weight(const Tensor& x, const Tensor& dlogits) const;

  std::int64_t first() const { return table_->first[0]; }
  Parameter& parameter() const { return *table_; }

 private:
  TensorParallel tensor_parallel_;
  Parameter* table_;
};

// Softmax cross entropy over logits that are divided like that: two all-reduces of 3 numbers a row in place of the rows
// themselves.
class STRETTO_API VocabularyParallelCrossEntropy {
 public:
  explicit VocabularyParallelCrossEntropy(const TensorParallel& tensor_parallel) : tensor_parallel_(tensor_parallel) {}

  // What backward needs besides the logits, and what the loss is told from.
  struct STRETTO_API Saved {
    Tensor row_max;  // [rows]
    Tensor sums;     // [2, rows]: of exp(logit - row_max), and the target's logit
    // The sum over all rows of -log softmax(logits)[target], the same on every rank of the group. Waits for a GPU: best
    // asked for when backward is under way.
    double loss() const;
  };
  // first: of this rank's columns; targets: i32.
  void forward(const Tensor& logits, const Tensor& targets, std::int64_t first, Saved& saved) const;
  // logits become factor times the gradient of that sum.
  void backward(const Tensor& logits, const Tensor& targets, std::int64_t first, const Saved& saved, double factor) const;

 private:
  TensorParallel tensor_parallel_;
};

}  // namespace stretto
