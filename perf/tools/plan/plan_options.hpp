#pragma once
#include <string>
#include <vector>

#include "common/fail.hpp"
#include "stretto/dtype.hpp"
#include "stretto/plan.hpp"

// The command line of stretto-plan.
namespace plan_tool {

using namespace stretto;

using perf::fail, perf::require;

constexpr double milliseconds(double seconds) { return seconds * 1e3; }

struct CommandLine {
  std::string collective;
  std::string algorithm = "all";
  std::string ranks;
  std::string bytes = "1K";
  std::string dtype = "f32";
  std::string links;  // --simulate
  std::string svg;
  std::string quantize = "none";
  std::string quantize_result;  // like quantize
  bool only_if_faster = false;
  std::string ranks_per_node;  // a number or a list; empty: one level
  int nodes_per_pod = 0;
  int root = 0;
  int servers = 0;
  int rank = -1;  // -1: all ranks
  bool verify = false;
  bool explain = false;
  double ranks_per_core = 0;  // for --explain; 0: as if all ranks were on this machine
  int first_size = 0;
  int last_size = 0;
};

// Returns false if the command line asks for help, which has then been printed. Throws Error if options do not fit together.
bool parse(int argc, char** argv, CommandLine& line);
std::vector<Collective> collectives_of(const CommandLine& line);
Method named_method(const CommandLine& line);

struct Call {
  PlanRequest request;  // without a method
  DType dtype;
  bool is_quantized() const { return request.quantized != QuantizedFormat::none; }
  std::int64_t width() const { return static_cast<std::int64_t>(size_of(dtype)); }
  std::int64_t bytes() const { return request.count * width() * (counts_shares(request.collective) ? request.size : 1); }
};

Call call_of(const CommandLine& line);
QuantizedFormat format_of(const CommandLine& line);         // --quantize
QuantizedFormat result_format_of(const CommandLine& line);  // of the sum that an all-reduce sends to all ranks
bool can_do(const CommandLine& line, Collective collective, Algorithm algorithm);
// ", in int4", or empty
std::string quantized_text(const PlanRequest& request);
// For --algo all: every algorithm, also in 16 pieces if it takes pieces. If nodes are known, also two levels of every pair
// of algorithms, with up to 64 ranks also in two lanes of 16 pieces. If pods are known, also three levels with one algorithm
// for the inner two.
std::vector<Method> methods_of(const CommandLine& line, const PlanRequest& request);
bool can_do(const PlanRequest& request);

// --explain: the library's choice, and the cost model's time of all other methods (plan_explain.cpp).
void explain(const CommandLine& line, const Call& call);

}  // namespace plan_tool
