#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "stretto/error.hpp"

// The ranks of one job before and beside the fast transports: here they exchange addresses, and learn that a rank has died.
namespace stretto {

using Bytes = std::vector<std::byte>;

// shrink() throws it if rank 0 is lost: no rank can go on then, and launch() ends rank 0, too.
class LostRank0 : public Error {
 public:
  explicit LostRank0(const std::string& sentence) : Error(ErrorCode::unavailable, sentence) {}
};

// An operation, under the same name on all ranks that take part in it.
struct OperationId {
  std::uint64_t series = 0;  // the collectives of one communicator, or the messages from one member to another
  std::uint64_t number = 0;  // in it, from 1 on; 0: no operation
  bool operator==(const OperationId&) const = default;
};

// A rank's answer to another rank that asks what it is doing.
struct RankAccount {
  std::string text;            // the end of a sentence: "has been in ... for 3 s"; empty if the rank has not answered
  std::vector<int> waits_for;  // the ranks for which it has waited long
  // `asked`: the operation of the question. If the rank has not begun it: the operation that holds it up, and the ranks for
  // which it waits there.
  OperationId asked, held_up_in = {};
  std::string held_up_text = {};
  std::vector<int> held_up_by = {};
};

// The functions by which a job asks its rank what it is doing, and tells it of failures. Called from any thread.
class JobObserver {
 public:
  virtual ~JobObserver() = default;
  // Returns an account of what this rank is doing. `rank` asks; if `wanted` is an operation, held_up_in, held_up_text and
  // held_up_by say why this rank has not begun it.
  virtual RankAccount account(int rank, const OperationId& wanted) = 0;
  // The job has failed, or an operation of this rank gives up.
  virtual void trouble(const std::string& sentence) = 0;
};

// Holds a rank's observer. set() returns when no call of the earlier observer is in flight.
class Observed {
 public:
  void set(JobObserver* observer) {
    const std::lock_guard lock(mutex_);
    observer_ = observer;
  }
  RankAccount account(int rank, const OperationId& wanted) {
    const std::lock_guard lock(mutex_);
    return observer_ == nullptr ? RankAccount{"is on its way into or out of the job", {}, wanted}
                                : observer_->account(rank, wanted);
  }
  void trouble(const std::string& sentence) {
    const std::lock_guard lock(mutex_);
    if (observer_ != nullptr) observer_->trouble(sentence);
  }

 private:
  std::mutex mutex_;
  JobObserver* observer_ = nullptr;
};

class JobControl {
 public:
  virtual ~JobControl() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // A random number that only the ranks of this job know.
  virtual std::uint64_t identity() const = 0;

  // Collective: returns every rank's contribution, by rank. Throws if a rank is lost meanwhile, or does not take part within
  // the meeting's time. It throws on all ranks or on none, unless rank 0 is lost, or stopped for longer than that time.
  virtual std::vector<Bytes> exchange(const Bytes& mine) = 0;

  // Throws Error(peer_lost) once any rank has died, Error(peer_gave_up) once one has given up; costs one atomic load
  // otherwise. Every wait calls it.
  virtual void check() const = 0;

  // From now on the job goes on when one of these ranks is lost or gives up: such a rank counts as one that has left. need()
  // takes back one call of it. Rank 0's calls count, and those of other ranks do nothing; rank 0 itself is always needed.
  virtual void do_without(const std::vector<int>& ranks) = 0;
  virtual void need(const std::vector<int>& ranks) = 0;
  // How the job has lost a rank that it does without, as a sentence; empty of others. Other ranks hear of it at once.
  virtual std::string loss_of(int rank) const = 0;

  // Tells all others that this rank gives up, and the reason; their check() then throws.
  virtual void abort(const std::string& reason) = 0;

