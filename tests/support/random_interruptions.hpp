#pragma once
#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace stretto {

// The seed of a test that draws anew in each run: --gtest_random_seed, or any. Prints it at once, so that a deadlock shows
// its seed too.
inline unsigned drawn_seed() {
  const auto given = static_cast<unsigned>(GTEST_FLAG_GET(random_seed));
  const unsigned seed = given != 0 ? given : std::random_device{}() % 99999 + 1;  // the flag accepts 1 to 99999
  testing::Test::RecordProperty("seed", std::to_string(seed));
  std::cout << "seed " << seed << std::endl;
  return seed;
}

// Holds up random threads of this process, wherever they are, for up to 200 us each, as a busy machine would: by signals
// whose handler sleeps. About one thread is held up at any time. One object of this class at a time.
class RandomInterruptions {
 public:
  explicit RandomInterruptions(unsigned seed) : engine_(seed) {
    struct sigaction action {};
    action.sa_handler = sleep_a_while;
    action.sa_flags = SA_RESTART;
    sigaction(number, &action, nullptr);
    thread_ = std::thread([this] { interrupt(); });
  }
  ~RandomInterruptions() {
    stop_ = true;
    thread_.join();
    // What was sent last may still have to be handled: the handler stays, and sleeps no more.
    nanoseconds() = 0;
  }
  RandomInterruptions(const RandomInterruptions&) = delete;
  RandomInterruptions& operator=(const RandomInterruptions&) = delete;

 private:
  static constexpr int number = SIGUSR2;

  static std::atomic<long>& nanoseconds() {
    static std::atomic<long> next = 0;
    return next;
  }
  static void sleep_a_while(int) {
    const int error = errno;
    const timespec pause{0, nanoseconds()};
    nanosleep(&pause, nullptr);
    errno = error;
  }
  static std::vector<pid_t> threads() {
    std::vector<pid_t> all;
    DIR* const folder = opendir("/proc/self/task");
    while (const dirent* const entry = folder != nullptr ? readdir(folder) : nullptr) {
      const auto thread = static_cast<pid_t>(std::atoi(entry->d_name));
      if (thread > 0 && thread != gettid()) all.push_back(thread);
    }
    if (folder != nullptr) closedir(folder);
    return all;
  }
  void interrupt() {
    while (!stop_) {
      const std::vector<pid_t> all = threads();
      for (int i = 0; i < 32 && !stop_ && !all.empty(); ++i) {
        nanoseconds() = static_cast<long>(engine_() % 200'000);
        syscall(SYS_tgkill, getpid(), all[engine_() % all.size()], number);  // nobody, if that thread has ended
        std::this_thread::sleep_for(std::chrono::microseconds(engine_() % 200));
      }
    }
  }

  std::mt19937 engine_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace stretto
