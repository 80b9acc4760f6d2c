#pragma once
#include <string>
#include <vector>

#include "stretto/communicator.hpp"
#include "stretto/planning/layout_cost.hpp"

namespace apps {

// What LayoutCosts needs to know of the machine that the ranks run on.
struct Calibration {
  stretto::TrainingCluster cluster;
  stretto::TrainingSystem system;
};

// Measures the machine with all ranks at work, in a second or a few: the model's own products, as tensor parallelism cuts
// them, its attention and its other kernels, and all-reduces inside nodes and between them. All ranks return the same
// figures, those of the slowest. On hosts the links inside nodes are what exchanges in chunks leave exposed, since these
// take time of the cores. directories: of files with state; the slowest counts. Collective.
Calibration calibrate(const stretto::Communicator& world, const stretto::DecoderShape& model, stretto::DType dtype,
                      const std::vector<std::string>& directories);

}  // namespace apps
