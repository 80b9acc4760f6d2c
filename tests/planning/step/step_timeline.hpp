#pragma once
#include <fmt/format.h>

#include <algorithm>

#include "planning/step/step_simulation.hpp"

namespace stretto {

// The begin of a task's first piece and the end of its last one.
struct Times {
  double begin = 1e9, end = -1e9;
};
// Refers to the graph and the simulated tasks.
class Timeline {
 public:
  Timeline(const StepGraph& graph, const StepSchedule& schedule, const std::vector<StepTask>& simulated)
      : graph_(graph), simulated_(simulated), tasks_(2) {
    for (auto& step : tasks_) step.resize(simulated.size());
    const StepTimeline timeline = simulate_step(simulated, {.timeline = true});
    pieces_ = timeline.pieces;
    for (const StepTimeline::Piece& piece : timeline.pieces) {
      Times& times = tasks_[piece.step][piece.task];
      times = {std::min(times.begin, piece.begin), std::max(times.end, piece.end)};
    }
    unit_.resize(graph.nodes.size());
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) unit_[i] = static_cast<int>(i);
    for (const ScheduledCollective& each : schedule.collectives) {
      for (const int member : each.nodes) unit_[member] = each.nodes.back();
    }
  }

  // Describes a violation of the graph's dependencies or of a resource; empty if there is none.
  std::string fault() const {
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      for (const StepDependency& each : graph_.nodes[i].after) {
        const std::string wrong = fault_of(static_cast<int>(i), each);
        if (!wrong.empty()) return wrong;
      }
    }
    return fault_of_resources();
  }

  // The largest number of gathers that have begun and whose last use has not ended.
  int most_live() const {
    std::vector<std::pair<double, int>> edges;
    for (int step = 0; step < 2; ++step) {
      for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
        const auto& collective = graph_.nodes[i].collective;
        if (!collective || collective->payload != Payload::parameter) continue;
        double until = -1;
        for (std::size_t user = 0; user < graph_.nodes.size(); ++user) {
          for (const StepDependency& each : graph_.nodes[user].after) {
            if (each.node == static_cast<int>(i) && each.steps_back == 0) {
              until = std::max(until, end(chunks(step, static_cast<int>(user))));
            }
          }
        }
        edges.emplace_back(begin(chunks(step, static_cast<int>(i))), 1);
        edges.emplace_back(until, -1);
      }
    }
    std::sort(edges.begin(), edges.end());  // at equal times, ends come first
    int live = 0, most = 0;
    for (const auto& [when, change] : edges) most = std::max(most, live += change);
    return most;
  }

 private:
  // The times of each chunk; a chunk of no duration is left out.
  std::vector<Times> chunks(int step, int node, bool postponed = false) const {
    std::vector<Times> found;
    for (std::size_t task = 0; task < simulated_.size(); ++task) {
      if (simulated_[task].node != unit_[node] || simulated_[task].postponed != postponed) continue;
      if (tasks_[step][task].end >= 0) found.push_back(tasks_[step][task]);
    }
    return found;
  }
  static double begin(const std::vector<Times>& chunks) {
    double first = 1e9;
    for (const Times& each : chunks) first = std::min(first, each.begin);
    return first;
  }
  static double end(const std::vector<Times>& chunks) {
    double last = -1e9;
    for (const Times& each : chunks) last = std::max(last, each.end);
    return last;
  }

  // Each chunk begins after the other node's chunk that holds the last of its rows.
  static bool in_order(const std::vector<Times>& own, const std::vector<Times>& other, bool makes) {
    for (std::size_t chunk = 0; chunk < own.size(); ++chunk) {
      const std::size_t needed = makes ? (chunk + 1) * other.size() / own.size() - 1 : chunk * other.size() / own.size();
      if (!other.empty() && own[chunk].begin + slack < other[needed].end) return false;
    }
    return true;
  }

  std::string fault_of(int node, const StepDependency& each) const {
    const StepNode& own = graph_.nodes[node];
    const StepNode& other = graph_.nodes[each.node];
    const auto along = [](const StepNode& computation, const StepNode& collective) {
      return !computation.collective && computation.divisible && collective.collective &&
             collective.collective->payload == Payload::activation;
    };
    const bool makes = along(other, own);
    const bool by_chunks = each.steps_back == 0 && (along(own, other) || makes);
    for (int step = each.steps_back; step < 2; ++step) {
      const auto its = chunks(step, node), before = chunks(step - each.steps_back, each.node);
      if (by_chunks ? !in_order(its, before, makes) : begin(its) + slack < end(before)) {
        return fmt::format("{} begins before {} has ended", own.name, other.name);
      }
      // Parameters that were updated by shares need a gather.
      if (own.phase == Phase::update) continue;
      for (const StepDependency& gradient : other.after) {
        if (begin(its) + slack < end(chunks(step - each.steps_back, gradient.node, true))) {
          return fmt::format("{} begins before its parameters are gathered", own.name);
        }
      }
    }
    return "";
  }

  std::string fault_of_resources() const {
    for (const StepResource resource : {StepResource::compute, StepResource::inside, StepResource::between}) {
      std::vector<std::pair<double, double>> busy;
      for (const StepTimeline::Piece& piece : pieces_) {
        if (piece.resource == resource) busy.emplace_back(piece.begin, piece.end);
      }
      std::sort(busy.begin(), busy.end());
      for (std::size_t i = 1; i < busy.size(); ++i) {
        if (busy[i].first + 1e-12 < busy[i - 1].second) return fmt::format("{} does two things at once", name(resource));
      }
    }
    return "";
  }

  static constexpr double slack = 1e-12;
  const StepGraph& graph_;
  const std::vector<StepTask>& simulated_;
  std::vector<std::vector<Times>> tasks_;  // by step
  std::vector<StepTimeline::Piece> pieces_;
  std::vector<int> unit_;  // by node, the node that owns its tasks: a bucket's last
};

}  // namespace stretto
