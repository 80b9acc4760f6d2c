#pragma once
#include <cstdint>
#include <string>

#include "stretto/program.hpp"

namespace stretto {

// The largest number of bytes that an executor's list holds at a time.
std::int64_t peak_of(const Program& program, const ProgramPlan& plan, int executor);
// "start_move of step 3 (move)".
std::string describe(const Program& program, const ProgramAction& action);

}  // namespace stretto
