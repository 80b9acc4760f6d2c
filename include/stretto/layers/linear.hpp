#pragma once
#include "stretto/layers/parameter.hpp"

// Linear layers divided over a tensor-parallel group (Megatron-LM; Shoeybi et al. 2019). x: [tokens, in]; y = x W^T + b:
// [tokens, out]. A column-parallel layer followed by a row-parallel one needs one all-reduce of [tokens, hidden] forward and
// one backward: together with the other such pair of a transformer block 8 tokens hidden (t-1)/t elements are sent per rank,
// layer and microbatch.
namespace stretto {

// What the layers of a rank share: its tensor-parallel group, and the stream on which the group communicates beside
// computation.
struct STRETTO_API TensorParallel {
  Communicator group;
  Stream stream = Stream::inline_();

  // Memory for what will be summed: symmetric where there is anybody to sum with.
  Tensor tensor_to_sum(Shape shape, DType dtype) const;
  // Sums a tensor over the group, in the caller's thread.
  void sum(const Tensor& tensor, const char* tag) const;
  // The same on the stream: wait before reading the tensor.
  Work start_sum(const Tensor& tensor, const char* tag) const;
};

// Rank r holds a share of the outputs. The output features may consist of several parts of equal length (q, k and v), each
// of which is divided. Weight: global [parts, out / parts, in], bias [parts, out / parts]; without the first dimension where
// there is one part.
class STRETTO_API ColumnParallelLinear {
 public:
  ColumnParallelLinear(Parameters& parameters, const std::string& name, std::int64_t in, std::int64_t out, int parts,
                       Initial weight, const TensorParallel& tensor_parallel);

  Tensor forward(const Tensor& x) const;  // [tokens, this rank's share of out]
  // gelu(forward(x)); before_gelu becomes what forward would return, for backward.
  Tensor forward_gelu(const Tensor& x, Tensor& before_gelu) const;
  // dx = dy W: this rank's part of a sum over the group, which the caller starts.
  Tensor backward_input(const Tensor& dy) const;
  void backward_weight(const Tensor& x, const Tensor& dy) const;
  std::vector<Parameter*> parameters() const { return {weight_, bias_}; }

 private:
  TensorParallel tensor_parallel_;
  Parameter* weight_;
  Parameter* bias_;
};

// Rank r holds a share of the inputs. Weight: global [out, in]; bias [out] is added once, after the sum.
class STRETTO_API RowParallelLinear {
 public:
  RowParallelLinear(Parameters& parameters, const std::string& name, std::int64_t in, std::int64_t out, Initial weight,
                    const TensorParallel& tensor_parallel);

  // x: [tokens, this rank's share of in]; residual: [tokens, out], which the result is added to. It is complete on every
  // rank. Where it pays, rows are summed on the stream while others are computed (gemm_all_reduce).
  Tensor forward(const Tensor& x, const Tensor& residual) const;
  // dy is the same on every rank; the result is this rank's share of dx, complete.
  Tensor backward_input(const Tensor& dy) const;
  // Of an x that was gelu(before_gelu): with respect to that.
  Tensor backward_input_gelu(const Tensor& dy, const Tensor& before_gelu) const;
  void backward_weight(const Tensor& x, const Tensor& dy) const;
  std::vector<Parameter*> parameters() const { return {weight_, bias_}; }

 private:
  TensorParallel tensor_parallel_;
  Parameter* weight_;
  Parameter* bias_;
};

}  // namespace stretto
