#pragma once
#include <string>
#include <utility>
#include <vector>

#include "stretto/calibration.hpp"

namespace stretto {

// The times of up to three measurements on one kind of machine. Other jobs slow a machine down, and the cores of a virtual
// one move: a table needs measurements from different times.
struct KeptTimes {
  static constexpr int enough = 3;  // measurements
  int measurements = 0;
  std::vector<std::vector<CallTimes>> calls;  // of each call, by bytes, the last measurements that reached it

  void add(const std::vector<CallTimes>& fresh);
  // One time for each method of a call: the median of three, the geometric mean of two. Each measurement counts by the
  // ratios of its times to one another. One that has no method in common with the others is left out.
  std::vector<CallTimes> joined() const;
  std::string to_json() const;
  // Empty if the text is not what to_json() writes.
  static KeptTimes from_json(const std::string& text);
};

// The file of them, which lies beside a tuning file. Jobs that write it take turns (MeasuringTurn).
class KeptTimesFile {
 public:
  explicit KeptTimesFile(std::string path) : path_(std::move(path)) {}  // empty: nothing is kept
  // Empty if there are none, or the file cannot be read.
  KeptTimes read(const std::string& what) const;
  // A file that cannot be written is left as it was: the next job begins anew.
  void write(const std::string& what, const KeptTimes& times) const;

 private:
  std::string path_;
};

}  // namespace stretto
