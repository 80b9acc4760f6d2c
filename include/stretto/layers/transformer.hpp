#pragma once
#include <memory>
#include <optional>

#include "stretto/layers/attention.hpp"
#include "stretto/layers/decoder_shape.hpp"
#include "stretto/layers/linear.hpp"
#include "stretto/layers/norm.hpp"
#include "stretto/layers/positions.hpp"
#include "stretto/layers/qk_norm.hpp"
#include "stretto/layers/recompute.hpp"

// The blocks of a decoder (DecoderShape): each of their two layers begins with a norm, and adds to the residual; attention
// is causal. Activations are own rows (layers/linear.hpp) of [batch * sequence, hidden]. A layer keeps nothing between
// forward and backward. The caller keeps a Saved with what backward needs, so several microbatches may be in flight. Tensors
// of a Saved that are said to be optional may be empty: backward then computes them again (layers/recompute.hpp).
//
// A backward with `later` computes gradients of activations alone, and leaves those of the linear layers' weights there
// (weight_gradients.hpp): at every level of recomputation the inputs of its linear layers and the gradients of their
// results, LayerCost::later bytes; of a GPT-2 r h e (4 + 12 / t) in the letters of recompute.hpp. dx may be overwritten: the
// block copies it twice, and the copies are among these bytes.
namespace stretto {

// The tokens of a microbatch that are here: `length` of each of `batch` sequences, which follow each other.
struct Tokens {
  std::int64_t batch = 0, length = 0;
  Tensor positions = {};  // i32: of each token in its document; may be empty if nothing in a block needs them
  Tensor starts = {};     // AttentionCore::Shape::starts
  Tensor draws = {};      // i64: a random number for each token, which dropout follows from; empty: nothing is dropped
  std::int64_t count() const { return batch * length; }
};

// x + proj(attention(qkv(norm(x)))). Each of the t ranks of the tensor-parallel group has heads / t of the heads, and
// kv_heads / t of those of keys and values, as packed_heads() has them in the result of qkv; of t > kv_heads ranks each has
// one of these, as t / kv_heads others do (CopiedParts). The core knows where the tokens of a sequence are.
class STRETTO_API AttentionLayer {
 public:
  AttentionLayer(Parameters& parameters, const std::string& norm_name, const std::string& name, const DecoderShape& shape,
                 const TensorParallel& tensor_parallel, std::shared_ptr<const AttentionCore> core,
                 std::shared_ptr<const RotaryPositions> positions, const AdapterSet& adapters = {});
  struct Saved {
    Norm::Saved norm;
    Tensor normed;  // optional; what ColumnParallelLinear::forward leaves for backward
    QueryKeyNorm::Saved qk_norm;
    AttentionCore::Saved core;
    Tensor attended;
  };
  Tensor forward(const Tensor& x, const Tokens& tokens, Saved& saved, ParameterUse& use) const;
  // dx holds the gradient with respect to the result, and becomes that with respect to x.
  void backward(const Tensor& dx, const Tokens& tokens, const Saved& saved, ParameterUse& use,
                WeightGradients* later = nullptr) const;
  LayerCost cost(const CostedTokens& tokens) const;

 private:
  AttentionCore::Shape shape_of(const Tokens& tokens) const;
  void turn(const QueriesKeysValues& of, const Tokens& tokens, bool back) const;

  AttendingHeads heads_;  // of all tensor-parallel ranks
  std::int64_t local_heads_, local_kv_heads_;
  std::shared_ptr<const AttentionCore> core_;
  std::shared_ptr<const RotaryPositions> positions_;  // may be null
  Norm norm_;
  ColumnParallelLinear qkv_;
  std::optional<QueryKeyNorm> qk_norm_;
  RowParallelLinear projection_;
};

// x + proj(activation(fc(norm(x)))). An activation with a gate takes two products of mlp_width each, which fc makes as one.
class STRETTO_API MlpLayer {
 public:
  MlpLayer(Parameters& parameters, const std::string& norm_name, const std::string& name, const DecoderShape& shape,
           const TensorParallel& tensor_parallel, const AdapterSet& adapters = {});
  struct Saved {
    Norm::Saved norm;
    Tensor normed;  // optional
    Tensor before_activation;
    Tensor activated;  // optional
    Tensor draws;
  };
  // x: own rows of so many tokens. draws: Tokens::draws.
  Tensor forward(const Tensor& x, std::int64_t tokens, Saved& saved, ParameterUse& use, const Tensor& draws = {}) const;
  // Forward without the projection: only sets `saved`.
  void save(const Tensor& x, std::int64_t tokens, Saved& saved, ParameterUse& use, const Tensor& draws = {}) const;
  void backward(const Tensor& dx, const Saved& saved, ParameterUse& use, WeightGradients* later = nullptr) const;
  LayerCost cost(const CostedTokens& tokens) const;

 private:
  Tensor activated_again(const Tensor& before) const;

  kernels::Activation activation_;
  std::int64_t local_width_;
  Norm norm_;
  ColumnParallelLinear fc_;
  RowParallelLinear projection_;
};

class KeptTensor;
class TensorFile;

class STRETTO_API TransformerBlock {
 public:
  // positions: shared by blocks of one shape, so that there is one table; null: the block makes its own if the shape has
  // rotary positions. Parameters get GPT-2's names: the prefix "h.0." gives "h.0.ln_1.weight", "h.0.attn.c_attn.weight" and
  // so on. adapters: of its linear layers; those of q, k and v, and of a gate, are named "h.0.attn.c_attn.q", ".k", ".v",
  // "h.0.mlp.c_fc.gate" and ".up". inputs: the file of RecomputeOptions::directory, which blocks share; null: none.
  TransformerBlock(Parameters& parameters, const std::string& prefix, const DecoderShape& shape,
                   const TensorParallel& tensor_parallel, const RecomputeOptions& recompute = {},
                   std::shared_ptr<const AttentionCore> core = std::make_shared<LocalAttention>(),
                   std::shared_ptr<const RotaryPositions> positions = nullptr, const AdapterSet& adapters = {},
                   std::shared_ptr<TensorFile> inputs = nullptr);
  struct Saved {
    AttentionLayer::Saved attention;
    MlpLayer::Saved mlp;
    DividedTensor input;                        // with Recompute::full, instead of the others
    std::shared_ptr<KeptTensor> input_in_file;  // or this
    Tokens tokens;
  };
  Tensor forward(const Tensor& x, const Tokens& tokens, Saved& saved, ParameterUse& use) const;
  // Optional: starts to gather the kept input where it is divided, and to read it where it lies in a file. Call it a block
  // ahead of backward.
  void prefetch(Saved& saved) const;
  // dx holds the gradient with respect to the result, and becomes that with respect to x. Frees what was saved.
  void backward(const Tensor& dx, Saved& saved, ParameterUse& use, WeightGradients* later = nullptr) const;
  LayerCost cost(const CostedTokens& tokens) const;  // at tokens.level

 private:
  TensorParallel tensor_parallel_;
  RecomputeOptions recompute_;
  std::int64_t hidden_;
  AttentionLayer attention_;
  MlpLayer mlp_;
  std::shared_ptr<TensorFile> inputs_;  // may be null
};

}  // namespace stretto
