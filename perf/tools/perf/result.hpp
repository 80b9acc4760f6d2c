#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "perf/cases.hpp"
#include "perf/measure.hpp"
#include "perf/options.hpp"

namespace perf {

// The figures of one collective, out of place or in place.
struct Placement {
  Timing timing;                             // in seconds
  std::optional<std::int64_t> wrong;         // over all ranks; empty if results were not checked
  std::vector<std::optional<Timing>> peers;  // in the order of --vs; empty: the peer lacks this collective
  // Bytes of the rank that sends most, and those of them that go to other nodes.
  std::int64_t wire_bytes = 0, wire_bytes_inter = 0;
  // Errors from the exact result, over all ranks; empty if nothing was quantized or checked.
  std::optional<double> max_error, rms_error;
};

struct Row {
  Case test_case;
  std::string algorithm;  // that was used
  bool chosen = false;    // the library's choice
  std::optional<Placement> out_of_place, in_place;
};

// In GB/s of 1e9 bytes.
double algorithm_bandwidth(const Case& test_case, double seconds);
double bus_bandwidth(const Case& test_case, double seconds);

// The machine and the software that were measured.
struct Machine {
  std::string cpu, gpu, date, version, transport;  // gpu: rank 0's, if one is used
  int cores = 0;
  int ranks = 0;
  std::vector<std::string> hosts;     // without duplicates
  std::vector<std::string> settings;  // NAME=value of the settings that differ from their default
  std::vector<std::string> peers;     // with their versions
};
// Collective; complete at rank 0.
Machine this_machine(const stretto::Communicator& world);

// The table on stdout, printed row by row.
class Table {
 public:
  explicit Table(const Options& options) : options_(options) {}
  void header(const Machine& machine) const;
  void columns() const;
  void comment(const std::string& sentence) const;
  void row(const Row& row);
  void footer() const;
  std::int64_t wrong() const { return wrong_; }

 private:
  std::string cells(const Case& test_case, const std::optional<Placement>& placement);

  const Options& options_;
  std::int64_t wrong_ = 0;
  double bandwidth_ = 0;
  int bandwidths_ = 0;
};

void write_json(const std::string& path, const Machine& machine, const Options& options, const std::vector<Row>& rows);

}  // namespace perf
