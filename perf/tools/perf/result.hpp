#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "perf/cases.hpp"
#include "perf/measure.hpp"
#include "perf/options.hpp"

namespace perf {

// One collective with its buffers apart, or in one place.
struct Placement {
  Timing timing;                             // in seconds
  std::optional<std::int64_t> wrong;         // over all ranks; nothing where it was not checked
  std::vector<std::optional<Timing>> peers;  // in the order of --vs; nothing: it has no such thing
  // What a rank sends, the one that sends most, and what of it goes to other nodes.
  std::int64_t wire_bytes = 0, wire_bytes_inter = 0;
  // From the exact result, over all ranks; nothing where nothing was quantized or compared.
  std::optional<double> max_error, rms_error;
};

struct Row {
  Case what;
  std::string algorithm;  // by which it was done
  bool chosen = false;    // by the library
  std::optional<Placement> out_of_place, in_place;
};

// GB/s of 1e9 bytes.
double algorithm_bandwidth(const Case& what, double seconds);
double bus_bandwidth(const Case& what, double seconds);

// Where it was measured, with what.
struct Machine {
  std::string cpu, gpu, date, version, transport;  // gpu: rank 0's, where it is used
  int cores = 0;
  int ranks = 0;
  std::vector<std::string> hosts;     // each once
  std::vector<std::string> settings;  // NAME=value, of those that differ from their default
  std::vector<std::string> peers;     // with their versions
};
std::string processor_name();
// All ranks call it; complete at rank 0.
Machine this_machine(const stretto::Communicator& world);

// The table on stdout, as rows come.
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
  std::string cells(const Case& what, const std::optional<Placement>& placement);

  const Options& options_;
  std::int64_t wrong_ = 0;
  double bandwidth_ = 0;
  int bandwidths_ = 0;
};

void write_json(const std::string& path, const Machine& machine, const Options& options, const std::vector<Row>& rows);

}  // namespace perf
