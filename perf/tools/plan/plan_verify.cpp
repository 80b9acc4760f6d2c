#include "plan/plan_verify.hpp"

#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include "stretto/planning/proof.hpp"

namespace plan_tool {
namespace {

std::vector<ProofCase> cases_of(const CommandLine& line, Collective collective, const Method& method) {
  const bool with_parameters = method != Method(method.algorithm);
  const bool by_level = needs_nodes(method.algorithm);
  const bool quantized = format_of(line) != QuantizedFormat::none;
  std::vector<ProofCase> cases;
  for (int size = line.first_size; size <= line.last_size; ++size) {
    for (ProofCase& which :
         quantized ? quantized_proof_cases(collective, method.algorithm, size, format_of(line), result_format_of(line))
                   : proof_cases(collective, method.algorithm, size)) {
      Method& its = which.request.method;
      if (with_parameters && !by_level && (its.lanes != 1 || its.pieces != 1)) continue;
      if (with_parameters) its = method;
      if (by_level && with_parameters && !which.request.node_sizes.empty() && !can_do(request_of(which, 0))) continue;
      cases.push_back(std::move(which));
    }
  }
  return cases;
}

// Returns how many cases were proved.
std::size_t prove_one(const CommandLine& line, Collective collective, const Method& method) {
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<ProofCase> cases = cases_of(line, collective, method);
  if (const auto fault = prove(cases, std::max(1, static_cast<int>(std::thread::hardware_concurrency())))) {
    fail(ErrorCode::invalid_argument, "{}", *fault);
  }
  std::string where =
      can_be_in_place(collective) || collective == Collective::barrier ? "in and out of place" : "out of place";
  if (has_root(collective)) {
    where += line.last_size <= most_ranks_with_every_case
                 ? ", every root"
                 : fmt::format(", every root up to {} ranks", most_ranks_with_every_case);
  }
  fmt::print("{:<15} {:<28} {:>6} cases {:>7.2f} s  {}\n", name(collective), to_string(method), cases.size(),
             seconds_since(begin), where);
  std::fflush(stdout);
  return cases.size();
}

}  // namespace

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void verify_all(const CommandLine& line) {
  // Every proof allocates what the one before has freed: the allocator keeps it, instead of giving it back to the kernel.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  const auto begin = std::chrono::steady_clock::now();
  int algorithms = 0;
  std::size_t cases = 0;
  for (const Collective collective : collectives_of(line)) {
    const bool all = line.algorithm == "all";
    const std::vector<Algorithm> asked = all ? algorithms_for(collective) : std::vector{named_method(line).algorithm};
    for (const Algorithm algorithm : asked) {
      const bool can = can_do(line, collective, algorithm);
      require(can || all || line.collective == "all", "{}{} cannot be done by {}.",
              format_of(line) == QuantizedFormat::none ? "" : "A quantized ", name(collective), name(algorithm));
      if (!can) continue;
      cases += prove_one(line, collective, all ? Method(algorithm) : named_method(line));
      ++algorithms;
    }
  }
  require(algorithms > 0, "No collective is done by {}.", line.algorithm);
  fmt::print("Proved {} cases of {} algorithms at {} ranks in {:.1f} s.\n", cases, algorithms, line.ranks,
             seconds_since(begin));
}

}  // namespace plan_tool
