#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "stretto/plan.hpp"

// What ranks give to a collective and must get from it, of whole numbers.
namespace stretto::nccl_door {

struct Problem {
  Collective collective = Collective::all_reduce;
  int size = 1;
  std::size_t count = 0;
  int root = 0;
  int seed = 0;
  std::vector<int> factors = {};  // of each rank, where the sum has such

  std::size_t ranks() const { return static_cast<std::size_t>(size); }
  bool has_input(int rank) const {
    return rank == root || (collective != Collective::broadcast && collective != Collective::scatter);
  }
  bool has_output(int rank) const {
    return rank == root || (collective != Collective::reduce && collective != Collective::gather);
  }
  std::size_t inputs() const {
    const bool shares = collective == Collective::reduce_scatter || collective == Collective::all_to_all ||
                        collective == Collective::scatter;
    return shares ? count * ranks() : count;
  }
  std::size_t outputs() const {
    const bool shares =
        collective == Collective::all_gather || collective == Collective::all_to_all || collective == Collective::gather;
    return shares ? count * ranks() : count;
  }

  float input(int rank, std::size_t i) const {
    return static_cast<float>((static_cast<std::size_t>(rank) * 31 + i * 7 + static_cast<std::size_t>(seed) * 13) % 101);
  }
  float sum(std::size_t i) const {
    float sum = 0;
    for (int rank = 0; rank < size; ++rank) {
      sum += input(rank, i) * static_cast<float>(factors.empty() ? 1 : factors[static_cast<std::size_t>(rank)]);
    }
    return sum;
  }
  float output(int rank, std::size_t i) const {
    const int other = count == 0 ? 0 : static_cast<int>(i / count);
    const std::size_t place = count == 0 ? 0 : i % count;
    const std::size_t own = static_cast<std::size_t>(rank) * count;
    switch (collective) {
      case Collective::all_reduce:
      case Collective::reduce: return sum(i);
      case Collective::reduce_scatter: return sum(own + i);
      case Collective::all_gather:
      case Collective::gather: return input(other, place);
      case Collective::all_to_all: return input(other, own + place);
      case Collective::broadcast: return input(root, i);
      case Collective::scatter: return input(root, own + i);
      default: return -1;
    }
  }
};

}  // namespace stretto::nccl_door
