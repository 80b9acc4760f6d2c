#pragma once
#include <omp.h>

#include <csignal>
#include <initializer_list>

namespace stretto::kernels::cpu {

// Holds back this thread's signals, but those of its own faults, as long as the object lives. oneDNN's product of a
// transposed matrix uses the stack pointer for its workspace, a block of the heap: a handler's frame below it would
// overwrite other blocks. The threads that OpenMP lends this one hold theirs for good: the kernel would give them what this
// one holds.
class HeldSignals {
 public:
  HeldSignals() {
    hold_those_of_workers();
    pthread_sigmask(SIG_BLOCK, &held(), &before_);
  }
  ~HeldSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

 private:
  static const sigset_t& held() {
    static const sigset_t result = [] {
      sigset_t set;
      sigfillset(&set);
      for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&set, fault);
      return set;
    }();
    return result;
  }
  // OpenMP gives a thread the same workers again as long as it asks for no more.
  static void hold_those_of_workers() {
    thread_local int threads = 1;
    if (omp_get_max_threads() <= threads) return;
    threads = omp_get_max_threads();
#pragma omp parallel
    if (omp_get_thread_num() != 0) pthread_sigmask(SIG_BLOCK, &held(), nullptr);
  }

  sigset_t before_;
};

}  // namespace stretto::kernels::cpu
