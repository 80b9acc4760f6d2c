#pragma once
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "stretto/layers/mesh.hpp"
#include "stretto/stored_format.hpp"
#include "stretto/tensor.hpp"

namespace stretto {

// Share i of `count` rows or columns that are cut into `parts` shares: [first, first + count). Sizes differ by at most
// one.
struct Share {
  std::int64_t first = 0, count = 0;
};
STRETTO_API Share share_of(std::int64_t count, int parts, int i);

// The initial values of a parameter. An element's value depends only on the seed, the parameter's name and the
// element's global index, not on how the parameter is divided over ranks.
struct Initial {
  double mean = 0;
  double deviation = 0;  // standard deviation of a normal distribution; 0: all elements are `mean`
  double reach = 0;      // if above 0: instead, a uniform distribution in [mean - reach, mean + reach)
};

// The record of one parameter: all that initialisation, the sums of gradients, the gradient's norm, the optimizer and
// checkpoints know of it.
struct STRETTO_API Parameter {
  std::string name = {};  // global: "h.0.attn.c_attn.weight"
  std::size_t index = 0;  // in Parameters::all(), which sets it
  // A record of a part of a parameter, whose slices are not boxes of the whole: `portion` are its indices along the first
  // dimension, and other records have the rest. Files know the parameter by this name, and by global_shape and `first` of
  // all of it. Empty: the record has the whole parameter.
  std::string part_of = {};
  Share portion = {};
  // With part_of: the record has a tile, one of so many equal parts of each rank's slice of the portion, of which other
  // records have the others. ShardedParameters keeps each tile in a unit of its own.
  int tiles = 1;
  Shape global_shape = {};
  Shape first = {};             // the global index of the first element of this rank's slice, in every dimension
  Shape extents = {};           // the shape of the slice, and of value and gradient
  Axes replicated_over = {};    // axes along which all ranks hold the same slice
  Axes sum_gradient_over = {};  // axes along which each rank computes only a part of the gradient
  // Token axes along which each rank computes the whole gradient although it sees other tokens. A parameter that is
  // replicated over a token axis must be in this set or in sum_gradient_over: left out of both, its copies drift apart.
  Axes whole_gradient_over = {};
  // The part of the model that uses it first: one of the consecutive parts that pipeline stages hold (layers/stages.hpp).
  int part = 0;
  bool is_here = true;  // this rank's stage holds it. If not, `extents` and `first` describe an empty slice
  Initial initial = {};
  bool decays = true;  // takes part in weight decay
  // The rows of each of the matrices, rows = outputs, that lie below each other in the whole parameter (or the portion),
  // [rows, columns] with its leading dimensions flattened: of a fused q, k, v three. They add up to all rows. Optimizers
  // that treat matrices as a whole (Muon) take these. Empty: not the weight of a hidden layer, but a table, a norm, a bias
  // or an adapter.
  std::vector<std::int64_t> matrices = {};
  // False: frozen. Set it before ShardedParameters is made. The parameter then has no gradient, which nobody computes, sums
  // or counts in the norm, and no state of an optimizer; its values are divided, gathered and saved as others are.
  bool trainable = true;
  // The format in which ShardedParameters::store() keeps a frozen parameter's values; plain: as they are. Set it where
  // `trainable` is set.
  StoredFormat stored = StoredFormat::plain;
  // It is of an adapter (layers/adapter.hpp), which files of a model need not have: it then begins with its initial values.
  bool is_adapter = false;
  // Its layer overwrites the gradient where it would add to zeros, which saves zeroing it. Whoever adds to the gradient of
  // such a parameter, a layer of one's own included, must call take_unset() before.
  bool overwrites_gradient = false;
  Tensor value = {};     // in the compute type
  Tensor gradient = {};  // in the compute type or its accumulator type; none if not trainable; what layers add stays until
                         // the next step or sum
  // With overwrites_gradient: whether `gradient` holds nothing, not even zeros. A flag of the unit that owns the gradient.
  std::shared_ptr<bool> unset = {};

  // If it returns true, the caller must overwrite all of the gradient; the next one adds. (A Graph repeats what was enqueued
  // while it was recorded, so it overwrites each time or never.)
  bool take_unset() { return unset && std::exchange(*unset, false); }
  std::int64_t elements() const;  // of this rank's slice
  // The elements of the whole parameter, or of the portion or tile that the record has, over all ranks.
  std::int64_t global_elements() const;
  std::int64_t first_global_element() const;  // of these, in the whole parameter
  const std::string& global_name() const { return part_of.empty() ? name : part_of; }

