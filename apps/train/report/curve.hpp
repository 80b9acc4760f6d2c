#pragma once
#include <cstddef>
#include <vector>

namespace apps {

struct CurvePoint {
  double x, y;
};

// A curve that is drawn at the end of a run, however long that is: where it has too many points, each two of them become
// one, at the place of the second and as high as their mean, and so do later points.
class Curve {
 public:
  static constexpr std::size_t most_points = 4096;  // several for every pixel

  void add(double x, double y) {
    open_ += y;
    if (++count_ == each_) {
      points_.push_back({x, open_ / static_cast<double>(each_)});
      open_ = 0;
      count_ = 0;
    }
    last_x_ = x;
    if (points_.size() == most_points) halve();
  }

  std::vector<CurvePoint> points() const {
    std::vector<CurvePoint> all = points_;
    if (count_ > 0) all.push_back({last_x_, open_ / static_cast<double>(count_)});
    return all;
  }

 private:
  void halve() {
    for (std::size_t i = 0; i < most_points / 2; ++i) {
      const CurvePoint& second = points_[2 * i + 1];
      points_[i] = {second.x, (points_[2 * i].y + second.y) / 2};
    }
    points_.resize(most_points / 2);
    each_ *= 2;
  }

  std::vector<CurvePoint> points_;  // each of them the mean of `each_` values
  std::size_t each_ = 1;
  double open_ = 0;  // the sum of the values behind the last point
  std::size_t count_ = 0;
  double last_x_ = 0;
};

}  // namespace apps
