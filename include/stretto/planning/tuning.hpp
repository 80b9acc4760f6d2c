#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "stretto/dtype.hpp"
#include "stretto/planning/cost.hpp"

// The choice of a method, with its reason. A cost model over measured alpha, beta and gamma orders all methods. A table
// of rules overrides the model, the environment (STRETTO_ALGO) overrides the table, and the caller overrides all three.
namespace stretto {

// A row of a table: the method for a collective over `ranks` ranks (0: any number), if first <= bytes < last. `bytes` is
// the size of the whole vector, as stretto-perf counts it.
struct Rule {
  Collective collective = Collective::all_reduce;
  int ranks = 0;
  std::int64_t first = 0, last = INT64_MAX;
  Method method;
  std::string source;  // "STRETTO_ALGO", or the name of the file
};
// Measurements on one kind of route, with `ranks` ranks, and ranks_per_core ranks on each core.
struct RouteCost {
  std::string route;  // "shm", "ucx" (measured between ranks of one host), or "network" between hosts
  int ranks = 2;
  int ranks_per_node = 0;  // of ranks on several nodes; 0: all are on one
  double ranks_per_core = 1;
  LinkCost cost;
  std::vector<Rule>
      rules;  // override the cost model for groups of `ranks` ranks, placed alike, with a similar ranks_per_core
  std::vector<Rule> symmetric_rules;  // like `rules`, for calls with all buffers in symmetric memory
  bool measured_with(int its_ranks, double its_ranks_per_core) const;  // so that its rules apply to such a group
};
// Parses "all_reduce:0-4k:recursive_doubling,4k-inf:ring;broadcast@8:chain/16". Throws Error naming the part that is
// wrong.
STRETTO_API std::vector<Rule> rules_from_text(const std::string& text, const std::string& source);
// A text that rules_from_text() reads as these rules.
STRETTO_API std::string to_text(const std::vector<Rule>& rules);

// All inputs of the choice that come from outside the call. All ranks of a job use rank 0's Tuning.
struct STRETTO_API Tuning {
  std::vector<RouteCost> routes;
  std::vector<Rule> rules;  // take precedence over the rules of a route. The first rule that fits decides
  bool deterministic = false;

  // Reads STRETTO_ALGO, STRETTO_DETERMINISTIC, and the tuning file in use.
  static Tuning from_environment();
  // The same with this text of a tuning file. source: the file's name in error messages; empty for the tuning that the
  // library ships.
  static Tuning with_settings(const std::string& file_text, const std::string& source);
  // The path in STRETTO_TUNING. Empty for the tuning that the library ships: if STRETTO_TUNING is not set, or with
  // STRETTO_DETERMINISTIC=1, under which no measurement decides.
  static std::string file_from_environment();
  static std::string text_from_environment();  // of that file
  // The path of the tuning file in which the first job on this machine, on one host or on several, keeps the measurements of
  // its start (STRETTO_CALIBRATE). The file need not exist; the path is empty if there is no directory for it.
  static std::string measurements_path(bool several_hosts);
  // Parses JSON: {"routes": [{"route", "ranks", "ranks_per_core", "alpha_us", "overhead_us", "bandwidth_gbs",
  // "local_gbs", "lane_gain", "quantize_ns", "ranks_per_node", "table", "symmetric_table"}], "table": "all_reduce:...",
  // "machine": "..."}. The tables, "machine", "ranks_per_node" and "quantize_ns" are optional. quantize_ns defaults to
  // 4 / local_gbs, the time to copy an f32.
  static Tuning from_json(const std::string& text, const std::string& source);
  // Returns the measurement of `route` that is nearest to the given ranks and ranks_per_core. Throws Error if `routes`
  // has no measurement of that route.
  const RouteCost& nearest(const std::string& route, int ranks, double ranks_per_core) const;
};

// The placement of a group's ranks and of a call's buffers.
struct Circumstances {
  std::string route_inside = "shm";   // between ranks of a node
  std::string route_between = "ucx";  // between nodes
  bool several_nodes = false;
  bool servers_apart = false;  // each server (OperationOptions::servers) is the only rank of its node
  double ranks_per_core = 1;
  bool shares_memory = false;  // all ranks are on one host and share memory that the library sets up
  bool symmetric = false;      // all ranks can map all buffers of the call
  bool reads_memory = false;   // the operating system lets ranks read buffers that are not mapped
  bool on_gpus = false;        // the buffers are on GPUs; shares_memory, symmetric and reads_memory are then ignored
  bool done_whole = false;     // the links between the GPUs can do the whole call: Algorithm::nccl
};

// Methods of one level are considered, and timed within a node, in 1, 4, 16, 64 and 256 pieces.
inline constexpr int pieces_factor = 4, most_pieces = 256;

struct Candidate {
  Method method;
  DType wire = DType::f32;
  double seconds = 0;  // predicted by the cost model
  bool quantized = false;
};
struct Choice {
  Method method;
  DType wire = DType::f32;            // the type in which elements travel (see rounds_once())
  std::string reason;                 // one line
  std::vector<Candidate> candidates;  // in the cost model's order, fastest first; empty if a rule or the caller decided
  bool quantized = false;             // whether the call is quantized, in the request's formats
};
// Chooses the method of a request. If request.method is not automatic, checks that method instead. choose() is a pure
// function, so all ranks make the same choice. Throws Error(invalid_argument) if a rule or the caller demands a method
// that is not possible.
//
// If request.quantized is set, only methods that quantize are candidates. If may_be_plain is also true, unquantized
// methods are candidates too, at their cost without quantization. Rules apply to unquantized calls only. The wire type
// of a quantized choice is the caller's type.
STRETTO_API Choice choose(const PlanRequest& request, DType dtype, ReduceOp op, const Tuning& tuning,
                          const Circumstances& circumstances, bool may_be_plain = false);

}  // namespace stretto
