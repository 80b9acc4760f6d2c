#include "apps/train/report/loss_svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "apps/common/tick_step.hpp"

namespace apps {
namespace {

constexpr double width = 860, height = 420, left = 60, right = 20, top = 40, bottom = 46;

constexpr const char* style = R"(<style>
text { font: 12px system-ui, sans-serif } .title { font-size: 15px } polyline { fill: none } .smooth { stroke-width: 2 }
.paper { fill: #fcfcfb } text { fill: #66645f } .grid { stroke: #dddbd5 } .loss { stroke: #9ec3ee }
.smooth { stroke: #2a78d6 } .key { fill: #2a78d6 } .pale { fill: #9ec3ee } .validation { fill: #d0501f }
@media (prefers-color-scheme: dark) {
  .paper { fill: #1a1a19 } text { fill: #a5a39c } .grid { stroke: #3a3936 } .loss { stroke: #28507d }
  .smooth { stroke: #5a9ff0 } .key { fill: #5a9ff0 } .pale { fill: #28507d } .validation { fill: #ee7a4a }
}
</style>
)";

// Maps the values of an axis to its pixels.
struct Axis {
  double first, last, first_pixel, last_pixel;
  double operator()(double value) const {
    return first_pixel + (value - first) / (last - first) * (last_pixel - first_pixel);
  }
};

std::string text(double x, double y, const char* anchor, const std::string& words, const char* look = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" class=\"{}\">{}</text>\n", x, y, anchor, look,
                     words);
}

std::string polyline(const std::vector<CurvePoint>& points, const Axis& x, const Axis& y, const char* look) {
  std::string path;
  for (const CurvePoint& point : points) path += fmt::format("{:.1f},{:.1f} ", x(point.x), y(point.y));
  return fmt::format("<polyline class=\"{}\" points=\"{}\"/>\n", look, path);
}

// The mean of about a fiftieth of the run around each point, of as many points before it as behind it: a mean of what came
// before alone would lie far above a loss that falls fast at the beginning.
std::vector<CurvePoint> smoothed(const std::vector<CurvePoint>& points) {
  std::vector<double> sums{0};  // of the points before
  for (const CurvePoint& point : points) sums.push_back(sums.back() + point.y);
  std::vector<CurvePoint> smooth;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const std::size_t around = std::min({points.size() / 100, i, points.size() - 1 - i});
    const double mean = (sums[i + around + 1] - sums[i - around]) / static_cast<double>(2 * around + 1);
    smooth.push_back({points[i].x, mean});
  }
  return smooth;
}

}  // namespace

std::string loss_svg(const std::vector<CurvePoint>& loss, const std::vector<CurvePoint>& validation) {
  double low = loss.front().y;
  double high = low;
  for (const auto* points : {&loss, &validation}) {
    for (const CurvePoint& point : *points) {
      if (!std::isfinite(point.y)) continue;
      low = std::min(low, point.y);
      high = std::max(high, point.y);
    }
  }
  // At least so much that a tick and the next one are different numbers.
  const double span = std::max({1e-6, high - low, 1e-9 * std::abs(low), 1e-9 * std::abs(high)});
  const double y_step = tick_step(span / 6);
  const double first = std::floor(low / y_step);
  const double ticks = std::max(std::ceil(high / y_step) - first, 1.0);
  const Axis x{loss.front().x, std::max(loss.back().x, loss.front().x + 1), left, width - right};
  const Axis y{first * y_step, (first + ticks) * y_step, height - bottom, top};

  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\">\n", width, height);
  svg += style;
  svg += "<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n";
  svg += text(left, 22, "start", "Loss, nats per token", "title");
  for (double i = first; i <= first + ticks; ++i) {
    svg += fmt::format("<line class=\"grid\" x1=\"{}\" y1=\"{:.1f}\" x2=\"{}\" y2=\"{:.1f}\"/>", left, y(i * y_step),
                       width - right, y(i * y_step));
    svg += text(left - 8, y(i * y_step) + 4, "end", fmt::format("{:.4g}", i * y_step));
  }
  const double x_step = std::max(1.0, tick_step((x.last - x.first) / 8));
  for (double tick = std::ceil(x.first / x_step) * x_step; tick <= x.last; tick += x_step) {
    svg += text(x(tick), height - bottom + 18, "middle", fmt::format("{:.0f}", tick));
  }
  svg += text((left + width - right) / 2, height - 8, "middle", "step");

  svg += polyline(loss, x, y, "loss");
  svg += polyline(smoothed(loss), x, y, "smooth");
  for (const CurvePoint& point : validation) {
    svg += fmt::format("<circle class=\"validation\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\"/>", x(point.x), y(point.y));
    svg += text(x(point.x), y(point.y) - 8, "middle", fmt::format("{:.3f}", point.y), "validation");
  }
  svg += text(width - right - 150, 22, "end", "training, each step", "pale");
  svg += text(width - right - 80, 22, "end", "smoothed", "key");
  svg += text(width - right, 22, "end", "validation", "validation");
  return svg + "</svg>\n";
}

}  // namespace apps
