#pragma once
#include <string>
#include <vector>

#include "stretto/layers/adapter.hpp"
#include "stretto/layers/weight_file.hpp"

namespace stretto {

// An adapter and the rows of a weight that it changes: row i of B belongs to row first_row + i of the weight, which files
// have as rows of one tensor.
struct PlacedAdapter {
  LinearModule module;
  double scale = 0;
  const Parameter* weight = nullptr;
  const Parameter* a = nullptr;
  const Parameter* b = nullptr;
  std::int64_t first_row = 0;
  std::vector<ForeignRows> rows;  // of the module's weight in a file, in the order of B's
};

// The trained adapters of a decoder of such a shape, or those of a name among AdapterOptions::others; these are the records.
std::vector<PlacedAdapter> placed_adapters(const Parameters& parameters, const AdapterOptions& options,
                                           const DecoderShape& shape, const std::string& name = {});

}  // namespace stretto
