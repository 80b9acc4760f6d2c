#pragma once
#include <functional>
#include <vector>

#include "layers/optimizer/matrices/hidden_matrices.hpp"
#include "stretto/layers/sharded_parameters.hpp"

namespace stretto {

// Whether owners bring updates to all ranks by one all-gather, while units are whole (UnitTraffic::set_whole): each rank of
// the pipeline stage then updates all elements.
bool gathers_updates(const MeshShape& mesh, const ShardedParameters::Options& options);

// Brings the pieces of hidden matrices that the ranks of a pipeline stage hold to the matrices' owners, and what these make
// of them to all ranks that update the elements, by an all_to_all_v each way a step, whatever the number of matrices. ZeRO's
// shares and tensor-parallel slices may cut a matrix anywhere. Where gathers_updates() says so, an all_gather_v brings the
// updates.
class MatrixExchange {
 public:
  // Elements of one of this rank's ranges that are of one matrix.
  struct Chunk {
    std::size_t range = 0, matrix = 0;
    std::int64_t first = 0, count = 0;  // elements of the range
    std::int64_t at = 0;                // in the buffer of this rank's elements
  };

  // Collective over the ranks of the pipeline stage, which learn each other's ranges. `parameters` must outlive the object.
  explicit MatrixExchange(const ShardedParameters& parameters);

  const std::vector<HiddenMatrix>& matrices() const { return matrices_; }
  // Makes the plan anew if units are updated otherwise than before (UnitTraffic::set_whole). On all ranks of the stage.
  void adapt();
  // What this rank must hand in, each element of a matrix on one rank; and what it gets.
  const std::vector<Chunk>& contributed() const { return in_.chunks; }
  const std::vector<Chunk>& updated() const { return out_.chunks; }
  std::int64_t contributed_elements() const { return in_.mine; }

  // Takes the contributed elements, of f32 or f64, and calls `update` for each matrix that this rank owns; it may overwrite
  // the matrix that it gets, and returns one of the same shape. Returns the elements that this rank updates. Collective over
  // the ranks of the stage.
  using Update = std::function<Tensor(std::size_t matrix, const Tensor& values)>;
  Tensor run(Tensor contributed, const Update& update) const;

 private:
  // A range of any rank, as that rank has described it.
  struct Described {
    std::size_t parameter = 0, unit = 0;
    std::int64_t first = 0, count = 0;
    bool in_share = true, owned = false;
    Shape slice_first, extents;
  };
  // A block of a matrix, and where it lies in the buffer of the owner, row by row.
  struct Strip {
    std::int64_t at = 0, row = 0, column = 0, rows = 0, columns = 0;
  };
  // One direction, between ranks with pieces and owners.
  struct Way {
    std::vector<Chunk> chunks;               // this rank's pieces
    std::vector<std::int64_t> of_owners;     // their elements, by owner
    std::vector<std::vector<Strip>> strips;  // the pieces of matrices that this rank owns, by matrix
    std::vector<std::int64_t> of_ranks;      // their elements, by rank
    std::int64_t mine = 0, owned = 0;        // elements of this rank's pieces, and of those of its matrices
  };
  void describe();
  // one_for_all: all ranks have all elements, and an owner has one block for all of them.
  Way planned(const std::function<bool(const Described&)>& takes_part, bool one_for_all = false) const;

  const ShardedParameters& parameters_;
  Communicator group_;
  std::vector<HiddenMatrix> matrices_;
  std::vector<int> owners_;                           // by matrix
  std::vector<std::vector<std::size_t>> of_;          // matrices_ by parameter
  std::vector<std::vector<Described>> descriptions_;  // by rank
  std::vector<bool> whole_;                           // by unit, as the plan has it
  bool all_update_all_ = false;                       // each rank of the stage, all elements
  Way in_, out_;
};

}  // namespace stretto
