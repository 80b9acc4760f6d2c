#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "stretto/calibration.hpp"

namespace stretto {

// A call that a table tells of.
struct TableCall {
  CallTimes times;
  std::optional<Method> settled;  // the only method that the table may name for so many bytes
};

std::vector<TableCall> unsettled(const std::vector<CallTimes>& times);
std::map<Collective, std::vector<TableCall>> by_collective(const std::vector<TableCall>& all);

// For each size, the method of the sequence with the least product of slowdowns, where a change of method counts as one.
std::vector<Method> steady_methods(const std::vector<CallTimes>& sizes);
// A method's seconds between two sizes, as a power of the bytes; infinite if it was not timed at both.
double seconds_between(const CallTimes& here, const CallTimes& next, const Method& method, double bytes);
// The largest vector, in bytes, that a method takes.
std::int64_t capacity(const Method& method, const PlanRequest& request);

// "all_reduce:0-4096:packet,4096-inf:ring;...". reach: see measured_route().
std::string table(const std::vector<TableCall>& all, int reach);

}  // namespace stretto
