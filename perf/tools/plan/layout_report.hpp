#pragma once
#include <string>

#include "common/output_file.hpp"
#include "stretto/planning/layout_search.hpp"

namespace plan_tool {

using namespace stretto;

// The command line of stretto-plan layout.
struct LayoutLine {
  LayoutSpace space;
  std::string model, cluster, system, json;  // as given
  std::string dtype = "bf16";
  std::size_t top = 10;
  bool assumes_overlaps = false;  // default_system() of GPUs
};

void print(const LayoutLine& line, const LayoutSearch& search, double seconds_searched);
std::string json_of(const LayoutLine& line, const LayoutSearch& search);

}  // namespace plan_tool
