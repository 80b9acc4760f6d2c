#pragma once
#include <atomic>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <tuple>

#include "collectives/communicator/call_check.hpp"
#include "collectives/communicator/rank_context.hpp"
#include "collectives/execution/gpu_watch.hpp"
#include "collectives/execution/shared_memory.hpp"
#include "collectives/plan/node_sizes.hpp"
#include "collectives/selection/select.hpp"
#include "stretto/communicator.hpp"
#include "transport/links.hpp"

namespace stretto {

class InlineFastPath;

// What the handles of one communicator share.
class Communicator::Group {
 public:
  Group(std::shared_ptr<RankContext> context, Membership membership, int area_members, std::string name);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return links_.membership().rank; }
  int size() const { return static_cast<int>(links_.membership().job_ranks.size()); }
  const std::string& name() const { return name_; }
  RankContext& context() { return *context_; }
  const std::shared_ptr<RankContext>& shared_context() const { return context_; }
  const Membership& membership() const { return links_.membership(); }
  Links& links() { return links_; }
  CallCheck& call_check() { return call_check_; }
  const std::vector<int>& nodes() const { return nodes_; }

  // Planned anew or found among those that were. Throws what make_plan() throws. device: where its buffers are; the first
  // call for GPUs is collective.
  std::shared_ptr<const PlannedCall> plan_for(const Call& call, const OperationOptions& options, Device device);
  // The same without a plan, and without communication.
  void check(const Call& call, const OperationOptions& options, Device device);
  Estimate estimate(const Call& call, const OperationOptions& options, Device device);
  PlanRequest request_of(const Call& call, const OperationOptions& options) const;
  // Whether none of its operations is under way or in a stream, and one may begin in the calling thread.
  bool is_idle() const {
    return next_turn_.load(std::memory_order_acquire) == current_turn_.load(std::memory_order_acquire) &&
           !broken_.load(std::memory_order_relaxed);
  }
  void give_up();             // an operation has failed in the middle: the communicator is unusable
  void check_usable() const;  // throws why it is not
  FastPathLog& fast_path_log() { return *fast_path_log_; }
  InlineFastPath* fast_path() { return fast_path_.get(); }  // none where members are on several hosts, or calls are compared
  GpuLinks* gpu_links() { return gpu_links_.get(); }        // none before the first call for GPUs
  GpuWatch& gpu_watch() { return *gpu_watch_; }
  SharedMemory* shared_memory() { return shared_memory_.get(); }  // none where members are on several hosts

  // Operations of one communicator run one at a time, in the order of the calls, whatever their streams. A turn that is
  // given back unused (its operation failed, or never ran because its stream had failed) makes the communicator unusable:
  // the other ranks count on that operation.
  class Turn {
   public:
    explicit Turn(std::shared_ptr<Group> group);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    void wait();
    void done() { finish(false); }
    const std::shared_ptr<Group>& group() const { return group_; }

   private:
    void finish(bool failed);
    std::shared_ptr<Group> group_;
    std::uint64_t number_;
    bool done_ = false;
  };

 private:
  static constexpr std::size_t most_plans = 256;
  using PlanKey = std::tuple<Collective, Method, std::int64_t, int, DType, ReduceOp, std::vector<std::int64_t>,
                             std::vector<std::int64_t>, QuantizedFormat, QuantizedFormat, bool, Device>;

  std::shared_ptr<const PlannedCall> make_planned(const Call& call, const OperationOptions& options) const;
  std::shared_ptr<const PlannedCall> planned_on_gpus(const Call& call, const OperationOptions& options) const;
  // nccl_serves: where the links are not made yet, what is to be taken for it.
  Choice choice_on_gpus(const Call& call, const OperationOptions& options, bool nccl_serves) const;
  PlanVariant way_of(const Call& call, PlanRequest request, bool may_be_plain, bool symmetric) const;
  PlanVariant way_of(const Call& call, PlanRequest request, const Choice& choice) const;
  void join_gpus();
  bool ends_in_trouble();

  std::shared_ptr<RankContext> context_;
  Links links_;
  CallCheck call_check_;
  std::string name_;
  std::shared_ptr<FastPathLog> fast_path_log_;
  std::unique_ptr<SharedMemory> shared_memory_;
  std::unique_ptr<InlineFastPath> fast_path_;
  int exceptions_at_start_ = std::uncaught_exceptions();
  std::mutex joining_;
  std::unique_ptr<GpuLinks> gpu_links_;
  std::unique_ptr<GpuWatch> gpu_watch_;
  std::vector<int> nodes_;  // of the members, counted from 0
  NodeSizes node_sizes_;
  std::mutex plans_mutex_;
  std::map<PlanKey, std::shared_ptr<const PlannedCall>> plans_;
  std::mutex mutex_;
  std::condition_variable turn_changed_;
  // Written under the mutex, read without it by operations that run at once.
  std::atomic<std::uint64_t> next_turn_ = 0;
  std::atomic<std::uint64_t> current_turn_ = 0;
  std::atomic<bool> broken_ = false;
};

// Whether this thread's calls are being collected by an OperationGroup.
bool in_operation_group();
// While it lives, this thread's calls are not.
class OutsideOperationGroups {
 public:
  OutsideOperationGroups();
  ~OutsideOperationGroups();
  OutsideOperationGroups(const OutsideOperationGroups&) = delete;
  OutsideOperationGroups& operator=(const OutsideOperationGroups&) = delete;

 private:
  int depth_;
};

// Collective: the communicator of all ranks of the job. may_pin: see Network.
Communicator world_of(std::unique_ptr<Job> job, bool may_pin = false, const std::string& name = "world");

}  // namespace stretto
