#pragma once

namespace perf {

// stretto-perf calibrate: times the methods of all collectives on this machine, fits alpha, overhead, beta and gamma to the
// cost formulas, and writes the tuning file that STRETTO_TUNING names.
int calibrate(int argc, char** argv);

}  // namespace perf
