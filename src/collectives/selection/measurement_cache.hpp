#pragma once
#include <string>
#include <vector>

namespace stretto {

// The file in which jobs find what an earlier job has measured on the same kind of machine: a tuning file, in
// STRETTO_CACHE_DIR. Its name is a hash of all that the measurements depend on: processor, cores, memory, this library's
// version and, for a job on several hosts, their networks.
class MeasurementCache {
 public:
  explicit MeasurementCache(bool several_hosts);
  const std::string& path() const { return path_; }  // empty if no directory for it is known
  // The file's text; empty if there is none. One that cannot be read counts as none, and is reported unless it has been.
  std::string read(bool reports = true) const;
  // Adds routes to the file, as JSON objects, in the place of those for as many ranks. A file that cannot be written is
  // reported.
  void add(const std::vector<std::string>& routes) const;

 private:
  std::string machine_;
  std::string path_;
};

}  // namespace stretto
