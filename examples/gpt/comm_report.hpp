#pragma once
#include <string>

#include "stretto/overlap/rehearsal.hpp"

namespace gpt {

// What --comm-report says: a few lines.
std::string comm_report(const stretto::OverlapTimes& times);
// The same figures, as comm_report.json in that directory.
void write_comm_report(const stretto::OverlapTimes& times, const std::string& log_directory);

}  // namespace gpt
