#pragma once
#include "apps/train/measure/timing.hpp"
#include "stretto/layers/decoder_shape.hpp"

namespace apps {

// Measures the model's products as tensor parallelism cuts them, its attention and its other kernels, and writes the rates
// into the cluster. Collective.
void measure_computation(const Timing& timing, const stretto::DecoderShape& model, stretto::DType dtype,
                         stretto::TrainingCluster& cluster);

}  // namespace apps
