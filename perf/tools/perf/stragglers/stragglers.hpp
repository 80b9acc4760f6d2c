#pragma once

namespace perf {

// stretto-perf stragglers: measures the cores, the memory and the links of all ranks, and names the outliers. argv begins
// after the program's name. Returns status 1 if there are any.
int find_stragglers(int argc, char** argv);

}  // namespace perf
