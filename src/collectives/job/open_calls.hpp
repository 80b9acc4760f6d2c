#pragma once
#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "stretto/ledger.hpp"
#include "stretto/stream.hpp"
#include "transport/bootstrap/job.hpp"

namespace stretto {

// Equal on all ranks that take part in the operation. group_id: Partners::group_id.
OperationId id_of(const Record& record, std::uint64_t group_id, int rank_in_group);

// An operation that this rank has called, and that has not ended.
struct OpenCall {
  OperationId id;
  std::string text;                // for error messages
  std::vector<int> ranks;          // the ranks of the job that take part
  std::vector<const void*> order;  // the streams and communicators that run it in order
  std::shared_ptr<Work::State> work;
  bool begun = false;
};

// The open calls of a rank, for STRETTO_CHECK=1: they tell whether an operation can begin on this rank only after another
// one has ended. If such waits form a cycle of ranks, none of them will ever end. Any thread may call any function.
class OpenCalls {
 public:
  // A call, from now until this object is destroyed. `calls` must outlive it.
  class Place {
   public:
    Place(OpenCalls& calls, OpenCall call);
    ~Place();
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    const OpenCall& call() const { return *at_; }
    void begin();

   private:
    OpenCalls& calls_;
    std::list<OpenCall>::iterator at_;
  };

  // The operation that has begun and must end before `wanted` begins: the first one that `rank` (of the job) takes part in,
  // or else the first.
  std::optional<OpenCall> in_the_way_of(const OperationId& wanted, int rank) const;
  // Whether `later` can only begin when the open call `first` has ended.
  bool comes_after(const OperationId& later, const OpenCall& first) const;

 private:
  bool is_behind(const OperationId& later, const OpenCall& first) const;  // under the mutex, like the following
  bool only_caller_waits_for(const OpenCall& call) const;

  mutable std::mutex mutex_;
  std::list<OpenCall> calls_;                                // in the order of the calls
  std::map<std::uint64_t, std::uint64_t> called_;            // the last number called, by OperationId::series
  std::shared_ptr<std::atomic<const Work::State*>> caller_;  // the work that the only calling thread waits for
  bool several_callers_ = false;
};

}  // namespace stretto
