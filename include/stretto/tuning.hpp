#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "stretto/cost.hpp"
#include "stretto/dtype.hpp"

// Which algorithm the library takes, and why. A cost model over measured alpha, beta and gamma ranks all methods; a table
// overrides it, the environment overrides the table, and the caller overrides all.
namespace stretto {

// A row of a table: for a collective of bytes in [first, last) over so many ranks (0: any), this method. Bytes are of the
// whole vector, as stretto-perf counts them.
struct Rule {
  Collective collective = Collective::all_reduce;
  int ranks = 0;
  std::int64_t first = 0, last = INT64_MAX;
  Method method;
  std::string source;  // "STRETTO_ALGO" or the file
};
// What was measured on one kind of route, among so many ranks of which so many share a core.
struct RouteCost {
  std::string route;  // "shm", "ucx" (measured between ranks of one host), or "network" between hosts
  int ranks = 2;
  double ranks_per_core = 1;
  LinkCost cost;
  std::vector<Rule> rules;            // for groups of as many ranks in like circumstances: what the cost model misses
  std::vector<Rule> symmetric_rules;  // the same where all buffers are in symmetric memory
};
// Reads "all_reduce:0-4k:recursive_doubling,4k-inf:ring;broadcast@8:chain/16". Throws Error naming the part that is wrong.
STRETTO_API std::vector<Rule> rules_from_text(const std::string& text, const std::string& source);

// What selection goes by. All ranks of a job use rank 0's.
struct STRETTO_API Tuning {
  std::vector<RouteCost> routes;
  std::vector<Rule> rules;  // go before those of a route; the first that fits counts
  bool deterministic = false;

  // From STRETTO_TUNING (without it: what the library ships), STRETTO_ALGO and STRETTO_DETERMINISTIC. Given the text of a
  // tuning file, it stands for STRETTO_TUNING's.
  static Tuning from_environment();
  static Tuning from_environment(const std::string& file_text);
  static std::string text_from_environment();  // of STRETTO_TUNING's file, or of what the library ships
  // JSON: {"routes": [{"route", "ranks", "ranks_per_core", "alpha_us", "overhead_us", "bandwidth_gbs", "local_gbs",
  // "lane_gain", "quantize_ns", "table", "symmetric_table"}], "table": "all_reduce:...", "machine": "..."}; tables may be
  // left out, and quantize_ns, which then is the time in which an f32 is copied: 4 / local_gbs.
  static Tuning from_json(const std::string& text, const std::string& source);
  // What was measured nearest to these circumstances. Throws if nothing was on that route.
  const RouteCost& nearest(const std::string& route, int ranks, double ranks_per_core) const;
};

// Where a group of ranks lies.
struct Circumstances {
  std::string route_inside = "shm";   // between ranks of a node
  std::string route_between = "ucx";  // between nodes
  bool several_nodes = false;
  double ranks_per_core = 1;
  bool shares_memory = false;  // all ranks are on one host and reach each other's memory ...
  bool symmetric = false;      // ... and so do they the buffers of this call; else they get at those through the kernel
  bool reads_memory = false;   // ... if it lets them
  bool on_gpus = false;        // the buffers of this call lie on GPUs; then nothing is shared, whatever stands above
  bool done_whole = false;     // ... and the links between them do this collective whole: Algorithm::nccl
};

struct Candidate {
  Method method;
  DType wire = DType::f32;
  double seconds = 0;  // by the cost model
  bool quantized = false;
};
struct Choice {
  Method method;
  DType wire = DType::f32;            // in which elements travel, see rounds_once()
  std::string reason;                 // one line
  std::vector<Candidate> candidates;  // what the cost model knows, fastest first; empty where a rule or the caller decided
  bool quantized = false;             // as the request says
};
// For a request whose method is automatic, or is what the caller wants. A pure function: all ranks choose alike. Throws
// Error(invalid_argument) where a rule or the caller demands what cannot be done.
// Where request.quantized is set, of the methods that quantize; with may_be_plain also of the others, which then compete
// with what quantizing costs. Rules say how plain calls are done, and nothing of quantized ones. What is quantized does not
// travel as elements: its wire is the caller's type.
STRETTO_API Choice choose(const PlanRequest& request, DType dtype, ReduceOp op, const Tuning& tuning,
                          const Circumstances& circumstances, bool may_be_plain = false);

}  // namespace stretto
