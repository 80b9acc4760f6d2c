#include "transport/bootstrap/processes/fork_ranks.hpp"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>

#include "core/fail.hpp"
#include "core/log.hpp"
#include "stretto/stream.hpp"

namespace stretto {
namespace {

constexpr double seconds_to_end_after_a_failure = 8;

// Finds the child whose failure ended a job. Children are added in the order in which they end.
class Verdict {
 public:
  // Adds a child whose failure would end the others.
  void add(int rank, int wait_status, bool by_this_process) {
    if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == failed_with_others) failed_with_others_at_ = now_seconds();
    const Fate fate = fate_of(rank, wait_status, by_this_process);
    if (fate.guilt > worst_.guilt) worst_ = fate;
  }
  // Adds a child without which the others may go on. If they fail at the same time, it is the reason.
  void add_left_behind(int rank, int wait_status, bool by_this_process) {
    const Fate fate = fate_of(rank, wait_status, by_this_process);
    if (fate.guilt < Guilt::failed) return;
    const bool beside_the_last = now_seconds() - left_behind_at_ < seconds_to_end_after_a_failure;
    if (!beside_the_last || fate.guilt > left_behind_.guilt) left_behind_ = fate;
    left_behind_at_ = now_seconds();
  }
  LostChild lost() const {
    const bool with_it = std::abs(failed_with_others_at_ - left_behind_at_) < seconds_to_end_after_a_failure;
    const Fate& fate = with_it && left_behind_.guilt > worst_.guilt ? left_behind_ : worst_;
    return {fate.rank, fate.words, fate.guilt == Guilt::killed, fate.guilt == Guilt::did_not_end};
  }

 private:
  enum class Guilt { none, ended_first, did_not_end, failed, killed };
  struct Fate {
    Guilt guilt = Guilt::none;
    int rank = -1;
    std::string words;
  };

  static Fate fate_of(int rank, int wait_status, bool by_this_process) {
    if (WIFSIGNALED(wait_status)) {
      if (by_this_process) return {Guilt::did_not_end, rank, "did not end with the others, and was killed"};
      return {Guilt::killed, rank, fmt::format("was killed by SIG{}", sigabbrev_np(WTERMSIG(wait_status)))};
    }
    switch (const int status = WEXITSTATUS(wait_status)) {
      case 0:
      case failed_with_others: return {Guilt::ended_first, rank, "ended before the others"};
      case lost_rank_0: return {Guilt::ended_first, 0, "was lost to the others"};
      default: return {Guilt::failed, rank, fmt::format("failed with status {}", status)};
    }
  }
  Fate worst_, left_behind_;
  double left_behind_at_ = 0, failed_with_others_at_ = std::numeric_limits<double>::infinity();
};

int status_of(int wait_status) {
  if (WIFSIGNALED(wait_status)) return 128 + WTERMSIG(wait_status);
  const int status = WEXITSTATUS(wait_status);
  return status == failed_with_others || status == lost_rank_0 ? 1 : status;
}

// While it exists, wait() reports how children end: it does not if the program ignores SIGCHLD, a setting that is inherited.
class DefaultSigchld {
 public:
  DefaultSigchld() {
    sigaction(SIGCHLD, nullptr, &before_);
    if (before_.sa_handler != SIG_IGN && (before_.sa_flags & SA_NOCLDWAIT) == 0) return;
    struct sigaction standard {};
    standard.sa_handler = SIG_DFL;
    sigaction(SIGCHLD, &standard, nullptr);
  }
  ~DefaultSigchld() { restore(); }
  DefaultSigchld(const DefaultSigchld&) = delete;
  DefaultSigchld& operator=(const DefaultSigchld&) = delete;
  void restore() const { sigaction(SIGCHLD, &before_, nullptr); }

