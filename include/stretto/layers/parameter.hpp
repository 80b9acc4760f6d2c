#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "stretto/layers/mesh.hpp"
#include "stretto/tensor.hpp"

namespace stretto {

// How a parameter begins. Every element's value depends on the seed, the parameter's name and the element's global index
// only, never on how the parameter is divided among ranks.
struct Initial {
  double mean = 0;
  double deviation = 0;  // of a normal distribution; 0: a constant
};

// What is to be known of a parameter. Initialisation, gradient sums, the gradient's norm, the optimizer and checkpoints read
// it here instead of working it out again.
struct STRETTO_API Parameter {
  std::string name;  // global: "h.0.attn.c_attn.weight"
  Shape global_shape;
  Shape first;  // this rank's slice begins here in every dimension; its extents are value.shape()
  Shape extents;
  std::vector<Axis> replicated_over;    // along these axes every rank holds the same slice
  std::vector<Axis> sum_gradient_over;  // each rank along these axes has computed a part of the gradient only
  Initial initial;
  bool decays = true;  // takes part in weight decay
  Tensor value;        // in the compute type
  Tensor gradient;     // in the accumulator type; grows until zero_gradients()

  bool is_replicated_over(Axis axis) const;
};

// How rows or columns of a parameter are cut: part i of n begins at begin(count, i, n). Sizes differ by at most one.
struct Share {
  std::int64_t first, count;
};
STRETTO_API Share share_of(std::int64_t count, int parts, int i);

// The parameters of a model on one rank. Layers add theirs while they are built; then allocate() gives all of them memory.
class STRETTO_API Parameters {
 public:
  // The record is filled in but for value and gradient. The reference stays good for the life of this object.
  Parameter& add(Parameter parameter);

  // One block of memory for all values and one for all gradients (zeroed), both from the symmetric heap. In both they lie in
  // reverse order of add(), which is that in which backward finishes gradients when layers were built in the order of
  // forward: what is a run of gradients is a run of values. A fork()ed child that writes what it inherited writes its
  // parent's.
  void allocate(DType compute_type);
  void initialise(std::uint64_t seed);
  void zero_gradients();

  const std::vector<std::unique_ptr<Parameter>>& all() const { return all_; }
  std::size_t index_of(const Parameter& parameter) const;
  std::int64_t global_elements() const;  // of the whole model, each counted once
  std::int64_t local_elements() const;
  DType compute_type() const { return compute_type_; }

 private:
  std::vector<std::unique_ptr<Parameter>> all_;
  Tensor gradients_;
  DType compute_type_ = DType::f32;
};

// The number that initialise() puts at a global index: for other uses that must not depend on the layout, such as drawing
// samples.
STRETTO_API double random_uniform(std::uint64_t seed, const std::string& stream, std::uint64_t index);  // in [0, 1)
STRETTO_API double random_normal(std::uint64_t seed, const std::string& stream, std::uint64_t index);

// Visits the runs of a slice that are contiguous both in the slice and in the whole: f(offset in slice, offset in whole,
// count).
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

}  // namespace stretto
