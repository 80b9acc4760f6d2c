#pragma once
#include <vector>

#include "stretto/communicator.hpp"
#include "stretto/layers/parameter.hpp"

namespace stretto {

// Shared by the layers of a rank: its tensor-parallel group, and the stream on which the group communicates while the
// rank computes.
struct STRETTO_API TensorParallel {
  Communicator group = {};
  Stream stream = Stream::inline_();
  // Without a group: layers of the first of so many ranks. They have records of their parameters, for plans of memory and
  // traffic, but cannot communicate.
  int planned_ranks = 1;
  // Sequence parallelism (Korthikanti et al. 2022): where a tensor is not divided over features, heads or the vocabulary, a
  // rank holds its rows only, own_rows(). A column-parallel layer gathers them, and a row-parallel one sums into them.
  bool divides_rows = false;
  // With divides_rows: what a column-parallel layer has gathered in forward is kept for backward. Else backward gathers it
  // again, which sends 2 (t-1)/t tokens hidden elements more per block and microbatch, and two more where weights' gradients
  // are left for later.
  bool keeps_gathered = false;
  // Above 1: linear layers multiply by so many parts of their outputs, one after the other, each with a record of its own
  // (Parameter::tiles), so that no more of a weight than a tile must be there at a time (the memory-centric tiling of
  // ZeRO-Infinity; Rajbhandari et al. 2021). Gradients of inputs are sums over tiles, in the accumulator type. Costs a copy
  // of each result and of its gradient, and T messages for one. Without adapters, a tile's sum over the group hides behind
  // the next tile's product, and that of an input's gradient behind a tile's gradient of weights. Not with divides_rows.
  int tiles = 1;

  int size() const { return group ? group.size() : planned_ranks; }
  int rank() const { return group ? group.rank() : 0; }
  bool has_own_rows() const { return divides_rows && size() > 1; }

  // This rank's rows of a tensor that has so many: all, or its share. Shares differ by at most one row, and may be empty.
  Share own_rows(std::int64_t rows) const {
    return share_of(rows, has_own_rows() ? size() : 1, has_own_rows() ? rank() : 0);
  }
  std::vector<std::int64_t> rows_of_ranks(std::int64_t rows) const;  // the number of each rank's own rows
  Tensor own_rows(const Tensor& of_all) const;                       // a view
  // The axes over which ranks hold different rows where own_rows() are held. What computes from these alone declares them as
  // Parameter::sum_gradient_over.
  Axes row_axes() const { return divides_rows ? token_axes | Axis::tensor : token_axes; }

  // Allocates a tensor that will be sent or summed: in the symmetric heap if the group has several ranks.
  Tensor tensor_to_sum(Shape shape, DType dtype) const;
  // Sums a tensor over the group, in the calling thread (on a GPU, in computation()).
  void sum(const Tensor& tensor, const char* tag) const;
  // Starts such a sum on the stream. Wait for the Work before reading the tensor.
  [[nodiscard]] Work start_sum(const Tensor& tensor, const char* tag) const;
  // Like sum(), but returns own_rows() of the sum, in memory of their own if they are divided.
  Tensor sum_own_rows(const Tensor& tensor, const char* tag) const;
};

// A tensor of which each rank of a tensor-parallel group keeps a share of the rows only until the whole is needed.
class STRETTO_API DividedTensor {
 public:
  DividedTensor() = default;
  // Copies this rank's share of a tensor that all ranks hold. With a group of one rank, or if `divided` is false, keeps the
  // tensor itself.
  DividedTensor(const Tensor& whole, const TensorParallel& tensor_parallel, bool divided);
  // Keeps `share` itself, this rank's share of so many rows.
  static DividedTensor of_share(const Tensor& share, std::int64_t rows, const TensorParallel& tensor_parallel,
                                const char* tag);
  // Starts to gather the shares on the group's stream; does nothing if they are being gathered already, or for no tensor.
  void gather();
  // The tensor, gathered if gather() has not been called. Blocks until it is there; on a GPU, computation() waits.
  Tensor whole();

 private:
  TensorParallel tensor_parallel_;
  const char* tag_ = "block input";
  Shape shape_;
  Tensor share_;  // the tensor itself where it is not divided
  Tensor whole_;
  Work gathered_;
};

}  // namespace stretto
