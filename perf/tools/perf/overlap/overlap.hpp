#pragma once

namespace perf {

// stretto-perf overlap: runs a training step of a case full, computation only, communication only and serial, and prints
// what of communication is left exposed. argv begins behind the program's name. Exits 1 where overlap changes a bit.
int measure_overlap_case(int argc, char** argv);

}  // namespace perf
