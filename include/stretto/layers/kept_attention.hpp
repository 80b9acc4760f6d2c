#pragma once
#include <memory>
#include <vector>

#include "stretto/layers/attention.hpp"

namespace stretto {

// Attention of a sequence that grows, for sampling: keys and values of earlier tokens are kept, so that a forward computes
// those of new tokens only. Blocks of a model share one object, which is another core as long as it is not started. Used by
// one thread.
class STRETTO_API KeptAttention final : public AttentionCore {
 public:
  // otherwise: computes forwards and backwards while this is not started.
  KeptAttention(kernels::AttentionMask mask, std::shared_ptr<const AttentionCore> otherwise)
      : mask_(mask), otherwise_(std::move(otherwise)) {}

  // Until stop(), each block's forward is called once, in the order of the first time, with the tokens from `first` on of
  // one sequence. Keys and values of those before are the ones of earlier forwards. A block keeps at most `capacity` tokens,
  // in 2 kv_heads * head_size elements each.
  void start(std::int64_t first, std::int64_t capacity) const;
  void stop() const { active_ = false; }

  Tensor forward(const Shape& shape, const QueriesKeysValues& of, Saved& saved) const override;
  void backward(const Tensor& dattended, const Saved& saved, const QueriesKeysValues& gradients) const override {
    otherwise_->backward(dattended, saved, gradients);
  }

 private:
  struct Kept {  // of one block
    Tensor keys, values;
  };
  kernels::AttentionMask mask_;
  std::shared_ptr<const AttentionCore> otherwise_;
  mutable bool active_ = false;
  mutable std::int64_t first_ = 0, capacity_ = 0;
  mutable std::size_t block_ = 0;  // the next one
  mutable std::vector<Kept> blocks_;
};

}  // namespace stretto
