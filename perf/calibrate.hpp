#pragma once

namespace perf {

// stretto-perf calibrate: times the methods of all collectives on this machine, fits alpha, overhead, beta and gamma to the
// cost formulas, and writes the tuning file that STRETTO_TUNING names.
int calibrate(int argc, char** argv);

// stretto-perf selection: what the library chooses beside the fastest fixed method, from 8 bytes on, as a table. Exit status
// 1 if any choice is slower than that by more than --tolerance.
int check_selection(int argc, char** argv);

}  // namespace perf
