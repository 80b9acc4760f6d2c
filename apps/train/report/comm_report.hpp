#pragma once
#include <string>

#include "stretto/overlap/rehearsal.hpp"

namespace apps {

// The lines that --comm-report prints.
std::string comm_report(const stretto::OverlapTimes& times);
// Writes the same figures into comm_report.json in that directory.
void write_comm_report(const stretto::OverlapTimes& times, const std::string& log_directory);

}  // namespace apps
