// stretto-plan: shows, proves, predicts and draws the ranks' steps in a collective.
#include <algorithm>
#include <cstdio>
#include <limits>

#include "apps/common/exit_status.hpp"
#include "common/output_file.hpp"
#include "common/size_text.hpp"
#include "plan/plan_attention.hpp"
#include "plan/plan_layout.hpp"
#include "plan/plan_move.hpp"
#include "plan/plan_options.hpp"
#include "plan/plan_pipeline.hpp"
#include "plan/plan_step.hpp"
#include "plan/plan_svg.hpp"
#include "plan/plan_verify.hpp"
#include "stretto/planning/cost.hpp"
#include "stretto/planning/simulate.hpp"
#include "stretto/settings.hpp"

namespace plan_tool {
namespace {

std::string ranks_text(const PlanRequest& request) {
  return fmt::format("{} ranks{}", request.size, request.servers > 0 ? fmt::format(" and {} servers", request.servers) : "");
}

void print_plan(const CommandLine& line, const Call& call, const Method& method) {
  PlanRequest request = call.request;
  request.method = method;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  std::int64_t most = 0;
  std::int64_t sum = 0;
  int rounds = 0;
  for (request.rank = 0; request.rank < ranks_of(request); ++request.rank) {
    const Plan plan = make_plan(request);
    if (line.rank < 0 || line.rank == request.rank) fmt::print("{}", plan.to_string());
    const std::int64_t sent = plan.bytes_sent(call.width());
    least = std::min(least, sent);
    most = std::max(most, sent);
    sum += sent;
    rounds = std::max(rounds, plan.rounds());
  }
  request.rank = 0;
  const Cost cost = cost_of(request);
  fmt::print("sent: {} bytes in all, {} by a rank; {} rounds\n", sum,
             least == most ? fmt::format("{}", most) : fmt::format("{} to {}", least, most), rounds);
  fmt::print("cost: {:g} alpha + {:g} overhead + {:g} bytes beta + {:g} bytes gamma\n", cost.rounds, cost.messages,
             cost.sent * static_cast<double>(call.width()) + cost.packed, cost.work * static_cast<double>(call.width()));
  if (call.is_quantized()) fmt::print("quantized: {:g} elements packed or unpacked by a rank\n", cost.quantized);
}

// ---- --simulate

// Bus bandwidth as in nccl-tests: bytes over time, times the share of the bytes that must go through a rank's link.
double bus_factor(Collective collective, double ranks) {
  switch (collective) {
    case Collective::all_reduce: return 2 * (ranks - 1) / ranks;
    case Collective::broadcast:
    case Collective::reduce: return 1;
    case Collective::barrier: return 0;
    default: return (ranks - 1) / ranks;
  }
}

struct Prediction {
  Method method;
  Simulation result;
  double formula = 0;   // seconds
  std::string refusal;  // the reason why there is no result
};

// An element is packed or unpacked as fast as it is copied.
LinkCost cost_of_level(const LinkModel& links, std::size_t level, std::int64_t width) {
  const LinkLevel& known = links.levels[level];
  const double gamma = 1e-9 / links.local_gbs;
  return {known.alpha_us * 1e-6, known.overhead_us * 1e-6, 1e-9 / known.bandwidth_gbs, gamma,
          gamma * static_cast<double>(width)};
}

// The time of the cost formula, with the innermost level that joins all ranks as the level between nodes.
double formula_seconds(const PlanRequest& request, std::int64_t width, const LinkModel& links) {
  std::size_t outer = 0;
  while (outer + 1 < links.levels.size() && links.levels[outer].ranks < ranks_of(request)) ++outer;
  const int ports = outer == 0 ? request.size : links.levels[0].ports;  // ports lead out of a node
  return seconds(request, cost_of_level(links, 0, width), cost_of_level(links, outer, width), static_cast<double>(width),
                 ports);
}

// The reason why a method cannot run over these links; empty if it can: memory is shared within a node only, and a packet
// must fit.
std::string obstacle(const PlanRequest& request, std::int64_t width, const LinkModel& links) {
  const LinkLevel& node = links.levels.front();
  const Algorithm algorithm = request.method.algorithm;
  if (shares_memory(algorithm) && links.levels.size() > 1 && request.size > node.ranks) {
    return fmt::format("{} needs all ranks on one host; a {} of these links holds {} of the {}.", name(algorithm), node.name,
                       node.ranks, request.size);
  }
  PlanRequest giver = request;
  giver.rank = request.root;
  const std::int64_t bytes = input_count(giver) * width;
  if (algorithm == Algorithm::packet && bytes > most_packet_bytes) {
    return fmt::format("A packet holds {} bytes; {} of a rank do not fit.", most_packet_bytes, bytes);
  }
  return "";
}

void predict(const CommandLine& line, const Call& call, const LinkModel& links) {
  std::vector<Prediction> predictions;
  for (const Method& method : methods_of(line, call.request)) {
    PlanRequest request = call.request;
    request.method = method;
    const std::string why_not = obstacle(request, call.width(), links);
    if (!why_not.empty() && line.algorithm == "all") continue;
    require(why_not.empty(), "{}", why_not);
    predictions.push_back({method, {}, 0, {}});
    try {
      predictions.back().result = simulate(request, call.width(), links);
      predictions.back().formula = formula_seconds(request, call.width(), links);
    } catch (const Error& error) {
      if (line.algorithm != "all") throw;
      predictions.back().refusal = error.what();
    }
  }
  std::stable_sort(predictions.begin(), predictions.end(), [](const Prediction& a, const Prediction& b) {
    return a.refusal.empty() != b.refusal.empty() ? a.refusal.empty() : a.result.seconds < b.result.seconds;
  });
  std::size_t width = 6;
  for (const Prediction& prediction : predictions) width = std::max(width, to_string(prediction.method).size());
  std::string head = fmt::format("{:<{}} {:>12} {:>12} {:>10}", "method", width, "us", "formula us", "busbw GB/s");
  for (const LinkLevel& level : links.levels) head += fmt::format(" {:>14}", level.name);
  fmt::print("{} of {}{}, {}, {}; bytes sent at each level\n{}\n", line.collective,
             perf::in_units(static_cast<double>(call.bytes())), quantized_text(call.request), ranks_text(call.request),
             line.links, head);
  for (const Prediction& prediction : predictions) {
    const std::string method = to_string(prediction.method);
    if (!prediction.refusal.empty()) {
      fmt::print("{:<{}} {}\n", method, width, prediction.refusal);
      continue;
    }
    const double seconds = prediction.result.seconds;
    const double busbw = seconds == 0 ? 0
                                      : static_cast<double>(call.bytes()) / seconds * 1e-9 *
                                            bus_factor(call.request.collective, call.request.size);
    std::string row =
        fmt::format("{:<{}} {:>12.3f} {:>12.3f} {:>10.3f}", method, width, seconds * 1e6, prediction.formula * 1e6, busbw);
    for (const std::int64_t bytes : prediction.result.bytes_sent) {
      row += fmt::format(" {:>14}", perf::in_units(static_cast<double>(bytes)));
    }
    fmt::print("{}\n", row);
  }
}

// ---- --svg

int track_of(StepKind kind) { return step_looks()[static_cast<std::size_t>(kind)].track; }

Bar bar_of(int rank, int lane, StepKind kind, int peer, double begin, double end) {
  const std::string label = peer == everybody ? "all" : peer < 0 ? "" : std::to_string(peer);
  return {rank, lane, static_cast<std::size_t>(kind), label, begin, end};
}

// One column a round. Steps of the same rank, lane, round and track share the width of the column.
Picture over_rounds(const PlanRequest& request) {
  Picture picture;
  picture.unit = "round";
  double most = 1;
  for (int rank = 0; rank < ranks_of(request); ++rank) {
    PlanRequest its = request;
    its.rank = rank;
    const Plan plan = make_plan(its);
    for (std::size_t l = 0; l < plan.lanes.size(); ++l) {
      std::size_t begin = 0;
      for (std::size_t round = 0; round < plan.lanes[l].round_ends.size(); ++round) {
        const auto& steps = plan.lanes[l].steps;
        const std::size_t end = plan.lanes[l].round_ends[round];
        double count[3] = {0, 0, 0};
        double at[3] = {0, 0, 0};
        for (std::size_t i = begin; i < end; ++i) most = std::max(most, ++count[track_of(steps[i].kind)]);
        for (; begin < end; ++begin) {
          const Step& step = steps[begin];
          const int where = track_of(step.kind);
          const double from = static_cast<double>(round) + 0.04 + 0.92 * at[where]++ / count[where];
          picture.bars.push_back(bar_of(rank, static_cast<int>(l), step.kind, step.peer, from, from + 0.92 / count[where]));
        }
      }
    }
  }
  picture.pixels_a_unit = std::clamp(20 * most, 44.0, 600.0);
  return picture;
}

Picture over_time(const PlanRequest& request, std::int64_t width, const LinkModel& links) {
  const Simulation result = simulate(request, width, links, {.timeline = true});
  Picture picture;
  picture.unit = "us";
  picture.pixels_a_unit = 1100 / std::max(result.seconds * 1e6, 1e-6);
  for (const TimedStep& step : result.timeline) {
    picture.bars.push_back(bar_of(step.rank, step.lane, step.kind, step.peer, step.begin * 1e6, step.end * 1e6));
  }
  return picture;
}

void draw(const CommandLine& line, const Call& call) {
  const std::vector<Method> methods = methods_of(line, call.request);
  require(methods.size() == 1, "--svg draws one algorithm; name it with --algo.");
  require(ranks_of(call.request) <= 64, "--svg draws up to 64 ranks, not {}; choose fewer.", ranks_of(call.request));
  PlanRequest request = call.request;
  request.method = methods.front();
  Picture picture =
      line.links.empty() ? over_rounds(request) : over_time(request, call.width(), link_model_from_file(line.links));
  picture.ranks = ranks_of(request);
  picture.looks = step_looks();
  picture.remark = "numbers: the peer";
  picture.title = fmt::format("{} by {}, {}, {}{}", line.collective, to_string(request.method), ranks_text(request),
                              perf::in_units(static_cast<double>(call.bytes())), quantized_text(request));
  if (has_root(request.collective)) picture.title += fmt::format(", root {}", request.root);
  perf::write_file("--svg", line.svg, svg_of(picture));
}

void run(const CommandLine& line) {
  if (line.verify) return verify_all(line);
  const Call call = call_of(line);
  if (line.explain) return explain(line, call);
  if (!line.svg.empty()) draw(line, call);
  if (!line.links.empty()) {
    predict(line, call, link_model_from_file(line.links));
  } else if (line.svg.empty()) {
    for (const Method& method : methods_of(line, call.request)) print_plan(line, call, method);
  }
}

}  // namespace
}  // namespace plan_tool

int main(int argc, char** argv) {
  return apps::exit_status([&] {
    stretto::check_settings();
    const std::string first = argc > 1 ? argv[1] : "";
    for (const auto& [word, plan] : {std::pair{"step", &plan_tool::plan_step_of},
                                     {"pipeline", &plan_tool::plan_pipeline_of},
                                     {"attention", &plan_tool::plan_attention_of},
                                     {"layout", &plan_tool::plan_layout_of},
                                     {"move", &plan_tool::plan_move_of}}) {
      if (first != word) continue;
      plan(argc - 1, argv + 1);
      return 0;
    }
    plan_tool::CommandLine line;
    if (plan_tool::parse(argc, argv, line)) plan_tool::run(line);
    return 0;
  });
}
