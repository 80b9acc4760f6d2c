#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "stretto/planning/calibration.hpp"

namespace stretto {

// A measured call for which a table names a method.
struct TableCall {
  CallTimes times;
  std::optional<Method> settled;  // the only method that the table may name for this size
};

std::vector<TableCall> unsettled(const std::vector<CallTimes>& times);
std::map<Collective, std::vector<TableCall>> by_collective(const std::vector<TableCall>& all);

// Returns a method for each size: the sequence of methods with the least product of slowdowns against each size's fastest
// method, in which each change of method counts as a further slowdown of 5%.
std::vector<Method> steady_methods(const std::vector<CallTimes>& sizes);
// A method's seconds at a size between two measured ones, interpolated as a power of the bytes; infinite if the method was
// not timed at both.
double seconds_between(const CallTimes& here, const CallTimes& next, const Method& method, double bytes);
// The largest vector, in bytes, that a method takes.
std::int64_t capacity(const Method& method, const PlanRequest& request);

// "all_reduce:0-4096:packet,4096-inf:ring;...". reach: see measured_route().
std::string table(const std::vector<TableCall>& all, int reach);

}  // namespace stretto
