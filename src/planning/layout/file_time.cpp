#include "planning/layout/file_time.hpp"

#include <algorithm>

#include "core/fail.hpp"

namespace stretto {

FileTraffic file_traffic(const TrainingOptions& layout, const StateElements& elements) {
  const ShardedParameters::Options& options = layout.sharding;
  const ShardedParameters::Options::Offload& offload = options.offload;
  const auto in_file = [](const ShardedParameters::Options::InFile& its) {
    return its.directory.empty() ? 0 : 1 - its.ratio;
  };
  const OptimizerKind kind = kind_of(layout.optimizer);
  const auto values = static_cast<double>(size_of(options.dtype)) * in_file(offload.values);
  const auto gradients = static_cast<double>(size_of(options.gradients())) * in_file(offload.gradients);
  const double state =
      static_cast<double>(kind.state_bytes(options.dtype, kind.whole_matrices)) * in_file(offload.optimizer);
  const double part = options.zero == ZeroStage::none ? 1 : 1.0 / layout.mesh.ranks_over(token_axes);
  const auto microbatches = static_cast<double>(layout.microbatches());
  const double gathers = microbatches * (layout.recompute.level == Recompute::full ? 3 : 2);
  FileTraffic traffic;
  // Sums are written in each microbatch, and read by each but the first.
  traffic.passes = part * (elements.all * values * gathers + elements.trained * gradients * (2 * microbatches - 1));
  if (!layout.recompute.directory.empty()) {
    const MeshShape& mesh = layout.mesh;
    const double tokens = static_cast<double>(layout.micro_batch * layout.model.sequence) /
                          (mesh[Axis::ring] * mesh[Axis::ulysses] * (layout.divides_rows ? mesh[Axis::tensor] : 1));
    const double blocks = static_cast<double>(layout.model.layers) / mesh[Axis::pipeline];
    traffic.passes += 2 * microbatches * tokens * blocks * static_cast<double>(layout.model.hidden) *
                      static_cast<double>(size_of(options.dtype));
  }
  // Also before the update, for the exchange; of Muon the matrices alone, so that this is more than it takes.
  const double visits = kind.whole_matrices || kind.momentum_exchange ? 2 : 1;
  traffic.update = part * elements.trained * (visits * (2 * state + gradients) + 2 * values);
  if (kind.momentum_exchange && layout.clip_norm > 0) traffic.update += part * elements.trained * state;  // for the norm
  traffic.shown = part * elements.trained * 2 * values;
  const auto width = static_cast<double>(size_of(options.gradients()));
  const double unit =
      std::min(elements.trained, std::max(static_cast<double>(options.bytes_of_unit()) / width, elements.matrix));
  traffic.first_and_last = part * unit * (2 * state + 2 * values + gradients);
  return traffic;
}

double file_seconds(const TrainingOptions& layout, const StateElements& elements, const StepComputing& computing,
                    const TrainingCluster& cluster) {
  const FileTraffic traffic = file_traffic(layout, elements);
  if (traffic.all() == 0) return 0;
  require(cluster.file_bytes_per_second > 0,
          "The cluster does not say how fast its files are, in which state of the layout lies; give it \"file_gbs\".");
  const auto seconds = [&](double bytes) { return bytes / cluster.file_bytes_per_second; };
  const ShardedParameters::Options& options = layout.sharding;
  if (!options.overlap) return seconds(traffic.all());
  const auto beyond = [&](double bytes, double hidden) { return std::max(0.0, seconds(bytes) - hidden); };
  // An update apart runs beside passes, and one that speculates beside the last backward only.
  const double apart = beyond(traffic.all() - traffic.shown, computing.passes + computing.update) + seconds(traffic.shown);
  if (options.updates_behind()) return apart;
  if (options.offload.speculates) {
    const double late =
        beyond(traffic.update - traffic.shown, computing.last_backward + computing.update) + seconds(traffic.shown);
    return std::max(apart, late) + seconds(traffic.first_and_last / 2);
  }
  return beyond(traffic.passes, computing.passes) + beyond(traffic.update, computing.update) +
         seconds(traffic.first_and_last);
}

}  // namespace stretto
