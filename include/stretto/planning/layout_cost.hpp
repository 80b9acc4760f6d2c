#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "stretto/models/training_options.hpp"
#include "stretto/planning/stage_plan.hpp"
#include "stretto/planning/training_cluster.hpp"

// Predicts the time of a training step in a layout, on a cluster that need not exist. All functions are pure: no rank
// communicates or computes. docs/layout.md describes the model, and compares it with published runs.
//
// The model. A block's forward, its backward for activations and its backward for weights take the time of their products
// (TrainingCluster::product_seconds), of attention (attention_cost.hpp), and of the tensors that their other kernels read
// and write. Exchanges between tensor-parallel ranks take the time of the cluster's fastest method (cost.hpp) on the links
// of their group, less the part that runs beside a product. The schedule's simulation (overlap/schedule.hpp) puts these
// times of all parts of the model together, with messages between stages. After it come the sums of gradients that the last
// microbatch's backward does not hide, the update, and the gathers of values that the first forward does not hide. Of a
// schedule without a flush it is the time of a window while it repeats, with all updates of the window and the sums in front
// of each, which nothing hides unless stages update jointly.
namespace stretto {

struct LayoutCost {
  double seconds = 0;  // of a step
  double tokens_per_second = 0;
  double flops_per_second =
      0;                 // of the model (DecoderShape::flops_per_token), for each device: recomputation does not count
  double mfu = 0;        // of the device's peak
  double computing = 0;  // seconds, of the stage that computes longest, without the update
  double update = 0;     // seconds of the optimizer
  double waiting = 0;    // seconds in which the busiest stage waits for other stages
  // By how much the pipeline takes longer than its busiest stage, relative to that stage's time: 0.1 is 10%.
  double bubble = 0;
  // Seconds of communication that nothing hides, by group (group_name): "tp", "cp" and "ulysses" of the stage that is
  // busiest; "dp" of sums and gathers, with the token axes; "pp" of the table that the ends of a pipeline share. And of
  // reads and writes: "files".
  std::map<std::string, double> exposed;
  TrainingMemory memory;  // of the stage that needs most, as plan_stage() says
  int memory_stage = 0;
};

// Predicts layouts of one model on one cluster, and keeps the results that layouts have in common. All layouts must have the
// same types, adapters, mask and sharding options but for the ZeRO stage and what lies in files. Used by one thread at a
// time.
class STRETTO_API LayoutCosts {
 public:
  // The ranks of all layouts together must be `ranks`.
  LayoutCosts(const DecoderShape& model, const TrainingCluster& cluster, std::int64_t ranks,
              const TrainingSystem& system = {});
  ~LayoutCosts();
  LayoutCosts(const LayoutCosts&) = delete;
  LayoutCosts& operator=(const LayoutCosts&) = delete;

  // All throw Error(invalid_argument) for a layout whose groups would lie unevenly on the cluster's nodes, or whose types
  // or adapters are not those of earlier layouts, or whose adapters' base is stored. The layout must pass its check_sizes();
  // its schedule must be a generator's, not a file's.
  void check(const MeshShape& mesh) const;
  // The memory of the stage that needs most. Exact (plan_stage()); for pipelines, except gpipe, computed from a schedule
  // with only as many microbatches as are ever in flight.
  TrainingMemory memory(const TrainingOptions& layout, int* stage = nullptr);
  // A lower bound of memory(), which takes less time: the larger one of the first and the last stage.
  std::int64_t least_memory(const TrainingOptions& layout);
  // A lower bound of cost().seconds, which takes less time: no schedule is simulated.
  double least_seconds(const TrainingOptions& layout);
  // Steps of more than three microbatches a stage are simulated with fewer, and continued at the same pace.
  LayoutCost cost(const TrainingOptions& layout);
  LayoutCost time(const TrainingOptions& layout);  // the same without memory, which takes longer

 private:
  class Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace stretto
