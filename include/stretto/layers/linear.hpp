#pragma once
#include "stretto/layers/parameter_use.hpp"

// Linear layers divided over a tensor-parallel group of t ranks (Megatron-LM; Shoeybi et al. 2019). y = x W^T + b, with
// x: [tokens, in] and y: [tokens, out]. A column-parallel layer followed by a row-parallel one needs one all-reduce of
// [tokens, hidden] in forward and one in backward. A transformer block has two such pairs, so a rank sends 8 tokens
// hidden (t-1)/t elements per block and microbatch.
namespace stretto {

// Shared by the layers of a rank: its tensor-parallel group, and the stream on which the group communicates while the
// rank computes.
struct STRETTO_API TensorParallel {
  Communicator group;
  Stream stream = Stream::inline_();
  // Without a group: layers of the first of so many ranks. They have records of their parameters, for plans of memory and
  // traffic, but cannot communicate.
  int planned_ranks = 1;

  int size() const { return group ? group.size() : planned_ranks; }
  int rank() const { return group ? group.rank() : 0; }

  // Allocates a tensor that will be summed: in the symmetric heap if the group has several ranks.
  Tensor tensor_to_sum(Shape shape, DType dtype) const;
  // Sums a tensor over the group, in the calling thread (on a GPU, in computation()).
  void sum(const Tensor& tensor, const char* tag) const;
  // Starts such a sum on the stream. Wait for the Work before reading the tensor.
  Work start_sum(const Tensor& tensor, const char* tag) const;
};

// Rank r holds a share of the outputs. The output features may consist of several parts of equal length (q, k and v);
// each part is divided over the ranks. Global shapes: weight [parts, out / parts, in], bias [parts, out / parts]. If
// there is one part, the first dimension is left out.
class STRETTO_API ColumnParallelLinear {
 public:
  ColumnParallelLinear(Parameters& parameters, const std::string& name, std::int64_t in, std::int64_t out, int parts,
                       Initial weight, const TensorParallel& tensor_parallel);

  Tensor forward(const Tensor& x, ParameterUse& use) const;  // [tokens, this rank's share of out]
  // Returns gelu(forward(x)), and sets before_gelu to forward(x), which backward needs.
  Tensor forward_gelu(const Tensor& x, Tensor& before_gelu, ParameterUse& use) const;
  // Returns dx = dy W, summed over the group: complete on every rank. The sum runs on the stream while the gradients of
  // weight and bias are computed.
  Tensor backward(const Tensor& x, const Tensor& dy, ParameterUse& use) const;

 private:
  TensorParallel tensor_parallel_;
  Parameter* weight_;
  Parameter* bias_;
};

// Rank r holds a share of the inputs. Global shapes: weight [out, in], bias [out]. The bias is added once, after the
// sum.
class STRETTO_API RowParallelLinear {
 public:
  RowParallelLinear(Parameters& parameters, const std::string& name, std::int64_t in, std::int64_t out, Initial weight,
                    const TensorParallel& tensor_parallel);

  // x: [tokens, this rank's share of in]; residual: [tokens, out], added to the result. The result is complete on every
  // rank. If it pays, some rows are summed on the stream while others are computed (gemm_all_reduce).
  Tensor forward(const Tensor& x, const Tensor& residual, ParameterUse& use) const;
  // dy must be the same on every rank. Returns this rank's share of dx; it needs no sum.
  Tensor backward(const Tensor& x, const Tensor& dy, ParameterUse& use) const;
  // Like backward, for an x that was gelu(before_gelu): returns the gradient with respect to before_gelu.
  Tensor backward_gelu(const Tensor& x, const Tensor& dy, const Tensor& before_gelu, ParameterUse& use) const;

 private:
  TensorParallel tensor_parallel_;
  Parameter* weight_;
  Parameter* bias_;
};

}  // namespace stretto