  // any_left(): whether any rank has called leave(); costs one atomic load. has_left(): whether `rank` has, and so takes
  // part in nothing any more. Ranks of other processes learn of it within a few seconds.
  virtual bool any_left() const = 0;
  virtual bool has_left(int rank) const = 0;
  // A sentence about a rank that others wait for, such as "Rank 2 (process 17 on node7) shows no sign of life for 12 s: ..."
  virtual std::string news_of(int rank) const = 0;

  // Collective, the last call: returns when every rank has called it or is lost, so that no rank takes away memory or
  // connections that another one still uses. A rank that has waited for `timeout` seconds tells the others that it is gone,
  // and returns. Never throws.
  virtual void leave(double timeout = no_limit) = 0;
  static constexpr double no_limit = 1e9;  // seconds

  struct Survivors {
    std::unique_ptr<JobControl> job;
    std::vector<int> ranks;  // of its ranks: the rank in the larger job
  };
  // Collective over the ranks that go on, whether the job has failed or not. Returns a job of their own, in the order of
  // their ranks, which shares nothing with this one. No other call may be in flight. These ranks stay behind: those that
  // have ended, that give no sign of life, that have not called it within `patience` seconds, or that a caller names in
  // `lost`. This job has then failed. Throws LostRank0, or Error(peer_gave_up) on a rank that another one has named.
  virtual Survivors shrink(const std::vector<int>& lost, double patience) = 0;

  // `observer` must outlive its registration; the caller passes null to end it.
  void observe(JobObserver* observer) { observed_->set(observer); }
  // Tells this rank's observer about an operation that gives up.
  void report(const std::string& sentence) { observed_->trouble(sentence); }
  // Asks these ranks what they are doing, and what holds them up if they have not begun `wanted`. Waits at most `seconds`
  // for their answers.
  virtual std::vector<RankAccount> ask(const std::vector<int>& ranks, double seconds, const OperationId& wanted = {}) = 0;

 protected:
  const std::shared_ptr<Observed>& observed() const { return observed_; }

 private:
  std::shared_ptr<Observed> observed_ = std::make_shared<Observed>();
};

// The sentences of a job that has failed because it shrank: for a rank that stays behind, and for one that goes on.
std::string left_behind(int rank);
constexpr const char* went_on =
    "The job has gone on without some of its ranks; use the communicator that shrink() returned.";

// The time for which leave() still waits for the others once the job has failed.
constexpr std::chrono::milliseconds grace_after_failure{700};
// The sentence for ranks that use a job that another rank has left.
std::string left_early(double timeout);

// Ranks as threads of this process: `size` handles on one job, which share their state under one mutex.
std::vector<std::unique_ptr<JobControl>> make_local_jobs(int size);

// The parameters by which ranks that are processes meet, in a star around rank 0 over TCP. The connections stay open, so
// that deaths are noticed.
struct Meeting {
  std::string host;  // where rank 0 listens
  int port = 0;
  std::string secret;     // of the job's ranks; a process that does not know it is turned away
  int listener = -1;      // rank 0: a listening socket, which it then owns; or -1
  double timeout = 60;    // seconds in which all ranks must come, and then in which they must take part in each exchange
  double silence = 600;   // seconds without a sign of life after which a rank counts as lost
  std::string job;        // the job's name; a rank of a job of another name is turned away
  bool insecure = false;  // ranks may be on several hosts although there is no secret
};
std::unique_ptr<JobControl> join_tcp_job(int rank, int size, const Meeting& meeting);
// Throws Error(invalid_argument) if the job has no secret but needs one; who: the other side, on another host.
void require_trust(const Meeting& meeting, const std::string& who);

// A listening socket (closed on exec) and its port. listen_on() with port 0 lets the kernel choose; it throws
// Error(unavailable) naming the address. try_to_listen_on() returns no socket, and errno, instead; both throw for a host
// that is not known.
struct Listener {
  int socket = -1;
  int port = 0;
};
Listener listen_on(const std::string& host, int port);
Listener try_to_listen_on(const std::string& host, int port);

}  // namespace stretto
