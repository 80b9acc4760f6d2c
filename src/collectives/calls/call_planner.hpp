#pragma once
#include <compare>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collectives/execution/execution.hpp"
#include "collectives/job/node_sizes.hpp"
#include "collectives/ledger/fast_path_log.hpp"
#include "collectives/selection/select.hpp"
#include "stretto/communicator.hpp"
#include "transport/gpu/gpu_collectives.hpp"

namespace stretto {

// Plans the calls of one communicator: chooses the algorithm, makes the plan, and prepares the ledger's record. Keeps the
// plans.
class CallPlanner {
 public:
  // selector, links and log must outlive this object. communicator: its name.
  CallPlanner(const Selector& selector, Links& links, FastPathLog& log, std::string communicator);

  // Must be called before the first call for GPUs. whole: the collectives that the links between GPUs perform as one
  // operation; null: none.
  void join_gpus(const GpuCollectives* whole);

  // Makes the plans, or finds those that were made before for an equal call. Throws what make_plan() throws. device: where
  // the call's buffers lie; for a GPU, join_gpus() must have been called.
  std::shared_ptr<const PlannedCall> plan_for(const Call& call, const OperationOptions& options, Device device);
  // The same for a plan of the caller's own, which must be checked (check_plan).
  std::shared_ptr<const PlannedCall> planned_of(const Call& call, const Plan& plan) const;
  void forget_plans();
  // Throws what plan_for() would throw. Needs neither join_gpus() nor the buffers.
  void check(const Call& call, const OperationOptions& options, Device device);
  // See Communicator::estimate().
  Estimate estimate(const Call& call, const OperationOptions& options, Device device);

  // The request as the caller made it, before a method is chosen.
  PlanRequest request_of(const Call& call, const OperationOptions& options) const;
  const std::vector<int>& nodes() const { return nodes_; }  // of each member, counted from 0

 private:
  static constexpr std::size_t most_plans = 256;
  struct PlanKey {
    Collective collective;
    Method method;
    std::int64_t count;
    int root;
    DType dtype;
    ReduceOp op;
    std::vector<std::int64_t> counts, receive_counts;
    QuantizedFormat format, result;
    bool only_if_faster;
    int servers;
    Device device;
    auto operator<=>(const PlanKey&) const = default;  // NOLINT(modernize-use-nullptr): the zero is the standard's
  };
  // For a communicator without links between GPUs: which links to assume.
  enum class AssumedLinks { none, expected, best };

  int rank() const { return links_.membership().rank; }
  int size() const { return static_cast<int>(links_.membership().job_ranks.size()); }
  NodeSizes node_sizes_of(int first_ranks) const;
  std::shared_ptr<const PlannedCall> plan_on_host(const Call& call, const OperationOptions& options) const;
  std::shared_ptr<const PlannedCall> plan_on_gpus(const Call& call, const OperationOptions& options) const;
  Choice choose_on_gpus(const Call& call, const OperationOptions& options, AssumedLinks assumed) const;
  PlanVariant variant_of(const Call& call, PlanRequest request, const Choice& choice) const;
  // own: the plan is the caller's.
  PlanVariant variant_with(const Call& call, Plan plan, DType wire, std::size_t packet_bytes, bool own) const;

  const Selector& selector_;
  Links& links_;
  FastPathLog& log_;
  std::string communicator_;
  std::vector<int> nodes_;
  NodeSizes node_sizes_;
  bool has_gpu_links_ = false;
  const GpuCollectives* whole_ = nullptr;
  std::mutex mutex_;
  std::map<PlanKey, std::shared_ptr<const PlannedCall>> plans_;
};

}  // namespace stretto
