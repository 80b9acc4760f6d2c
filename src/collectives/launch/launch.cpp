#include "stretto/launch.hpp"

#include <fcntl.h>
#include <sodium.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <set>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "collectives/calibration/self_calibration.hpp"
#include "collectives/communicator/group.hpp"
#include "core/fail.hpp"
#include "core/forks.hpp"
#include "core/log.hpp"
#include "core/setting_values.hpp"
#include "transport/bootstrap/launcher.hpp"
#include "transport/bootstrap/processes/fork_ranks.hpp"

namespace stretto {
namespace {

// Opens descriptors 0 to 2 if they are closed: else a socket of the job could become stdout, and printed text would go
// there.
void open_standard_descriptors() {
  for (int descriptor = 0; descriptor <= STDERR_FILENO; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) >= 0 || errno != EBADF) continue;
    const int empty = open("/dev/null", O_RDWR);
    ensure(empty == descriptor, "/dev/null cannot take the place of descriptor {}, which is closed.", descriptor);
  }
}

void begin_process() {
  open_standard_descriptors();
  check_settings();
  log().set_level(spdlog::level::from_str(setting("STRETTO_LOG")));
}

// Only here does an error become a line on stderr. A rank that only heard that another rank gave up stays silent, because
// the other rank has reported the reason.
void report(int rank, int size, const std::string& sentence) {
  std::string who = size > 1 ? fmt::format("rank {}: ", rank) : "";
  if (rank >= size) who = "a process that was to take the place of a lost rank: ";
  const std::string line = fmt::format("error: {}{}\n", who, sentence);
  std::fputs(line.c_str(), stderr);
}

// Detects that a body has called fork(). The child owns neither the job nor the process's other threads: when its copy of
// the body returns or throws, end_child() ends the child.
class BodyProcess {
 public:
  bool is_child() const { return forks_ != forks; }
  void end_child(int status) const {
    if (!is_child()) return;
    std::fflush(nullptr);
    _exit(status);
  }

 private:
  int forks_ = forks;
};

// The bodies of ranks that are threads. A thread cannot be ended: an error that waited for all bodies might never be seen.
class RunningBodies {
 public:
  explicit RunningBodies(int ranks) {
    for (int rank = 0; rank < ranks; ++rank) ranks_.insert(rank);
  }
  void end(int rank) {
    const std::lock_guard lock(mutex_);
    ranks_.erase(rank);
    ended_.notify_all();
  }
  // Waits at most `patience` for all bodies. Returns a sentence about those that still run, or "".
  std::string after(std::chrono::seconds patience) {
    std::unique_lock lock(mutex_);
    if (ended_.wait_for(lock, patience, [&] { return ranks_.empty(); })) return "";
    return fmt::format("The job has failed, and its process ends when the threads of rank {} return.",
                       fmt::join(ranks_, ", "));
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  std::set<int> ranks_;
};
constexpr std::chrono::seconds seconds_to_return{2};

// forked: fork_ranks() reads the returned status.
int run_guarded(int rank, int size, const std::function<Communicator()>& join, const RankBody& body, bool forked = false) {
  Communicator world;
  std::string sentence;
  int status = 1;
  const BodyProcess process;
  try {
    world = join();
    body(world);
    process.end_child(0);
    return 0;
  } catch (const LostRank0& error) {
    if (forked) status = lost_rank_0;
    sentence = error.what();
  } catch (const Error& error) {
    if (forked && error.is_of_another_rank()) status = failed_with_others;
    if (error.code() == ErrorCode::peer_gave_up) return status;
    sentence = error.what();
  } catch (const std::exception& error) {
    sentence = error_sentence(error);
  }
  if (world && !process.is_child()) world.job().abort(sentence);
  report(world ? world.rank() : rank, size, sentence);
  process.end_child(1);
  return status;
}

// may_pin: true if launch() owns the process. A program that connects by itself also places itself on cores.
Communicator join(int rank, int size, const MeetingPoint& point, bool may_pin, const std::string& name = "world",
                  const std::string& job = "") {
  begin_process();
  require(size >= 1 && rank >= 0 && rank < size, "Rank {} is outside a job of {}.", rank, size);
  if (size == 1) return world_of(std::move(make_local_jobs(1).front()), false, name);
  Meeting meeting{point.host, point.port, point.secret, point.listener, point.timeout};
  if (meeting.timeout <= 0) meeting.timeout = number_setting("STRETTO_MEET_TIMEOUT");
  meeting.silence = number_setting("STRETTO_TIMEOUT");
  meeting.job = job;
  meeting.insecure = number_setting("STRETTO_INSECURE") != 0;
  Communicator world = world_of(join_tcp_job(rank, size, meeting), may_pin, name);
  if (point.may_calibrate) calibrate_if_unknown(world);
  return world;
}

Communicator join_as_launched(bool may_pin) {
  begin_process();
  const auto as = launched_as();
  if (!as || as->size == 1) return join(0, 1, {}, may_pin);
  log().info("Rank {} of {}, by the variables of {}.", as->rank, as->size, as->launcher);
  const std::string secret = setting("STRETTO_JOB_SECRET");
  // Without any other name, ranks of different programs at least do not join each other.
  const std::string name = as->job.empty() && secret.empty() ? program_invocation_short_name : as->job;
  MeetingPoint point{as->host, as->port, secret};
  point.may_calibrate = true;
  return join(as->rank, as->size, point, may_pin, "world", name);
}

}  // namespace

