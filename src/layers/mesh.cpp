#include "stretto/layers/mesh.hpp"

#include <algorithm>

#include "core/fail.hpp"

namespace stretto {

const char* name(Axis axis) {
  switch (axis) {
    case Axis::tensor: return "tensor";
    case Axis::ulysses: return "ulysses";
    case Axis::ring: return "ring";
    case Axis::data: return "data";
    case Axis::pipeline: return "pipeline";
  }
  fail(ErrorCode::invalid_argument, "There is no axis {}.", static_cast<int>(axis));
}

std::string to_string(Axes axes) {
  std::string text;
  for (const Axis axis : all_axes) {
    if (axes.contains(axis)) text.insert(0, std::string(name(axis)) + (text.empty() ? "" : " x "));
  }
  return text.empty() ? "no axis" : text;
}

std::string group_name(Axes axes) {
  std::string text;
  for (const auto& [axis, letters] : {std::pair{Axis::tensor, "tp"},
                                      {Axis::ulysses, "ulysses"},
                                      {Axis::ring, "cp"},
                                      {Axis::data, "dp"},
                                      {Axis::pipeline, "pp"}}) {
    if (axes.contains(axis)) text.insert(0, std::string(letters) + (text.empty() ? "" : "-"));
  }
  return text.empty() ? "alone" : text;
}

int MeshShape::size(Axis axis) const {
  switch (axis) {
    case Axis::tensor: return tensor;
    case Axis::ulysses: return ulysses;
    case Axis::ring: return ring;
    case Axis::data: return data;
    case Axis::pipeline: return pipeline;
  }
  fail(ErrorCode::invalid_argument, "There is no axis {}.", static_cast<int>(axis));
}

std::int64_t MeshShape::ranks() const {
  std::int64_t product = 1;
  for (const Axis axis : all_axes) product *= size(axis);
  return product;
}

int MeshShape::place(int rank, Axis axis) const {
  for (const Axis each : all_axes) {
    if (each == axis) break;
    rank /= size(each);
  }
  return rank % size(axis);
}

Axes MeshShape::divided(Axes axes) const {
  for (const Axis axis : all_axes) {
    if (size(axis) == 1) axes = axes - axis;
  }
  return axes;
}

int MeshShape::gradient_ranks(Axes axes) const {
  int ranks = 1;
  for (const Axis axis : all_axes) {
    if (axes.contains(axis)) ranks *= axis == Axis::pipeline ? std::min(2, size(axis)) : size(axis);
  }
  return ranks;
}

void MeshShape::check(int ranks) const {
  for (const Axis axis : all_axes) {
    require(size(axis) >= 1, "A mesh cannot have {} ranks along the {} axis; give at least 1.", size(axis), name(axis));
  }
  require(this->ranks() == ranks,
          "A mesh of {} (pipeline) x {} (data) x {} (ring) x {} (ulysses) x {} (tensor) ranks needs {} ranks, not {}.",
          pipeline, data, ring, ulysses, tensor, this->ranks(), ranks);
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
