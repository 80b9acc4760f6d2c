#pragma once
#include <cstdint>
#include <vector>

#include "planning/layout/layer_time.hpp"

namespace stretto {

// The seconds that a step adds to forward and backward for the state of a stage's parameters.
struct StateTime {
  double exposed = 0;  // sums of gradients and gathers of values, where nothing hides them
  double update = 0;   // the norm, and the optimizer
  double files = 0;    // reads and writes, where nothing hides them (file_seconds())
};

// An exchange that follows backward. Elements are in f32; an all-gather counts those of all ranks.
struct ExchangedElements {
  Collective kind = Collective::all_reduce;
  std::int64_t elements = 0;
};
// The elements that a rank has of a stage's parameters: in all of them, in those that are trained, and in one weight of a
// block.
struct StateElements {
  double all = 0, trained = 0, matrix = 0;
  std::vector<ExchangedElements> exchanged = {};  // instead of sums of gradients (exchanged_elements())
};
// The exchanges that take the place of sums of gradients: of PowerSGD's factors once it has begun, of 1-bit Adam's momentum
// after it has frozen v, or of DeMo's coefficients. Data in other types count as the f32 of as many bytes. Where gradients
// are summed, the result is empty. `parameters` has the records of a stage.
std::vector<ExchangedElements> exchanged_elements(const TrainingOptions& layout, const Parameters& parameters);

// `microbatch` is the time of one microbatch in all chunks of the stage; sums and gathers run beside it.
StateTime state_time(const TrainingOptions& layout, const StateElements& elements, const PartTime& microbatch,
                     const TrainingCluster& cluster, const TrainingSystem& system, CollectiveCosts& costs);

// The seconds that an optimizer adds which updates whole matrices: the products of the rank that has most of them, and the
// exchange with the owners. `parameters` has the records of a stage.
double matrix_seconds(const TrainingOptions& layout, const Parameters& parameters, const TrainingCluster& cluster,
                      CollectiveCosts& costs);

}  // namespace stretto
