#include <nlohmann/json.hpp>

#include "common/output_file.hpp"
#include "perf/result.hpp"

namespace perf {

namespace {

using nlohmann::ordered_json;

ordered_json entry(const Options& options, const Row& row, const Placement& placement, bool in_place) {
  const Case& test_case = row.test_case;
  const Timing& timing = placement.timing;
  ordered_json peers = ordered_json::object();
  for (std::size_t i = 0; i < options.peers.size(); ++i) {
    if (const auto& peer = placement.peers[i]) {
      peers[options.peers[i]] = {{"time_us", peer->mean * 1e6}, {"p50_us", peer->p50 * 1e6}, {"p99_us", peer->p99 * 1e6}};
    }
  }
  ordered_json made = {
      {"collective", test_case.test->name},
      {"algo", row.algorithm},
      {"chosen", row.chosen},
      {"dtype", name(test_case.dtype)},
      {"op", reduces(test_case.test->collective) ? name_of(test_case.op) : "none"},
      {"root", has_root(test_case.test->collective) ? test_case.root : -1},
      {"bytes", test_case.bytes()},
      {"in_place", in_place},
      {"time_us", timing.mean * 1e6},
      {"p50_us", timing.p50 * 1e6},
      {"p99_us", timing.p99 * 1e6},
      {"algbw", algorithm_bandwidth(test_case, timing.mean)},
      {"busbw", bus_bandwidth(test_case, timing.mean)},
      {"wrong", nullptr},
      {"wire_bytes", placement.wire_bytes},
      {"wire_bytes_inter", placement.wire_bytes_inter},
      {"max_error", nullptr},
      {"rms_error", nullptr},
      {"peers", peers},
  };
  if (placement.wrong) made["wrong"] = *placement.wrong;
  if (placement.max_error) made["max_error"] = *placement.max_error;
  if (placement.rms_error) made["rms_error"] = *placement.rms_error;
  return made;
}

}  // namespace

void write_json(const std::string& path, const Machine& machine, const Options& options, const std::vector<Row>& rows) {
  ordered_json all = {
      {"ranks", machine.ranks},
      {"ranks_are", options.threads ? "threads" : "processes"},
      {"device", name(options.device)},
      {"memory", name_of(options.memory)},
      {"prepared", options.prepared},
      {"servers", options.servers},
      {"quantize", name(options.quantization.format)},
      {"quantize_result", name(options.quantization.result)},
      {"rounding", options.quantization.rounding == stretto::Rounding::stochastic ? "stochastic" : "nearest"},
      {"machine",
       {{"cpu", machine.cpu},
        {"gpu", machine.gpu},
        {"cores", machine.cores},
        {"hosts", machine.hosts},
        {"date", machine.date},
        {"version", machine.version},
        {"command", options.command},
        {"settings", machine.settings},
        {"peers", machine.peers}}},
      {"rows", ordered_json::array()}};
  for (const Row& row : rows) {
    if (row.out_of_place) all["rows"].push_back(entry(options, row, *row.out_of_place, false));
    if (row.in_place) all["rows"].push_back(entry(options, row, *row.in_place, true));
  }
  write_file("--json", path, all.dump(1) + "\n");
}

}  // namespace perf
