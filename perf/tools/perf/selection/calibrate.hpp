#pragma once

namespace perf {

// stretto-perf calibrate: times the methods of all collectives on this machine, fits alpha, overhead, beta and gamma to the
// cost formulas, and writes the tuning file that STRETTO_TUNING names; or measures as a job does at its first start.
int calibrate(int argc, char** argv);

}  // namespace perf
