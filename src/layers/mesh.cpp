#include "stretto/layers/mesh.hpp"

#include "core/fail.hpp"

namespace stretto {

const char* name(Axis axis) { return axis == Axis::data ? "data" : "tensor"; }

Mesh Mesh::create(const Communicator& world, int data_size, int tensor_size) {
  require(data_size >= 1 && tensor_size >= 1 && data_size * tensor_size == world.size(),
          "Data-parallel size {} times tensor-parallel size {} is not the number of ranks, {}.", data_size, tensor_size,
          world.size());
  const int data_rank = world.rank() / tensor_size;
  const int tensor_rank = world.rank() % tensor_size;
  return {world, world.split(tensor_rank, data_rank, "dp"), world.split(data_rank, tensor_rank, "tp")};
}

}  // namespace stretto
