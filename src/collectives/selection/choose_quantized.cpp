// Chooses whether a call is quantized, and by which method.
#include <optional>

#include "collectives/plan/nodes.hpp"
#include "collectives/selection/choose_costs.hpp"
#include "core/fail.hpp"

namespace stretto {
namespace {

// "two_level/4 in int4"
std::string text_of(const PlanRequest& request) {
  std::string text = fmt::format("{} in {}", to_string(request.method), name(request.quantized));
  const bool differs = request.quantized_result != QuantizedFormat::none && request.quantized_result != request.quantized;
  return differs ? fmt::format("{}, the sum in {}", text, name(request.quantized_result)) : text;
}

// All methods in 1 to 16 pieces, or the caller's method alone.
std::vector<Method> methods_for(const PlanRequest& request, bool several_nodes) {
  if (request.method.algorithm != Algorithm::automatic) return {request.method};
  // If every node is one rank, two levels are one.
  const bool levels = several_nodes && knows_nodes(request) && Nodes::of(request).count() < request.size;
  std::vector<Method> methods;
  for (const Algorithm algorithm : algorithms_for(request.collective)) {
    if (!quantizes(request.collective, algorithm) || (algorithm == Algorithm::two_level && !levels)) continue;
    Method method(algorithm);
    for (method.pieces = 1; method.pieces <= 16; method.pieces *= 4) methods.push_back(method);
  }
  return methods;
}

// The choice for the same call without quantization, with its seconds; nothing if the caller wants a method that can only
// quantize.
std::optional<Choice> plain_choice(const PlanRequest& request, DType dtype, ReduceOp op, const Tuning& tuning,
                                   const Circumstances& circumstances, const KnownCosts& costs) {
  PlanRequest plain = request;
  plain.quantized = plain.quantized_result = QuantizedFormat::none;
  if (plain.method.algorithm != Algorithm::automatic && !can_be_done(plain)) return std::nullopt;
  Choice choice = choose(plain, dtype, op, tuning, circumstances);
  if (choice.candidates.empty()) {  // a rule or the caller decided
    plain.method = choice.method;
    choice.candidates.push_back({choice.method, choice.wire, costs.seconds_of(plain, choice.wire)});
  }
  return choice;
}

}  // namespace

Choice choose_quantized(const PlanRequest& request, DType dtype, ReduceOp op, const Tuning& tuning,
                        const Circumstances& circumstances, bool may_be_plain) {
  const bool by_caller = request.method.algorithm != Algorithm::automatic;
  PlanRequest trial = request;
  if (!can_be_quantized(request.collective)) trial.method = Algorithm::direct;
  // Throws if the request cannot be done.
  if (!can_be_quantized(request.collective) || (by_caller && !may_be_plain)) cost_by_level(trial);
  if (by_caller && !may_be_plain) return {request.method, dtype, text_of(request) + ", by the caller", {}, true};

  const KnownCosts costs = KnownCosts::of(request, tuning, circumstances);
  Choice choice;
  for (const Method& method : methods_for(request, circumstances.several_nodes)) {
    trial.method = method;
    if (can_be_done(trial)) choice.candidates.push_back({method, dtype, costs.seconds_of(trial, dtype), true});
  }
  if (may_be_plain) {
    if (const auto plain = plain_choice(request, dtype, op, tuning, circumstances, costs)) {
      choice.candidates.insert(choice.candidates.end(), plain->candidates.begin(), plain->candidates.end());
    }
  }
  if (choice.candidates.empty()) cost_by_level(request);  // the caller's method can do neither
  sort_by_seconds(choice.candidates);
  const Candidate& best = choice.candidates.front();
  choice.method = trial.method = best.method;
  choice.wire = best.wire;
  choice.quantized = best.quantized;
  const std::string what = best.quantized ? text_of(trial) : to_string(best.method) + ", not quantized";
  choice.reason = fmt::format("{}, {:.1f} us by the cost model", what, best.seconds * 1e6);
  return choice;
}

}  // namespace stretto
