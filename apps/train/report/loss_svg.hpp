#pragma once
#include <string>
#include <vector>

#include "apps/train/report/curve.hpp"

namespace apps {

// A self-contained picture: training loss by step, its smoothed curve, and validation losses as dots. loss must not be
// empty.
std::string loss_svg(const std::vector<CurvePoint>& loss, const std::vector<CurvePoint>& validation);

}  // namespace apps
