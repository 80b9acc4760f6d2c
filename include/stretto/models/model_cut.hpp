#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "stretto/layers/parameter.hpp"

namespace stretto {

// The consecutive parts of a model, and the pipeline stages that hold them.
struct STRETTO_API ModelCut {
  std::vector<std::int64_t> blocks;  // of each part; the first part also has the embeddings, the last part the head
  std::vector<int> stages;           // of each part
  int stage = 0;                     // this rank's. Its chunks are its parts, in their order
  static ModelCut whole(std::int64_t blocks) { return {{blocks}, {0}, 0}; }

  // Where the parameters of a part lie, and those of the tied table, which lies where the embeddings are and where the head
  // is.
  Parameters::Place place(std::size_t part) const;
  Parameters::Place place_of_tied_table() const;
};
// "stage 0: 2 + 1 layers, stage 1: 3 layers": of each stage's parts in their order.
STRETTO_API std::string to_string(const ModelCut& cut);

}  // namespace stretto
