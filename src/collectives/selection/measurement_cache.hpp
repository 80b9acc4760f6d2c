#pragma once
#include <string>
#include <vector>

namespace stretto {

// The file with the measurements of earlier jobs on the same kind of machine: a tuning file, in STRETTO_CACHE_DIR. Its name
// is a hash of the conditions on which the measurements depend: processor, cores, memory, this library's version and, for a
// job on several hosts, their networks.
class MeasurementCache {
 public:
  explicit MeasurementCache(bool several_hosts);
  ~MeasurementCache();
  MeasurementCache(const MeasurementCache&) = delete;
  MeasurementCache& operator=(const MeasurementCache&) = delete;

  const std::string& path() const { return path_; }  // empty if no directory for it is known
  // The file's text; empty if there is none. A file that cannot be read counts as none, with a warning if `reports`.
  std::string read(bool reports = true) const;
  // Adds routes to the file, as JSON objects. A route replaces an older one of as many ranks, placed alike. Returns false if
  // the file cannot be written; it is then as it was.
  bool add(const std::vector<std::string>& routes) const;

  // Two jobs that measure at the same time would disturb each other, so the one that measures locks the directory, until
  // this object is destroyed.
  enum class Turn { mine, another_job, nowhere };
  // nowhere: files cannot be made in the directory, which this function makes if it is missing.
  Turn take_turn();

 private:
  int lock_ = -1;  // the directory's descriptor
  std::string machine_;
  std::string path_;
};

}  // namespace stretto