int launch(int nproc, const RankBody& body, const LaunchOptions& options) {
  try {
    begin_process();
    require(nproc >= 0, "{} ranks cannot be started; give at least 1.", nproc);
    require(
        nproc > 0 || (!options.starts_again && !options.survivors_go_on),
        "launch() can start lost ranks again, and let the others go on, only where it starts ranks itself; give it their "
        "number.");
    if (nproc == 0) {
      const auto as = launched_as();
      return run_guarded(
          as ? as->rank : 0, as ? as->size : 1, [] { return join_as_launched(true); }, body);
    }
    require(
        !options.replacements.wanted || (options.survivors_go_on && options.replacements.join),
        "Processes can take the places of ranks that are lost only where the others go on, and they need a way to join.");
    if (nproc == 1 && !options.starts_again) {
      return run_guarded(
          0, 1, [] { return connect(0, 1, {}); }, body);
    }
    while (true) {
      const MeetingPoint point = open_meeting("127.0.0.1");
      const auto run_rank = [&](int rank) {
        if (rank >= nproc) return run_guarded(rank, nproc, options.replacements.join, body, true);
        MeetingPoint own = point;
        own.may_calibrate = true;
        if (rank != 0) {
          close(point.listener);
          own.listener = -1;
        }
        setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);  // each rank chooses its GPU by it
        return run_guarded(
            rank, nproc, [&] { return join(rank, nproc, own, true); }, body, true);
      };
      // Only rank 0 listens, and only until all have come.
      LostChild lost;
      const int status = fork_ranks(
          nproc, run_rank, [&] { close(point.listener); }, options.survivors_go_on, &lost, options.replacements.wanted);
      if (lost.killed_here || (lost.by_signal && !options.starts_again)) {
        report(0, 1, fmt::format("Rank {} {}.", lost.rank, lost.fate));
      }
      if (status == 0 || !options.starts_again || !options.starts_again({lost.rank, lost.fate})) return status;
    }
  } catch (const std::exception& error) {
    report(0, 1, error_sentence(error));
    return 1;
  }
}

int run(const Communicator& world, const RankBody& body) {
  return run_guarded(
      world.rank(), world.size(), [&] { return world; }, body);
}

void run_threads(int ranks, const RankBody& body) {
  begin_process();
  require(ranks >= 1, "{} ranks cannot be started; give at least 1.", ranks);
  std::vector<std::unique_ptr<JobControl>> jobs = make_local_jobs(ranks);
  std::mutex mutex;
  std::exception_ptr first;
  std::exception_ptr echo;  // the consequence of another rank's failure
  RunningBodies running(ranks);
  const BodyProcess process;
  const auto run_rank = [&](int rank) {
    Communicator world;
    try {
      world = world_of(std::move(jobs[rank]));
      body(world);
      process.end_child(0);
      running.end(rank);
    } catch (const std::exception& error) {
      if (process.is_child()) report(rank, ranks, error.what());
      process.end_child(1);
      const auto* known = dynamic_cast<const Error*>(&error);
      const bool heard = known != nullptr && known->code() == ErrorCode::peer_gave_up;
      if (!heard && world) world.job().abort(error_sentence(error));
      running.end(rank);
      {
        const std::lock_guard lock(mutex);
        auto& place = heard ? echo : first;
        const bool is_first = !heard && !place;
        if (!place) place = std::current_exception();
        if (!is_first) return;
      }
      const std::string stuck = running.after(seconds_to_return);
      if (!stuck.empty()) report(rank, ranks, fmt::format("{} {}", error_sentence(error), stuck));
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 1; rank < ranks; ++rank) threads.emplace_back(run_rank, rank);
  run_rank(0);
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
  if (echo) std::rethrow_exception(echo);
}

Communicator connect() { return join_as_launched(false); }

MeetingPoint open_meeting(const std::string& host) {
  const Listener listener = listen_on(host, 0);
  ensure(sodium_init() >= 0, "libsodium finds no source of randomness on this machine.");
  std::array<unsigned char, 32> random;
  std::array<char, 65> text;
  randombytes_buf(random.data(), random.size());
  sodium_bin2hex(text.data(), text.size(), random.data(), random.size());
  return {host, listener.port, text.data(), listener.socket};
}

Communicator connect(int rank, int size, const MeetingPoint& point, const std::string& name) {
  return join(rank, size, point, point.may_pin, name);
}

}  // namespace stretto
