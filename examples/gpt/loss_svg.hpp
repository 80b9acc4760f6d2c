#pragma once
#include <string>
#include <vector>

namespace gpt {

struct CurvePoint {
  double x, y;
};

// A self-contained picture: training loss by step, its smoothed course, and validation losses as dots.
std::string loss_svg(const std::vector<CurvePoint>& loss, const std::vector<CurvePoint>& validation);

}  // namespace gpt
