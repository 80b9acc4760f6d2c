#pragma once
#include <cstdint>
#include <vector>

#include "planning/layout/layer_time.hpp"

namespace stretto {

// What a step takes for the state of a stage's parameters, beside forward and backward, in seconds.
struct StateTime {
  double exposed = 0;  // sums of gradients and gathered values that nothing hides
  double update = 0;   // the norm, and the optimizer
  double files = 0;    // what nothing hides of reads and writes, by file_seconds()
};

// An exchange that follows backward: elements of f32, of an all-gather those of all ranks.
struct ExchangedElements {
  Collective kind = Collective::all_reduce;
  std::int64_t elements = 0;
};
// Elements of a stage's parameters on a rank: of all, of those that are trained, and of a weight of its blocks.
struct StateElements {
  double all = 0, trained = 0, matrix = 0;
  std::vector<ExchangedElements> exchanged = {};  // instead of sums of gradients (exchanged_elements())
};
// What ranks exchange instead of sums of gradients: factors of PowerSGD once it has begun, the momentum of 1-bit Adam after
// it has frozen v, or the coefficients of DeMo; others' bits count as so many f32. Empty for sums. `parameters` has the
// records of a stage.
std::vector<ExchangedElements> exchanged_elements(const TrainingOptions& layout, const Parameters& parameters);

// `microbatch`: the stage's time of one microbatch, all its chunks, beside which sums and gathers run.
StateTime state_time(const TrainingOptions& layout, const StateElements& elements, const PartTime& microbatch,
                     const TrainingCluster& cluster, const TrainingSystem& system, CollectiveCosts& costs);

// The seconds by which an optimizer that updates matrices whole takes longer: the products of the rank with the most, and
// the exchange with owners. `parameters` has the records of a stage.
double matrix_seconds(const TrainingOptions& layout, const Parameters& parameters, const TrainingCluster& cluster,
                      CollectiveCosts& costs);

}  // namespace stretto
