#pragma once
#include "apps/train/measure/timing.hpp"
#include "stretto/layers/decoder_shape.hpp"

namespace apps {

// Measures what sums add to products, inside nodes and between them, as links of a cluster, and what of them is hidden. On
// hosts the links inside nodes are what exchanges in chunks leave exposed, since these take time of the cores. Collective.
void measure_links(const Timing& timing, const stretto::DecoderShape& model, stretto::DType dtype, stretto::LinkModel& links,
                   stretto::TrainingSystem& system);

}  // namespace apps
