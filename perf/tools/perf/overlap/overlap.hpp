#pragma once

namespace perf {

// stretto-perf overlap: runs a training step of a case full, computation only, communication only and serial, and prints the
// exposed communication. argv begins after the program's name. Returns status 1 if overlap changes a bit.
int measure_overlap_case(int argc, char** argv);

}  // namespace perf
