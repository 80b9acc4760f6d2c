#pragma once
#include <array>
#include <compare>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>

#include "stretto/communicator.hpp"

namespace stretto {

// The axes along which training divides its work, from the one whose ranks lie closest to the one whose ranks lie farthest
// apart.
enum class Axis : std::uint8_t {
  tensor,    // ranks hold parts of each layer and see the same tokens
  ulysses,   // ranks hold parts of each sequence, and exchange them for attention heads
  ring,      // ranks hold parts of each sequence, and pass keys and values around
  data,      // ranks hold the same parameters and see different sequences
  pipeline,  // ranks hold different layers
};
inline constexpr std::array<Axis, 5> all_axes = {Axis::tensor, Axis::ulysses, Axis::ring, Axis::data, Axis::pipeline};
STRETTO_API const char* name(Axis axis);        // "tensor"
STRETTO_API const char* short_name(Axis axis);  // "tp", "ulysses", "cp", "dp", "pp", as in Megatron-LM

// A set of axes.
class Axes {
 public:
  constexpr Axes() = default;
  constexpr Axes(Axis axis) : bits_(bit(axis)) {}  // NOLINT(google-explicit-constructor): an axis is a set of one
  constexpr Axes(std::initializer_list<Axis> axes) {
    for (const Axis axis : axes) bits_ |= bit(axis);
  }
  constexpr bool contains(Axis axis) const { return (bits_ & bit(axis)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  friend constexpr Axes operator|(Axes a, Axes b) { return Axes(static_cast<std::uint8_t>(a.bits_ | b.bits_)); }
  friend constexpr Axes operator-(Axes a, Axes b) { return Axes(static_cast<std::uint8_t>(a.bits_ & ~b.bits_)); }
  constexpr bool operator==(const Axes&) const = default;
  constexpr bool operator<(Axes other) const { return bits_ < other.bits_; }

 private:
  constexpr explicit Axes(std::uint8_t bits) : bits_(bits) {}
  static constexpr std::uint8_t bit(Axis axis) { return static_cast<std::uint8_t>(1U << static_cast<unsigned>(axis)); }
  std::uint8_t bits_ = 0;
};
STRETTO_API std::string to_string(Axes axes);   // "data x tensor", "no axis"
STRETTO_API std::string group_name(Axes axes);  // of Mesh::over in the ledger: "dp", "dp-tp", "alone"; as in Megatron-LM

// The axes whose ranks see different sequences. The sequences of a step are divided over them.
inline constexpr Axes sequence_axes = {Axis::data};
// The axes whose ranks see different tokens. A gradient that a layer computes from its tokens is summed over them.
inline constexpr Axes token_axes = sequence_axes | Axis::ulysses | Axis::ring;

// The number of ranks along each axis; 1 along those that are not named: MeshShape{{Axis::tensor, 2}, {Axis::data, 4}}.
class STRETTO_API MeshShape {
 public:
  constexpr MeshShape() { sizes_.fill(1); }
  constexpr MeshShape(std::initializer_list<std::pair<Axis, int>> sizes) : MeshShape() {
    for (const auto& [axis, size] : sizes) (*this)[axis] = size;
  }
  constexpr int& operator[](Axis axis) { return sizes_[static_cast<std::size_t>(axis)]; }
  constexpr int operator[](Axis axis) const { return sizes_[static_cast<std::size_t>(axis)]; }
  constexpr auto operator<=>(const MeshShape&) const = default;

  std::int64_t ranks() const;       // the product of the sizes
  int ranks_over(Axes axes) const;  // of the sizes of these axes
  // The place of a rank of the job along axes: rank = (((pipeline * data_size + data) * ring_size + ring) * ulysses_size
  // + ulysses) * tensor_size + tensor, and likewise of several axes alone.
  int place(int rank, Axes axes) const;
  Axes divided(Axes axes) const;        // the set without its axes of size 1
  int gradient_ranks(Axes axes) const;  // the size of Mesh::gradient_group(axes)
  // Throws Error(invalid_argument) unless all sizes are at least 1 and their product is the number of ranks.
  void check(int ranks) const;

 private:
  std::array<int, all_axes.size()> sizes_;
};

// The ranks of a job as a grid of five axes, with a group for each set of axes that somebody communicates over. The tensor
// axis is the fastest, since its ranks communicate most: its groups are runs of neighbouring ranks (Megatron-LM; Narayanan
// et al. 2021).
class STRETTO_API Mesh {
 public:
  // Collective. Makes the groups of each axis, of token_axes, of token_axes with the tensor axis, and that of the ends of a
  // pipeline. Throws like MeshShape::check.
  Mesh(const Communicator& world, const MeshShape& shape);

  const Communicator& world() const { return world_; }
  const MeshShape& shape() const { return shape_; }
  int size(Axes axes) const { return shape_.ranks_over(axes); }
  int rank(Axes axes) const { return shape_.place(world_.rank(), axes); }  // this rank's place along the axes
  // The ranks that differ from this rank in their places along these axes only, in the order of the job's ranks. Axes of
  // size 1 may be added to or left out of the set. Throws Error(invalid_argument) for a set that the constructor made no
  // group for.
  const Communicator& over(Axes axes) const;
  Axes divided(Axes axes) const { return shape_.divided(axes); }
  // The group over which a gradient is summed. If `axes` contains the pipeline axis, these are the ranks along the other
  // axes on the first and the last stage only: the two may share a parameter, such as a tied table. Throws like over(), and
  // on other stages.
  const Communicator& gradient_group(Axes axes) const;

 private:
  Communicator world_;
  MeshShape shape_;
  std::map<Axes, Communicator> groups_;
  Communicator ends_;  // token_axes on the first and the last stage
};

}  // namespace stretto