  // The properties that a layer gives a parameter beside its shape.
  struct Traits {
    Initial initial = {};
    bool decays = true;
    std::vector<std::int64_t> matrices = {};
    bool trainable = true;
    bool overwrites_gradient = false;
  };
  // The record of a parameter of which each tensor-parallel rank holds a share along one dimension: rank i of n the share
  // share_of(extent, n, i). Ranks along token_axes hold copies, and sum their gradients.
  static Parameter divided(std::string name, Shape global_shape, std::size_t dimension, int ranks, int rank,
                           const Traits& traits);
  // The record of a parameter of which every rank holds the whole. Where each rank computes its gradient from rows of its
  // own, sum_gradient_over is TensorParallel::row_axes().
  static Parameter whole(std::string name, Shape global_shape, Axes sum_gradient_over, const Traits& traits);
};

// Parameters that a layer uses together. Uses take a handle made when the layer is made, so that a use looks up and
// allocates nothing (layers/parameter_use.hpp).
struct UsedParameters {
  std::size_t index = 0;  // in Parameters::used()
  std::vector<Parameter*> parameters;
  // Whether a gradient must be computed for any of them.
  bool any_trainable() const;
};

// The parameters of a model on one rank. Layers add their parameters when they are built; then allocate() allocates all
// of them.
class STRETTO_API Parameters {
 public:
  // Takes a record without value and gradient. The reference stays valid for the life of this object. Throws
  // Error(invalid_argument) for a name that is taken, a shape without dimensions (a scalar has the shape {1}), a slice that
  // does not lie in the whole or the portion, and matrices that are not its rows. ShardedParameters compares the records
  // with the mesh.
  Parameter& add(Parameter parameter);
  // A handle for uses of some of these parameters. The reference stays valid for the life of this object. ShardedParameters
  // knows the handles that were made before it.
  const UsedParameters& used_together(std::vector<Parameter*> parameters);

  // The place of the parameters that are added from now on. A rank has the records of all parameters of the model, in the
  // same order as all other ranks, but slices and memory only of those that are here.
  struct Place {
    int part = 0;
    bool is_here = true;
    // Both the first and the last stage hold it, and each computes a part of its gradient: add() puts the pipeline axis into
    // replicated_over and sum_gradient_over.
    bool at_both_ends = false;
  };
  Parameters& place_next(const Place& place) {
    place_ = place;
    return *this;
  }

  const std::vector<std::unique_ptr<Parameter>>& all() const { return all_; }
  const std::vector<std::unique_ptr<const UsedParameters>>& used() const { return used_; }
  std::int64_t global_elements() const;  // of the whole model; each element counts once
  std::int64_t local_elements() const;

 private:
  std::vector<std::unique_ptr<Parameter>> all_;
  std::vector<std::unique_ptr<const UsedParameters>> used_;
  std::set<std::string> names_;
  Place place_;
};

// Writes the initial values of some elements of a parameter's slice: of `values.size()` from element `first` of the slice
// on.
STRETTO_API void set_initial_values(const Parameter& parameter, std::uint64_t seed, std::int64_t first,
                                    const Tensor& values);

// The random numbers that set_initial_values() uses at a global index. Use them wherever numbers must not depend on the
// layout, such as in drawing samples.
STRETTO_API double random_uniform(std::uint64_t seed, const std::string& stream, std::uint64_t index);  // in [0, 1)
STRETTO_API double random_normal(std::uint64_t seed, const std::string& stream, std::uint64_t index);

// Calls f(offset in the slice, offset in the whole, count) for each run of elements that is contiguous both in the
// slice and in the whole parameter.
template <class F>
void for_each_run(const Shape& global_shape, const Shape& first, const Shape& extents, F f) {
  std::int64_t total = 1;
  for (const std::int64_t extent : extents) total *= extent;
  if (total == 0) return;
  const std::size_t dimensions = global_shape.size();
  const std::int64_t run = extents.back();
  for (std::int64_t at = 0; at < total; at += run) {
    std::int64_t rest = at / run;
    std::int64_t whole = first.back();
    std::int64_t stride = global_shape.back();
    for (std::size_t d = dimensions - 1; d-- > 0;) {
      whole += (first[d] + rest % extents[d]) * stride;
      rest /= extents[d];
      stride *= global_shape[d];
    }
    f(at, whole, run);
  }
}

// Like the above, for `count` elements of the slice from its element `begin` on; the first argument of f counts from
// `begin`.
template <class F>
void for_each_run(const Shape& global_shape, const Shape& first, const Shape& extents, std::int64_t begin,
                  std::int64_t count, F f) {
  for_each_run(global_shape, first, extents, [&](std::int64_t at, std::int64_t whole, std::int64_t length) {
    const std::int64_t from = at > begin ? at : begin;
    const std::int64_t to = at + length < begin + count ? at + length : begin + count;
    if (from < to) f(from - begin, whole + from - at, to - from);
  });
}
template <class F>
void for_each_run(const Parameter& parameter, std::int64_t begin, std::int64_t count, F f) {
  for_each_run(parameter.global_shape, parameter.first, parameter.extents, begin, count, f);
}

}  // namespace stretto
