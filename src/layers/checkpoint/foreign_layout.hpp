#pragma once
#include <cstddef>
#include <vector>

#include "stretto/layers/weight_file.hpp"

namespace stretto {

// The places of the elements of a parameter in tensors of files.
class ForeignLayout {
 public:
  // Throws Error(invalid_argument) unless the rows make the parameter.
  ForeignLayout(const Parameter& parameter, std::vector<ForeignRows> blocks);

  const std::vector<ForeignTensor>& tensors() const { return tensors_; }  // each once, in the order of the blocks

  // Elements that follow each other both in the parameter and in the matrix that a tensor is; within one row of it if it is
  // transposed.
  struct Run {
    std::size_t tensor;  // in tensors()
    std::int64_t element;
    std::int64_t to, count;
  };
  // Appends the runs of `count` elements of the parameter from `first` on. Run::to counts from `to` on.
  void append_runs(std::int64_t first, std::int64_t count, std::int64_t to, std::vector<Run>& runs) const;

  // Throws Error(invalid_argument) unless the parameter has each row of each tensor once.
  void require_whole_tensors() const;

 private:
  std::string name_;
  std::vector<ForeignRows> blocks_;
  std::vector<std::int64_t> begins_;    // the parameter's row at which each block begins
  std::vector<std::size_t> tensor_of_;  // of each block
  std::vector<ForeignTensor> tensors_;
  std::int64_t columns_ = 0;
};

}  // namespace stretto
