#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stretto/communicator.hpp"
#include "stretto/dtype.hpp"
#include "stretto/export.hpp"
#include "stretto/quantization.hpp"
#include "stretto/shape.hpp"
#include "stretto/stream.hpp"
#include "stretto/tensor.hpp"

// A move brings tensors that lie divided over some ranks to other ranks, divided otherwise: trained weights to ranks that
// generate, a ZeRO-3 layout to a tensor-parallel one, the input of a function to the group that runs it. Source and target
// groups may be disjoint, overlap or be the same. PyTorch calls this redistribute(), JAX resharding.
//
//   const std::vector<MovedTensor> tensors = {{DType::bf16, {4096, 1024}, Division::along(0, {4096, 1024}, {0, 1, 2, 3}),
//                                              Division::along(1, {4096, 1024}, {4, 5})}};
//   Move move(world, plan_move(tensors, world.size(), world.nodes()));
//   move.start({mine}, {theirs}, stream).wait();
//
// A plan of a move is data, made by a pure function, and the same on all ranks. Each element that a target rank lacks
// arrives there exactly once. An element that several targets lack leaves the source group once: the targets get a part
// each, and exchange the parts among each other. Where several ranks have copies, they share the sending, those on the
// target's node first.
//
// Quantized moves send records (quantization.hpp) of the elements of each message in place of the elements. Each element is
// quantized once: a rank that passes blocks on keeps their records until then, and sends these. Ranks that are to have the
// same box thus get the same bits of what they lack, by whatever way it comes. Elements that a rank has already stay exact.
namespace stretto {

// The elements of a tensor from `begin` up to, without, `end` in every dimension.
struct STRETTO_API Box {
  Shape begin, end;

  std::int64_t elements() const;  // 0 if any dimension is empty
  bool operator==(const Box&) const = default;
};

// The boxes of consecutive elements [first, last) of a box, counted in row-major order, such as a rank's ZeRO share of a
// tensor-parallel slice. Their elements, box after box, are in that order.
STRETTO_API std::vector<Box> flat_range(const Box& box, std::int64_t first, std::int64_t last);

// How a tensor lies over ranks of a communicator.
struct STRETTO_API Division {
  std::vector<int> ranks;               // each at most once, in any order
  std::vector<std::vector<Box>> boxes;  // of ranks[i]: its memory holds them one after the other, each in row-major order

  static Division replicated(const Shape& shape, std::vector<int> ranks);
  // ranks[i] has the i-th of balanced parts: their sizes differ by at most one, and the larger parts come first.
  static Division along(std::size_t dimension, const Shape& shape, std::vector<int> ranks);

  std::int64_t elements(int rank) const;  // 0 for a rank that is not in `ranks`
};

struct MovedTensor {
  DType dtype = DType::f32;
  Shape shape;
  Division from, to;
  // The format of messages, for f32, bf16 and f16 only. A block whose records would take more bytes than its elements
  // travels as it is.
  QuantizedFormat format = QuantizedFormat::none;
};

// One message, or a copy within a rank if source == target.
struct MoveBlock {
  int tensor = 0;
  Box box;
  int source = 0, target = 0;
  bool from_target = false;  // read from the source rank's part of the new division, which an earlier phase has written

  bool operator==(const MoveBlock&) const = default;
};

struct STRETTO_API MovePlan {
  int ranks = 0;
  std::vector<MovedTensor> tensors;
  std::vector<std::vector<MoveBlock>> phases;  // one exchange among all ranks each

  bool is_quantized(const MoveBlock& block) const;
  std::int64_t bytes(const MoveBlock& block) const;  // of its message; for a copy within a rank, of its elements
  // Bytes of messages, without copies within ranks.
  std::int64_t bytes_out_of(int rank) const;
  std::int64_t bytes_into(int rank) const;
  std::int64_t bytes_between_nodes(const std::vector<int>& nodes) const;
  // That start() takes, at most: for the messages of one phase, and for the records that a rank keeps until it has passed
  // them on. For a quantized block it takes the bytes of its elements besides, of one block at a time.
  std::int64_t buffer_bytes(int rank) const;
  std::string to_string() const;  // one line per block
};

// Plans the move among the ranks 0 to ranks - 1. `nodes` has the node of each rank; empty: all on one. If most_buffer_bytes
// is not 0, an exchange is cut into several so that no rank needs more than this for their messages: at least 64 KiB. Throws
// Error(invalid_argument) that names the tensor for boxes outside of its shape, ranks that don't exist or occur twice, and
// elements that no source has or a target has twice, and types that cannot be quantized. Cost: blocks are found in O(sources
// x targets) of each tensor.
STRETTO_API MovePlan plan_move(std::vector<MovedTensor> tensors, int ranks, const std::vector<int>& nodes = {},
                               std::int64_t most_buffer_bytes = 0);

// Proves a plan, whoever made it: each block reads what its source has by then, every element of every target is written
// exactly once, and a rank passes a quantized tensor on in the blocks in which it arrived. Returns the sentence that says
// what is wrong.
STRETTO_API std::optional<std::string> verify(const MovePlan& plan);

class STRETTO_API Move {
 public:
  // Collective over the communicator. All ranks must give equal plans; others are refused on all ranks.
  Move(Communicator ranks, MovePlan plan);
  ~Move();
  Move(Move&&) noexcept;

  // Collective. inputs[t] is this rank's part of tensor t by the old division, outputs[t] its part by the new one: host
  // memory of elements(rank()) elements of the tensor's type, in any shape; empty where the rank has none. Inputs and
  // outputs must not overlap. The stream keeps the tensors until the work is done. A Move may be started any number of
  // times, one after the other.
  Work start(const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs, const Stream& stream) const;

  const MovePlan& plan() const;

 private:
  struct STRETTO_HIDDEN State;
  std::shared_ptr<State> state_;
};

}  // namespace stretto
