#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "stretto/layers/optimizer.hpp"
#include "stretto/layers/weight_source.hpp"

// The weights of a model in files of other tools: under other names, and in other layouts than those of checkpoints
// (checkpoint.hpp).
namespace stretto {

// A tensor of a file, seen as a matrix. Its first dimension are the rows, and all others the columns, so that a vector has
// one column. A transposed tensor is the other way round: e.g. [in, out] has `out` rows.
struct STRETTO_API ForeignTensor {
  std::string name;
  Shape shape;  // in the file
  bool transposed = false;
  std::int64_t rows() const;
  std::int64_t columns() const;
  bool operator==(const ForeignTensor&) const = default;
};

// How the rows of a block follow each other. `interleaved`: those of a head whose rotary pairs are neighbours in the file,
// 2i and 2i + 1, and i and i + rows/2 in the parameter.
enum class RowOrder : std::uint8_t { same, interleaved };

// `count` rows of a tensor from `first` on.
struct ForeignRows {
  ForeignTensor tensor;
  std::int64_t first = 0, count = 0;
  RowOrder order = RowOrder::same;
};

// A parameter is made of blocks of rows: their elements, one row behind the other, are those of the parameter. All its
// blocks have equally many columns. Examples:
//
//   [3, 8, 8] of [q/k/v, out, in]    from q, k and v [8, 8]:  {{q, 0, 8}, {k, 0, 8}, {v, 0, 8}}
//   [3, 8] of their biases           from three vectors [8]:  the same
//   [3, 8, 8]                        from one [in, out], [8, 24], as GPT-2's:  {{{name, {8, 24}, true}, 0, 24}}
//
// A parameter without rows is not in the file: it is not written, and keeps its values.
using ForeignRowsOf = std::function<std::vector<ForeignRows>(const Parameter&)>;

// The first rows of a tensor, as many as make the parameter.
STRETTO_API std::vector<ForeignRows> first_rows(const Parameter& parameter, const ForeignTensor& tensor);

// The whole values of a parameter, in host memory, valid on rank 0. Collective.
using WholeOf = std::function<Tensor(const Parameter&)>;
// Changes the whole values of a parameter on rank 0 before they are written, in place. Called on all ranks, of which each
// must call gather() alike.
using EditWhole = std::function<void(const Parameter&, const Tensor& whole, const WholeOf& gather)>;

// Collective over the mesh's world, between two steps. Rank 0 writes the file in the safetensors format, in F32, from master
// weights; if it cannot, it throws Error(io), and the others wait until it ends the job. Costs as save_checkpoint(), without
// the slots. Throws Error(invalid_argument) on all ranks unless each tensor consists of rows of one parameter, each once.
STRETTO_API void write_weights(const ShardedParameters& parameters, const Optimizer& optimizer, const std::string& path,
                               const ForeignRowsOf& foreign, const std::map<std::string, std::string>& metadata,
                               const EditWhole& edit = {});

// Reads what this rank updates, and of a transposed tensor what lies between, into the optimizer's states, in pieces whose
// memory does not grow with the model. Not collective; afterwards all ranks must call optimizer.restore(0), which brings the
// values to every rank. Throws Error(io) for a tensor that is missing or holds NaN or an infinity, and
// Error(invalid_argument) for one of another shape and for rows that do not make the parameter; the states are then
// unspecified.
STRETTO_API void read_weights(const ShardedParameters& parameters, Optimizer& optimizer, const WeightSource& source,
                              const ForeignRowsOf& foreign);

}  // namespace stretto
