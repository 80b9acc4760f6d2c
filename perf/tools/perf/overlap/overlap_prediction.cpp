#include "perf/overlap/overlap_prediction.hpp"

#include <algorithm>

#include "common/fail.hpp"
#include "stretto/overlap/rehearsal.hpp"

namespace perf {

using stretto::Communicator;
using stretto::Rehearsal;

namespace {

constexpr double usual_latency =
    100e-6;  // of a collective apart from its bytes: the hand-over to a stream's thread, and a message

// Derived from steps that only communicate: their time is the collectives' latencies and that of the bytes. The latencies
// count as half of it at most, since operations of a few bytes may take less than the usual latency.
struct LinkSpeed {
  double latency = 0, bytes_per_second = 0;
};
LinkSpeed speed_of_links(const Communicator& world, OverlapCase& overlap_case, double bytes_per_step) {
  const std::uint64_t first = world.job().ledger().next_sequence();
  const double seconds = seconds_per_step(world, overlap_case, Rehearsal::communication);
  // This includes the barrier in front.
  const double collectives = (static_cast<double>(world.job().ledger().traffic(first).operations) - 1) / timed_steps;
  require(collectives > 0,
          "A step of {} ranks that communicates nothing says nothing about links, so that none can be predicted.",
          world.size());
  LinkSpeed speed;
  speed.latency = std::min(usual_latency, seconds / 2 / collectives);
  speed.bytes_per_second = bytes_per_step / (seconds - collectives * speed.latency);
  return speed;
}

// All ranks plan with the times of rank 0.
void take_rank0s(const Communicator& world, Planned& planned, LinkSpeed& speed) {
  std::vector<double*> all{&speed.latency, &speed.bytes_per_second};
  for (stretto::StepGraph* const graph : {&planned.graph, &planned.running}) {
    for (stretto::StepNode& node : graph->nodes) all.push_back(&node.seconds);
  }
  std::vector<double> seconds;
  for (const double* const each : all) seconds.push_back(*each);
  world
      .broadcast(seconds.data(), seconds.data(), static_cast<std::int64_t>(seconds.size()), stretto::DType::f64, 0,
                 stretto::Stream::inline_())
      .wait();
  for (std::size_t i = 0; i < all.size(); ++i) *all[i] = seconds[i];
}

}  // namespace

std::optional<Prediction> predict(const Communicator& world, OverlapCase& overlap_case, double bytes_per_step) {
  if (overlap_case.clock() == nullptr || world.size() == 1) return std::nullopt;
  overlap_case.clock()->clear();
  seconds_per_step(world, overlap_case, Rehearsal::computation);
  auto planned = overlap_case.planned();
  LinkSpeed speed = speed_of_links(world, overlap_case, bytes_per_step);
  take_rank0s(world, *planned, speed);
  const stretto::StepCluster cluster = stretto::simple_cluster(world.size(), speed.latency, speed.bytes_per_second);
  return Prediction{schedule_step(planned->running, cluster, planned->knobs).predicted_seconds,
                    plan_step(planned->graph, cluster, {.may_chunk_compute = false, .may_reorder_compute = false})};
}

}  // namespace perf
