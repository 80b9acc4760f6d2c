#include "overlap_prediction.hpp"

#include "stretto/overlap/rehearsal.hpp"

namespace perf {

using stretto::Communicator;
using stretto::Rehearsal;

namespace {

constexpr int steps = 3;
constexpr double latency = 100e-6;  // of a collective beside its bytes: a hand-over to a stream's thread, and a message

double seconds_of_steps(const Communicator& world, OverlapCase& what, Rehearsal way) {
  world.barrier(stretto::Stream::inline_());
  const stretto::RehearsalScope scope(way);
  const double from = stretto::now_seconds();
  for (int i = 0; i < steps; ++i) what.step();
  what.finish();
  return (stretto::now_seconds() - from) / steps;
}

// All ranks plan with rank 0's times.
void take_rank0s(const Communicator& world, stretto::StepGraph& graph, double& bytes_per_second) {
  std::vector<double> seconds{bytes_per_second};
  for (const stretto::StepNode& node : graph.nodes) seconds.push_back(node.seconds);
  world.broadcast(seconds.data(), seconds.data(), static_cast<std::int64_t>(seconds.size()), stretto::DType::f64, 0,
                  stretto::Stream::inline_());
  bytes_per_second = seconds[0];
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) graph.nodes[i].seconds = seconds[i + 1];
}

}  // namespace

std::optional<Prediction> predict(const Communicator& world, OverlapCase& what, double bytes_per_step) {
  if (what.clock() == nullptr || world.size() == 1) return std::nullopt;
  what.clock()->clear();
  seconds_of_steps(world, what, Rehearsal::computation);
  auto planned = what.planned();
  double bytes_per_second = bytes_per_step / seconds_of_steps(world, what, Rehearsal::communication);
  take_rank0s(world, planned->graph, bytes_per_second);
  const stretto::StepCluster cluster = stretto::simple_cluster(world.size(), latency, bytes_per_second);
  return Prediction{schedule_step(planned->graph, cluster, planned->knobs).predicted_seconds,
                    plan_step(planned->graph, cluster, {.may_chunk_compute = false, .may_reorder_compute = false})};
}

}  // namespace perf
