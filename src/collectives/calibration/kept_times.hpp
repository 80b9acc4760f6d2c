#pragma once
#include <string>
#include <vector>

#include "stretto/calibration.hpp"

namespace stretto {

// The times of one or several measurements on one kind of machine. Other jobs slow a machine down, and the cores of a
// virtual one move: a table needs measurements from different times.
struct KeptTimes {
  static constexpr int enough = 3;  // measurements; a later one still counts for a third
  int measurements = 0;
  std::vector<CallTimes> calls;

  // Adds a measurement. A method's time becomes the geometric mean, so that each measurement counts by its ratios. But where
  // one is more than three times the other, beside those of the other methods, something has disturbed it, and the smaller
  // one counts. A method that one measurement lacks keeps its ratio to those that both have; if they have none in common,
  // the fresh ones stay.
  void add(const std::vector<CallTimes>& fresh);
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
