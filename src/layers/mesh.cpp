#include "stretto/layers/mesh.hpp"

#include <algorithm>

#include "core/fail.hpp"

namespace stretto {

namespace {

struct AxisNames {
  const char *name, *short_name;
};
constexpr std::array<AxisNames, all_axes.size()> names = {
    {{"tensor", "tp"}, {"ulysses", "ulysses"}, {"ring", "cp"}, {"data", "dp"}, {"pipeline", "pp"}}};

const AxisNames& names_of(Axis axis) {
  const auto place = static_cast<std::size_t>(axis);
  require(place < names.size(), "There is no axis {}.", place);
  return names[place];
}

std::string joined(Axes axes, const char* (*name_of)(Axis), const char* between, const char* none) {
  std::string text;
  for (const Axis axis : all_axes) {
    if (axes.contains(axis)) text.insert(0, std::string(name_of(axis)) + (text.empty() ? "" : between));
  }
  return text.empty() ? none : text;
}

}  // namespace

const char* name(Axis axis) { return names_of(axis).name; }
const char* short_name(Axis axis) { return names_of(axis).short_name; }
std::string to_string(Axes axes) { return joined(axes, name, " x ", "no axis"); }
std::string group_name(Axes axes) { return joined(axes, short_name, "-", "alone"); }

std::int64_t MeshShape::ranks() const {
  std::int64_t product = 1;
  for (const int size : sizes_) product *= size;
  return product;
}

int MeshShape::ranks_over(Axes axes) const {
  int product = 1;
  for (const Axis axis : all_axes) product *= axes.contains(axis) ? (*this)[axis] : 1;
  return product;
}

int MeshShape::place(int rank, Axes axes) const {
  int place = 0, places = 1;  // along the axes so far
  for (const Axis axis : all_axes) {
    const int size = (*this)[axis];
    if (axes.contains(axis)) place += places * (rank % size), places *= size;
    rank /= size;
  }
  return place;
}

Axes MeshShape::divided(Axes axes) const {
  for (const Axis axis : all_axes) {
    if ((*this)[axis] == 1) axes = axes - axis;
  }
  return axes;
}

int MeshShape::gradient_ranks(Axes axes) const {
  const int ends = axes.contains(Axis::pipeline) ? std::min(2, (*this)[Axis::pipeline]) : 1;
  return ranks_over(axes - Axis::pipeline) * ends;
}

void MeshShape::check(int ranks) const {
  std::string sizes;
  for (const Axis axis : all_axes) {
    const int size = (*this)[axis];
    require(size >= 1, "A mesh cannot have {} ranks along the {} axis; give at least 1.", size, name(axis));
    sizes.insert(0, fmt::format("{} ({}){}", size, name(axis), sizes.empty() ? "" : " x "));
  }
  require(this->ranks() == ranks, "A mesh of {} ranks needs {} ranks, not {}.", sizes, this->ranks(), ranks);
}

Mesh::Mesh(const Communicator& world, const MeshShape& shape) : world_(world), shape_(shape) {
  shape.check(world.size());
  const auto make = [&](Axes axes) {
    const Axes wanted = divided(axes);
    if (groups_.count(wanted) != 0) return;
    int color = 0;  // the ranks of a group have the same places along all other axes
    for (const Axis axis : all_axes) {
      if (!wanted.contains(axis)) color = color * size(axis) + rank(axis);
    }
    groups_.emplace(wanted, world.split(color, world.rank(), group_name(wanted)));
  };
  for (const Axis axis : all_axes) make(axis);
  make(sequence_axes);
  make(token_axes);
  make(token_axes | Axis::tensor);
  if (size(Axis::pipeline) == 1) return;
  const int stage = rank(Axis::pipeline);
  const bool at_end = stage == 0 || stage + 1 == size(Axis::pipeline);
  ends_ = world.split(at_end ? rank(Axis::tensor) : -1, world.rank(), group_name(divided(token_axes | Axis::pipeline)));
}

const Communicator& Mesh::over(Axes axes) const {
  const auto found = groups_.find(divided(axes));
  require(found != groups_.end(), "A mesh has no group for the axes {}.", to_string(axes));
  return found->second;
}

const Communicator& Mesh::gradient_group(Axes axes) const {
  if (!divided(axes).contains(Axis::pipeline)) return over(axes);
  require(divided(axes) == divided(token_axes | Axis::pipeline), "A mesh has no group for gradients over the axes {}.",
          to_string(axes));
  require(bool(ends_), "Stage {} is neither the first nor the last of {}, and sums no gradients with other stages.",
          rank(Axis::pipeline), size(Axis::pipeline));
  return ends_;
}

}  // namespace stretto
