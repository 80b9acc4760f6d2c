#pragma once
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "collectives/calls/call_check.hpp"
#include "collectives/calls/call_planner.hpp"
#include "collectives/communicator/inline_fast_path.hpp"
#include "collectives/communicator/turns.hpp"
#include "collectives/execution/gpu_watch.hpp"
#include "collectives/execution/shared_memory.hpp"
#include "collectives/job/rank_context.hpp"
#include "collectives/ledger/fast_path_log.hpp"
#include "core/forks.hpp"
#include "device/rehearsal_mode.hpp"
#include "stretto/communicator.hpp"
#include "transport/links.hpp"

namespace stretto {

// The state that all handles of one communicator share.
class Communicator::Group {
 public:
  // area_members: see Links. A child of fork() never destroys a group of its parent, which would leave the parent's job.
  static std::shared_ptr<Group> make(std::shared_ptr<RankContext> context, Membership membership, int area_members,
                                     std::string name);
  // What a rank tells the other members of a group that they make.
  struct Place {
    std::int64_t job_rank = 0;
    std::uint64_t number = 0;  // of the group, should this be its first member
    Area area;
  };
  // A group is made in two parts, between which each member gets the places of all, in the order of their ranks: split()
  // brings them, or somebody else. area_members: see Links. A place that is not used stays reserved.
  static Place reserve_place(RankContext& context, int area_members);
  static std::shared_ptr<Group> at_places(std::shared_ptr<RankContext> context, const std::vector<Place>& places,
                                          int area_members, std::string name);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  static Group& of(const Communicator& communicator) { return communicator.group(); }

  // Throws in a child of fork() that has inherited the group.
  void check_process() const {
    if (forks_ != forks) [[unlikely]]
      refuse_process();
  }
  int rank() const { return links_.membership().rank; }
  int size() const { return static_cast<int>(links_.membership().job_ranks.size()); }
  const std::string& name() const { return name_; }
  RankContext& context() { return *context_; }
  const std::shared_ptr<RankContext>& shared_context() const { return context_; }
  const Membership& membership() const { return links_.membership(); }
  Links& links() { return links_; }
  Turns& turns() { return turns_; }
  CallCheck& call_check() { return call_check_; }
  CallPlanner& planner() { return planner_; }
  SharedMemory* shared_memory() { return shared_memory_.get(); }  // null if the members are on several hosts
  // The fast path for operations on `stream`. Null if the stream is not inline, if the members are on several hosts, if
  // calls are compared (STRETTO_CHECK), and while a rehearsal skips communication.
  InlineFastPath* fast_path(const Stream& stream) {
    if (!stream.is_inline() || rehearsal_mode.skip_communication) return nullptr;
    return fast_path_ ? fast_path_.get() : make_fast_path();
  }

  // Later calls are planned anew. Every communicator that is used again has to forget its plans when the selector's costs or
  // rules have changed, at the same place in all ranks' calls and beside no call of another thread. Otherwise ranks that
  // kept unequally many plans begin at different calls to choose by what is new, and wait for each other for ever.
  void forget_plans() {
    planner_.forget_plans();
    fast_path_.reset();
  }

  // Makes the links between GPUs at the first call, which is collective.
  void join_gpus(const ExchangeBytes& exchange_bytes);
  GpuLinks* gpu_links() { return gpu_links_.get(); }  // null before join_gpus()
  GpuWatch& gpu_watch() { return *gpu_watch_; }

  // STRETTO_CHECK: while an object of this class lives, a call of another thread throws, and tells all ranks.
  class OnlyCaller {
   public:
    OnlyCaller(Group& group, Collective call);
    ~OnlyCaller();
    OnlyCaller(const OnlyCaller&) = delete;
    OnlyCaller& operator=(const OnlyCaller&) = delete;

   private:
    Group* entered_ = nullptr;  // null if calls are not checked, or for a call within another
  };

 private:
  Group(std::shared_ptr<RankContext> context, Membership membership, int area_members, std::string name);
  InlineFastPath* make_fast_path();  // null where there is none
  bool ends_in_trouble();
  [[noreturn]] void refuse_process() const;

  std::shared_ptr<RankContext> context_;
  Links links_;
  std::string name_;
  Turns turns_;
  CallCheck call_check_;
  std::shared_ptr<FastPathLog> fast_path_log_;
  CallPlanner planner_;
  std::unique_ptr<SharedMemory> shared_memory_;
  std::unique_ptr<InlineFastPath> fast_path_;  // null until it is first used: it takes 20 KB
  std::atomic<std::thread::id> caller_{};
  int forks_ = forks;
  int exceptions_at_start_ = std::uncaught_exceptions();
  std::mutex joining_;
  std::unique_ptr<GpuLinks> gpu_links_;
  std::unique_ptr<GpuWatch> gpu_watch_;
};

// The returned pointer keeps the communicator alive.
inline std::shared_ptr<Turns> turns_of(const std::shared_ptr<Communicator::Group>& group) {
  return {group, &group->turns()};
}

// Collective: the communicator of all ranks of the job. If an exchange of the job fails, the job can still shrink. may_pin:
// see Network.
Communicator world_of(std::shared_ptr<JobControl> job, bool may_pin = false, const std::string& name = "world");

}  // namespace stretto
