#pragma once

namespace perf {

// stretto-perf selection: what the library chooses beside the fastest fixed method, from 8 bytes on, as a table. Exit status
// 1 if any choice is slower than that by more than --tolerance.
int check_selection(int argc, char** argv);

}  // namespace perf
