#pragma once
#include <string>

#include "plan/layout_report.hpp"

namespace plan_tool {

// The flags of stretto-train that train this model in this layout. With --train-data, and as many ranks as were planned for,
// the command is complete.
std::string train_flags(const LayoutLine& line, const TrainingOptions& layout);

}  // namespace plan_tool