 private:
  struct sigaction before_ {};
};

struct Child {
  int rank;
  bool stopped = false;
};
using Children = std::map<pid_t, Child>;

bool rest_is_stopped(const Children& children, int count) {
  return children.size() < static_cast<std::size_t>(count) &&
         std::all_of(children.begin(), children.end(), [](const auto& each) { return each.second.stopped; });
}

void kill_all(const Children& children) {
  for (const auto& [pid, child] : children) kill(pid, SIGKILL);
}

// Adds `count` children, whose numbers begin at `first`. Where others run already, a child that cannot be started is no
// reason to end them.
void start(int first, int count, const std::function<int(int rank)>& body, const DefaultSigchld& sigchld,
           Children& children) {
  std::fflush(nullptr);  // else every child would write the buffered output again
  const pid_t parent = getpid();
  for (int rank = first; rank < first + count; ++rank) {
    const pid_t child = fork();
    if (child < 0) {
      const int error = errno;
      if (first > 0) {
        log().error("Cannot start a process in the place of a lost rank: {}; the others go on.", errno_text(error));
        return;
      }
      kill_all(children);
      for (const auto& [started, its] : children) waitpid(started, nullptr, 0);
      fail(ErrorCode::unavailable, "Cannot start rank {} of {}: {}.", rank, first + count, errno_text(error));
    }
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);  // it died before prctl
      sigchld.restore();
      const int status = body(rank);
      std::fflush(nullptr);
      _exit(status);  // must not run the parent's exit handlers
    }
    children[child] = {rank};
  }
}

}  // namespace

int fork_ranks(int count, const std::function<int(int rank)>& body, const std::function<void()>& all_started,
               bool survivors_go_on, LostChild* lost, const std::function<int(int left)>& wanted) {
  const DefaultSigchld sigchld;
  Children children;
  start(0, count, body, sigchld, children);
  if (all_started) all_started();
  int next = count;  // number of a child that takes the place of another one
  bool no_more = !wanted;

  int result = 0;
  Verdict verdict;
  double failed_by = 0;   // when the rest must have ended; 0: no rank has failed
  double stopped_by = 0;  // the same; 0: not all that are left are stopped
  bool gave_up = false;
  while (!children.empty()) {
    const double deadline = failed_by > 0 ? failed_by : stopped_by;
    bool may_start = !no_more && failed_by == 0 && children.size() < static_cast<std::size_t>(count);
    if (const int more = may_start ? wanted(static_cast<int>(children.size())) : 0; more > 0) {
      start(next, more, body, sigchld, children);
      next += more;
    } else if (more < 0) {
      no_more = true;
      may_start = false;
    }
    const bool only_looks = (deadline > 0 && !gave_up) || may_start;
    int wait_status = 0;
    const pid_t changed = waitpid(-1, &wait_status, WUNTRACED | WCONTINUED | (only_looks ? WNOHANG : 0));
    if (changed < 0 && errno == EINTR) continue;
    if (changed < 0) {  // another part of the program has waited for them
      if (result == 0) result = 1;
      break;
    }
    if (changed == 0) {
      gave_up = deadline > 0 && now_seconds() > deadline;
      if (gave_up) kill_all(children);
      usleep(10000);
      continue;
    }
    const auto place = children.find(changed);
    if (place == children.end()) continue;  // another child of the program
    const int rank = place->second.rank;
    if (WIFSTOPPED(wait_status) || WIFCONTINUED(wait_status)) {
      place->second.stopped = WIFSTOPPED(wait_status);
    } else {
      children.erase(place);
      const bool ends_all = rank == 0 || (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == lost_rank_0);
      if (survivors_go_on && !ends_all) {
        verdict.add_left_behind(rank, wait_status, gave_up);
      } else {
        verdict.add(rank, wait_status, gave_up);
        const int status = gave_up && result == 0 ? 1 : status_of(wait_status);
        if ((result == 0 && status != 0) || survivors_go_on) failed_by = now_seconds() + seconds_to_end_after_a_failure;
        // A child that was killed may be seen to end after the others, which lost their connections to it.
        if (result == 0 || (result < 128 && WIFSIGNALED(wait_status) && !gave_up)) result = status;
      }
    }
    if (!rest_is_stopped(children, count)) {
      stopped_by = 0;
    } else if (stopped_by == 0) {
      stopped_by = now_seconds() + seconds_to_end_after_a_failure;
    }
  }
  if (lost != nullptr && result != 0) *lost = verdict.lost();
  return result;
}

}  // namespace stretto
