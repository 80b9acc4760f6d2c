#pragma once
#include <string>

namespace stretto {

// Jobs that measure one kind of machine take turns, since they would disturb each other: rank 0 locks a file as long as its
// job measures. The file remembers the measurements for which the machine was too busy, so that not every job pays for one
// more: after each, jobs wait before they try again, first a minute, then twice as long, at most a day.
class MeasuringTurn {
 public:
  explicit MeasuringTurn(std::string path);  // empty: there is nobody to take turns with, and nothing is remembered
  ~MeasuringTurn();
  MeasuringTurn(const MeasuringTurn&) = delete;
  MeasuringTurn& operator=(const MeasuringTurn&) = delete;

  // Waits so many seconds for the job that measures. Returns false if it still does. A file that cannot be made or locked
  // counts as locked: the measurement cannot be kept there either, or the file system knows no locks.
  bool take(double seconds);
  // Only in turn: the seconds until `what` may be measured again, at most 0 if it may be now.
  double seconds_to_wait(const std::string& what) const;
  // Only in turn: remembers how it went. Returns the seconds until jobs try again, 0 if it went well.
  double note(const std::string& what, bool in_vain);
  // Only in turn: `what` is not to be done within so many seconds.
  void put_off(const std::string& what, double seconds);

 private:
  bool rewrite(const std::string& text);
  std::string path_;
  int file_ = -1;
};

}  // namespace stretto
