#pragma once
#include <string>
#include <vector>

#include "stretto/plan.hpp"

// A picture of a collective: ranks down, time across.
namespace plan_tool {

struct Bar {
  int rank, lane;
  stretto::StepKind kind;
  int peer;           // -1 for local work
  double begin, end;  // in units of the picture
};
struct Picture {
  std::string title;
  std::string unit;           // of time: "round" or "us"
  double pixels_a_unit = 60;  // across
  int ranks = 1;
  std::vector<Bar> bars;
};

// What a rank sends (0), what it receives (1) and what it does by itself (2) lie below each other.
int track_of(stretto::StepKind kind);
std::string svg_of(Picture picture);

}  // namespace plan_tool
