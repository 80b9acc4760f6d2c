#pragma once

namespace perf {

// stretto-perf selection: compares the library's choice with the fastest fixed method, from 8 bytes on, as a table. Returns
// status 1 if any choice is slower than that by more than --tolerance.
int check_selection(int argc, char** argv);

}  // namespace perf
