#pragma once
#include <functional>
#include <string>

namespace apps {

// metrics.jsonl, line by line.
class MetricsFile {
 public:
  // Throws Error(io) if it cannot be opened.
  explicit MetricsFile(const std::string& path);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  // Keeps the lines of the file up to the first that is not whole, or that `keeps` refuses, and removes the rest.
  void keep_first(const std::function<bool(const std::string& line)>& keeps);
  // Other programs may read at any time: the line is there at once.
  void append(const std::string& line);

 private:
  [[noreturn]] void fail_to_write() const;

  std::string path_;
  int file_ = -1;
};

}  // namespace apps
