#include "loss_svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace gpt {
namespace {

constexpr double width = 860, height = 420, left = 60, right = 20, top = 40, bottom = 46;

struct Frame {
  double x_min, x_max, y_min, y_max;
  double x(double value) const { return left + (value - x_min) / (x_max - x_min) * (width - left - right); }
  double y(double value) const { return height - bottom - (value - y_min) / (y_max - y_min) * (height - top - bottom); }
};

// A step of 1, 2 or 5 times a power of ten that gives about as many ticks as wanted.
double tick_step(double span, int wanted) {
  const double rough = span / wanted;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10 * power;
}

std::string polyline(const std::vector<CurvePoint>& points, const Frame& frame, const char* style) {
  std::string path;
  for (const CurvePoint& point : points) path += fmt::format("{:.1f},{:.1f} ", frame.x(point.x), frame.y(point.y));
  return fmt::format("<polyline points=\"{}\" fill=\"none\" {}/>\n", path, style);
}

}  // namespace

std::string loss_svg(const std::vector<CurvePoint>& loss, const std::vector<CurvePoint>& validation) {
  Frame frame{loss.front().x, std::max(loss.back().x, loss.front().x + 1), loss.front().y, loss.front().y};
  for (const auto* points : {&loss, &validation}) {
    for (const CurvePoint& point : *points) {
      if (!std::isfinite(point.y)) continue;
      frame.y_min = std::min(frame.y_min, point.y);
      frame.y_max = std::max(frame.y_max, point.y);
    }
  }
  const double y_step = tick_step(std::max(1e-6, frame.y_max - frame.y_min), 6);
  frame.y_min = std::floor(frame.y_min / y_step) * y_step;
  frame.y_max = std::max(std::ceil(frame.y_max / y_step), frame.y_min / y_step + 1) * y_step;

  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
      "font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      width, height);
  svg += fmt::format("<text x=\"{}\" y=\"22\" font-size=\"15\">Loss, nats per token</text>\n", left);
  for (int i = 0; i <= std::lround((frame.y_max - frame.y_min) / y_step); ++i) {
    const double tick = frame.y_min + i * y_step;
    const double y = frame.y(tick);
    svg +=
        fmt::format("<line x1=\"{}\" y1=\"{:.1f}\" x2=\"{}\" y2=\"{:.1f}\" stroke=\"#e0e0e0\"/>", left, y, width - right, y);
    svg += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{:.4g}</text>\n", left - 8, y + 4, tick);
  }
  const double x_step = std::max(1.0, tick_step(frame.x_max - frame.x_min, 8));
  const double first_tick = std::ceil(frame.x_min / x_step) * x_step;
  for (int i = 0; first_tick + i * x_step <= frame.x_max; ++i) {
    const double tick = first_tick + i * x_step;
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{:.0f}</text>\n", frame.x(tick),
                       height - bottom + 18, tick);
  }
  svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">step</text>\n", (left + width - right) / 2, height - 8);

  std::vector<CurvePoint> smooth;
  smooth.reserve(loss.size());
  for (const CurvePoint& point : loss)
    smooth.push_back({point.x, smooth.empty() ? point.y : 0.95 * smooth.back().y + 0.05 * point.y});
  svg += polyline(loss, frame, "stroke=\"#9ecae1\" stroke-width=\"1\"");
  svg += polyline(smooth, frame, "stroke=\"#08519c\" stroke-width=\"2\"");
  for (const CurvePoint& point : validation) {
    svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"#d94801\"/>", frame.x(point.x), frame.y(point.y));
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" fill=\"#d94801\">{:.3f}</text>\n",
                       frame.x(point.x), frame.y(point.y) - 8, point.y);
  }
  svg += fmt::format(
      "<text x=\"{0}\" y=\"22\" text-anchor=\"end\"><tspan fill=\"#08519c\">training (smoothed)</tspan>  <tspan "
      "fill=\"#d94801\">"
      "validation</tspan></text>\n</svg>\n",
      width - right);
  return svg;
}

}  // namespace gpt
