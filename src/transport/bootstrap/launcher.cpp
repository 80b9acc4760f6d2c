#include "transport/bootstrap/launcher.hpp"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "core/fail.hpp"
#include "core/setting_values.hpp"
#include "stretto/stream.hpp"

namespace stretto {
namespace {

struct Variables {
  const char* launcher;
  const char* rank;
  const char* size;
  std::array<const char*, 2> job;  // its number
  bool is_mpi;
};
constexpr std::array<Variables, 4> known{
    {{"torchrun", "RANK", "WORLD_SIZE", {"TORCHELASTIC_RUN_ID", nullptr}, false},
     {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", {"PMIX_NAMESPACE", nullptr}, true},
     {"PMI", "PMI_RANK", "PMI_SIZE", {nullptr, nullptr}, true},
     {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", {"SLURM_JOB_ID", "SLURM_STEP_ID"}, false}}};

// Empty if the launcher has given it no number. torchrun's is "none" unless the user has given one.
std::string name_of_job(const Variables& variables) {
  std::string name;
  for (const char* const part : variables.job) {
    const char* const value = part != nullptr ? std::getenv(part) : nullptr;
    if (value != nullptr && std::string(value) != "none") name += fmt::format(" {}={}", part, value);
  }
  return name.empty() ? name : variables.launcher + name;
}

int integer_variable(const char* name) {
  const char* given = std::getenv(name);
  const std::string text = given != nullptr ? given : "";
  char* end = nullptr;
  const long value = std::strtol(text.c_str(), &end, 10);
  require(!text.empty() && *end == '\0' && value >= 0 && value < 1L << 30, "{}='{}' is no whole number.", name, text);
  return static_cast<int>(value);
}

constexpr double seconds_to_end_after_a_failure = 8;

// Tells by which of the children, in the order in which they end, a job failed.
class Verdict {
 public:
  void child_ended(int rank, int wait_status, bool by_this_process) {
    if (WIFSIGNALED(wait_status)) {
      if (by_this_process) return blame(Guilt::did_not_end, rank, "did not end with the others, and was killed");
      return blame(Guilt::killed, rank, fmt::format("was killed by SIG{}", sigabbrev_np(WTERMSIG(wait_status))));
    }
    const int status = WEXITSTATUS(wait_status);
    if (status == lost_rank_0) return blame(Guilt::ended_first, 0, "was lost to the others");
    if (status == 0 || status == failed_with_others) return blame(Guilt::ended_first, rank, "ended before the others");
    blame(Guilt::failed, rank, fmt::format("failed with status {}", status));
  }
  const LostChild& lost() const { return lost_; }

 private:
  enum class Guilt { none, ended_first, did_not_end, failed, killed };
  void blame(Guilt guilt, int rank, std::string fate) {
    if (guilt <= guilt_) return;
    guilt_ = guilt;
    lost_ = {rank, std::move(fate)};
  }

  Guilt guilt_ = Guilt::none;
  LostChild lost_;
};

int status_of(int wait_status) {
  if (WIFSIGNALED(wait_status)) return 128 + WTERMSIG(wait_status);
  const int status = WEXITSTATUS(wait_status);
  return status == failed_with_others || status == lost_rank_0 ? 1 : status;
}

}  // namespace

std::optional<LaunchedAs> launched_as() {
  for (const Variables& variables : known) {
    if (std::getenv(variables.rank) == nullptr || std::getenv(variables.size) == nullptr) continue;
    LaunchedAs as;
    as.launcher = variables.launcher;
    as.rank = integer_variable(variables.rank);
    as.size = integer_variable(variables.size);
    as.job = name_of_job(variables);
    require(as.rank < as.size, "{}={} is not below {}={}.", variables.rank, as.rank, variables.size, as.size);
    if (as.size == 1) return as;
    const char* host = std::getenv("MASTER_ADDR");
    require(host != nullptr && std::getenv("MASTER_PORT") != nullptr,
            "{} ranks were started by {}, but MASTER_ADDR and MASTER_PORT do not tell where to meet; set both{}.", as.size,
            as.launcher,
            variables.is_mpi
                ? ", or connect with stretto/mpi.hpp, which asks MPI (Stretto's programs do in a build with MPI)"
                : "");
    as.host = host;
    as.port = static_cast<int>(number_setting("STRETTO_PORT"));
    if (as.port == 0) {
      as.port = integer_variable("MASTER_PORT");
      // torchrun's own store may hold that port already.
      const char* store = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
      if (store != nullptr && std::string(store) == "True") ++as.port;
    }
    require(as.port > 0 && as.port < 65536, "Port {} is outside 1..65535; set MASTER_PORT or STRETTO_PORT.", as.port);
    return as;
  }
  const char* const rank = std::getenv("RANK");
  const char* const size = std::getenv("WORLD_SIZE");
  require(rank == nullptr,
          "RANK='{}' is set and WORLD_SIZE is not: this rank would run alone; set WORLD_SIZE, or unset RANK.",
          rank != nullptr ? rank : "");
  require(size == nullptr || std::string(size) == "1",
          "WORLD_SIZE='{}' is set and RANK is not: this rank would run alone; set RANK, or unset WORLD_SIZE.",
          size != nullptr ? size : "");
  return std::nullopt;
}

int fork_ranks(int count, const std::function<int(int rank)>& body, const std::function<void()>& all_started,
               bool survivors_go_on, LostChild* lost) {
  std::fflush(nullptr);  // else every child would write the buffered output again
  const pid_t parent = getpid();
  std::map<pid_t, int> children;  // and their ranks
  const auto kill_all = [&] {
    for (const auto& [child, rank] : children) kill(child, SIGKILL);
  };
  for (int rank = 0; rank < count; ++rank) {
    const pid_t child = fork();
    if (child < 0) {
      const int error = errno;
      kill_all();
      for (const auto& [started, its_rank] : children) waitpid(started, nullptr, 0);
      fail(ErrorCode::unavailable, "Cannot start rank {} of {}: {}.", rank, count, errno_text(error));
    }
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);  // it died before prctl
      const int status = body(rank);
      std::fflush(nullptr);
      _exit(status);  // must not run the parent's exit handlers
    }
    children[child] = rank;
  }
  if (all_started) all_started();

  int result = 0;
  Verdict verdict;
  double deadline = 0;
  bool gave_up = false;
  while (!children.empty()) {
    int wait_status = 0;
    const pid_t ended = waitpid(-1, &wait_status, deadline > 0 ? WNOHANG : 0);
    if (ended < 0 && errno == EINTR) continue;
    if (ended < 0) break;
    if (ended > 0) {
      const auto child = children.find(ended);
      if (child == children.end()) continue;  // another child of the program
      const int rank = child->second;
      children.erase(child);
      const bool ends_all = rank == 0 || (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == lost_rank_0);
      if (survivors_go_on && !ends_all) continue;
      verdict.child_ended(rank, wait_status, gave_up);
      const int status = status_of(wait_status);
      if ((result == 0 && status != 0) || survivors_go_on) deadline = now_seconds() + seconds_to_end_after_a_failure;
      // A child that was killed may be seen to end after the others, which lost their connections to it.
      if (result == 0 || (result < 128 && WIFSIGNALED(wait_status) && !gave_up)) result = status;
      continue;
    }
    if (now_seconds() > deadline) {
      kill_all();
      deadline = now_seconds() + 1e9;
      gave_up = true;
    }
    usleep(10000);
  }
  if (lost != nullptr && result != 0) *lost = verdict.lost();
  return result;
}

}  // namespace stretto
