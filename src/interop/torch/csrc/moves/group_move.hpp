#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "stretto/move.hpp"
#include "torch_version.hpp"

namespace stretto_torch {

// A division as Python gives it: ranks, a dimension, and boxes (begin, end) of each rank where the dimension is `by_boxes`.
using Corners = std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>>;
using GivenDivision = std::tuple<std::vector<int>, int, std::vector<std::vector<Corners>>>;
constexpr int replicated = -1, by_boxes = -2;
// The shape of the whole, an example of the type, the divisions before and behind the move, and the format of messages.
using GivenTensor = std::tuple<std::vector<std::int64_t>, at::Tensor, GivenDivision, GivenDivision, std::string>;

// A move over the ranks of a group (stretto/move.hpp), whose nodes are given. The plan is made at once, the ranks compare it
// at the first run.
class GroupMove {
 public:
  GroupMove(int rank, const std::vector<int>& nodes, const std::vector<GivenTensor>& tensors,
            std::int64_t most_buffer_bytes);

  // The boxes that this rank has of a tensor, before the move or behind it.
  std::vector<Corners> boxes(std::size_t tensor, bool behind) const;
  const stretto::MovePlan& plan() const { return plan_; }
  std::int64_t bytes_sent() const { return plan_.bytes_out_of(rank_); }

  // Throws unless the tensors are this rank's parts. For a rank without elements of a tensor, an empty one.
  void check(const Tensors& inputs, const Tensors& outputs) const;
  void run(const stretto::Communicator& world, const stretto::Stream& stream, const Tensors& inputs, const Tensors& outputs);
  // The group has ended: a rank's last communicator must not stay alive in a move.
  void forget();

 private:
  int rank_;
  stretto::MovePlan plan_;
  std::mutex mutex_;  // of what follows; a run keeps its move until it ends
  bool forgotten_ = false;
  std::shared_ptr<const stretto::Move> move_;
};

}  // namespace stretto_torch
