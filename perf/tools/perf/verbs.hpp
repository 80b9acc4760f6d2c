#pragma once

// The verbs of stretto-perf that do not measure collectives. argv begins after the program's name; each returns the exit
// status.
namespace perf {

// calibrate: times the methods of all collectives on this machine, fits alpha, overhead, beta and gamma to the cost
// formulas, and writes the tuning file that STRETTO_TUNING names; or measures as a job does at its first start.
int calibrate(int argc, char** argv);

// selection: compares the library's choice with the fastest fixed method, from 8 bytes on, as a table. 1 if any choice is
// slower than that by more than --tolerance.
int check_selection(int argc, char** argv);

// stragglers: measures the cores, the memory and the links of all ranks, and names the outliers. 1 if there are any.
int find_stragglers(int argc, char** argv);

// overlap: runs a training step of a case full, computation only, communication only and serial, and prints the exposed
// communication. 1 if overlap changes a bit.
int measure_overlap_case(int argc, char** argv);

}  // namespace perf
