#include "collectives/job/flights_on_signal.hpp"

#include <semaphore.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): sigaction
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>
#include <thread>
#include <vector>

#include "collectives/job/rank_context.hpp"
#include "core/fail.hpp"
#include "core/log.hpp"
#include "core/setting_values.hpp"
#include "stretto/launch.hpp"

namespace stretto {
namespace {

// Never destroyed: the thread below waits until the process ends.
struct Ranks {
  std::mutex mutex;
  std::vector<RankContext*> all;
};
Ranks& ranks() {
  static auto& result = *new Ranks;
  return result;
}

sem_t arrived;  // POSIX lets a signal's handler do little more than to post a semaphore

void on_signal(int /*number*/) {
  const int error = errno;
  sem_post(&arrived);
  errno = error;
}

void write_flights(int number) {
  const std::string directory = setting("STRETTO_FLIGHT_DIR");
  if (directory.empty()) {
    log().error("Signal {} asks for the last operations, but STRETTO_FLIGHT_DIR names no directory for them.", number);
    return;
  }
  const std::lock_guard lock(ranks().mutex);
  for (RankContext* const rank : ranks().all) {
    try {
      rank->write_flight(directory, fmt::format("signal {}", number));
    } catch (const std::exception& error) {
      log().error("{}", error.what());
    }
  }
}

void begin_thread(int number) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);  // the thread inherits it: signals are for the program's own threads
  std::thread([number] {
    while (true) {
      if (sem_wait(&arrived) == 0) write_flights(number);
    }
  }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

void add_to_flights_on_signal(RankContext& rank) {
  const std::lock_guard lock(ranks().mutex);
  ranks().all.push_back(&rank);
}

void remove_from_flights_on_signal(RankContext& rank) {
  const std::lock_guard lock(ranks().mutex);
  std::erase(ranks().all, &rank);
}

void write_flights_on(int signal) {
  static std::atomic<pid_t> process = 0;  // a fork()ed child has the handler, but not the thread
  if (process.exchange(getpid()) == getpid()) return;
  sem_init(&arrived, 0, 0);
  begin_thread(signal);
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  require(sigaction(signal, &action, nullptr) == 0, "Signal {} cannot be used to ask for the last operations: {}.", signal,
          errno_text(errno));
}

}  // namespace stretto
