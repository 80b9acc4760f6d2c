#include "plan/plan_svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "apps/common/tick_step.hpp"

namespace plan_tool {
namespace {

constexpr double left = 70, right = 32, bottom = 44, bar_height = 14, gap = 12;
constexpr double margin = 12, font_size = 12, title_size = 15, legend_top = 32, legend_row = 18;

// The width of a text in pixels. Viewers choose the font, so this is the width in a wide one (DejaVu Sans).
double text_width(const std::string& text, double size) { return 0.63 * size * static_cast<double>(text.size()); }

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) safe += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  return safe;
}

class Drawing {
 public:
  explicit Drawing(const Picture& picture) : picture_(picture) {
    for (const Bar& bar : picture.bars) {
      lanes_ = std::max(lanes_, bar.lane + 1);
      tracks_ = std::max(tracks_, look_of(bar).track + 1);
      end_ = std::max(end_, bar.end);
    }
    row_ = lanes_ * tracks_ * bar_height + gap;
    width_ =
        std::max({520.0, left + right + end_ * picture.pixels_a_unit, 2 * margin + text_width(picture.title, title_size)});
    lay_out_legend();
    top_ = legend_top + legend_row * (legend_.back().row + 1) + 14;
    height_ = top_ + bottom + picture.ranks * row_;
  }

  std::string draw() {
    svg_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
        "font-family=\"sans-serif\" font-size=\"{2}\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        "<text x=\"{3}\" y=\"22\" font-size=\"{4}\">{5}</text>\n",
        std::ceil(width_), std::ceil(height_), font_size, margin, title_size, escaped(picture_.title));
    draw_legend();
    draw_axis();
    for (int rank = 0; rank < picture_.ranks; ++rank) {
      const double y = top_ + rank * row_;
      svg_ += fmt::format("<rect x=\"{}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"#f6f6f6\"/>", left, y,
                          width_ - left - right, row_ - gap);
      svg_ += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{} {}</text>\n", left - 8,
                          y + (row_ - gap) / 2 + 4, picture_.row, rank);
    }
    for (const Bar& bar : picture_.bars) draw_bar(bar);
    return svg_ + "</svg>\n";
  }

 private:
  const Look& look_of(const Bar& bar) const { return picture_.looks[bar.look]; }
  double x_of(double time) const { return left + time * picture_.pixels_a_unit; }

  struct LegendEntry {
    std::string text;
    std::string color;  // empty: a remark without a square
    double x;
    int row;
  };

  // The kinds of steps that occur, and a remark; as many rows as the width needs.
  void lay_out_legend() {
    double x = margin;
    int row = 0;
    const auto add = [&](const std::string& text, const std::string& color) {
      const double square = color.empty() ? 0 : 19;
      const double end = x + square + text_width(text, font_size);
      if (end > width_ - margin && x > margin) {
        x = margin;
        ++row;
      }
      legend_.push_back({text, color, x, row});
      x += square + text_width(text, font_size) + margin;
    };
    for (const Look& look : picture_.looks) {
      const bool used =
          std::any_of(picture_.bars.begin(), picture_.bars.end(), [&](const Bar& bar) { return &look_of(bar) == &look; });
      if (used) add(look.name, look.color);
    }
    add(picture_.remark + (lanes_ > 1 ? "; lanes below each other" : ""), "");
  }

  void draw_legend() {
    for (const LegendEntry& entry : legend_) {
      const double y = legend_top + legend_row * entry.row;
      if (!entry.color.empty()) {
        svg_ += fmt::format("<rect x=\"{:.0f}\" y=\"{}\" width=\"14\" height=\"12\" fill=\"{}\"/>", entry.x, y, entry.color);
        svg_ += fmt::format("<text x=\"{:.0f}\" y=\"{}\">{}</text>\n", entry.x + 19, y + 10, entry.text);
      } else {
        svg_ += fmt::format("<text x=\"{:.0f}\" y=\"{}\" fill=\"#666666\">{}</text>\n", entry.x, y + 10, entry.text);
      }
    }
  }

  void draw_axis() {
    const double base = height_ - bottom + 4;
    const double step = picture_.unit == "round" ? std::max(1.0, apps::tick_step(24 / picture_.pixels_a_unit))
                                                 : apps::tick_step(80 / picture_.pixels_a_unit);
    for (int i = 0; i * step <= end_ * (1 + 1e-9); ++i) {
      const double x = x_of(i * step);
      svg_ += fmt::format("<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"#dddddd\"/>", x, top_ - 6,
                          base);
      // The number of a round is in the middle of its column, a time at its place.
      const bool rounds = picture_.unit == "round";
      if (rounds && i * step >= end_) break;
      svg_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{:.4g}</text>\n",
                          rounds ? x + picture_.pixels_a_unit / 2 : x, base + 14, i * step);
    }
    svg_ +=
        fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", left - 8, base + 14, picture_.unit);
  }

  void draw_bar(const Bar& bar) {
    const Look& look = look_of(bar);
    const double x = x_of(bar.begin);
    const double width = std::max(1.0, x_of(bar.end) - x - 1);
    const double y = top_ + bar.rank * row_ + (bar.lane * tracks_ + look.track) * bar_height;
    svg_ += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\" fill-opacity=\"0.85\" stroke=\"white\" "
        "stroke-width=\"0.5\"/>",
        x, y + 1, width, bar_height - 2, look.color);
    // The label is at the bar's beginning: a message's end, in which no port is busy, may lie under the next message.
    if (!bar.label.empty() && width >= 6.5 * static_cast<double>(bar.label.size()) + 4) {
      svg_ +=
          fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"10\">{}</text>", x + 3, y + bar_height - 3.5, bar.label);
    }
    svg_ += '\n';
  }

  const Picture& picture_;
  int lanes_ = 1;
  int tracks_ = 1;
  double end_ = 0;
  std::vector<LegendEntry> legend_;
  double top_ = 0;  // of the first rank
  double row_ = 0;
  double width_ = 0;
  double height_ = 0;
  std::string svg_;
};

}  // namespace

const std::vector<Look>& step_looks() {
  static const std::vector<Look> looks{{"send", "#8db3d9", 0},        {"recv", "#8ecf9b", 1},
                                       {"recv_reduce", "#f0a35e", 1}, {"copy", "#c9c9c9", 2},
                                       {"reduce", "#d98cb3", 2},      {"quantize", "#b8a1d9", 2},
                                       {"dequantize", "#d9cfa1", 2},  {"dequantize_reduce", "#e0b060", 2},
                                       {"requantize", "#c98a9b", 2},  {"signal", "#5b7fa6", 0},
                                       {"wait", "#d7e6d9", 1},        {"read", "#8ecf9b", 2},
                                       {"read_reduce", "#f0a35e", 2}, {"copy_to_all", "#8db3d9", 2}};
  return looks;
}

std::string svg_of(Picture picture) {
  std::stable_sort(picture.bars.begin(), picture.bars.end(), [](const Bar& a, const Bar& b) { return a.begin < b.begin; });
  return Drawing(picture).draw();
}

}  // namespace plan_tool
