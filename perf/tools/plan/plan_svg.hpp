#pragma once
#include <string>
#include <vector>

#include "stretto/plan.hpp"

// A picture over time, with a row for each rank: of the steps of a collective, or of a pipeline's stages.
namespace plan_tool {

struct Look {
  std::string name;  // in the legend
  std::string color;
  int track = 0;  // tracks of a rank lie below each other
};
struct Bar {
  int rank, lane;
  std::size_t look;   // of Picture::looks
  std::string label;  // is left out where it does not fit
  double begin, end;  // in units of the picture
};
struct Picture {
  std::string title;
  std::string unit;           // of time: "round", "us" or "s"
  double pixels_a_unit = 60;  // across
  std::string row = "rank";   // the name of a row
  std::string remark;         // explains the labels
  int ranks = 1;
  std::vector<Look> looks;
  std::vector<Bar> bars;
};

// The looks of a collective's steps, by StepKind. A rank's sends (track 0), its receives (1) and its local work (2) lie
// below each other.
const std::vector<Look>& step_looks();
std::string svg_of(Picture picture);

}  // namespace plan_tool
