#pragma once
#include <cstdint>
#include <vector>

#include "stretto/layers/parameter.hpp"

namespace stretto {

// A matrix that Muon updates as a whole: some rows of a parameter (Parameter::matrices).
struct HiddenMatrix {
  std::size_t parameter = 0;  // in Parameters::all()
  std::int64_t first_row = 0, rows = 0, columns = 0;
  std::int64_t elements() const { return rows * columns; }
};

// Those that are trained and of this rank's pipeline stage; the same on all ranks of the stage.
std::vector<HiddenMatrix> hidden_matrices(const Parameters& parameters);

// The rank that updates each: the most expensive matrix first, each goes to the rank with the least to compute so far
// (Graham 1969). No rank then computes more than an equal part of the work and one matrix.
std::vector<int> owners_of(const std::vector<HiddenMatrix>& matrices, int ranks);

}  // namespace stretto
