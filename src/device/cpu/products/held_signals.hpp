#pragma once
#include <csignal>

namespace stretto::kernels::cpu {

// Holds back this thread's signals, but those of its own faults, as long as the object lives. oneDNN's product of a
// transposed matrix uses the stack pointer for its workspace, a block of the heap: a handler's frame below it would
// overwrite other blocks. Threads that OpenMP starts meanwhile hold theirs for good.
class HeldSignals {
 public:
  HeldSignals() {
    static const sigset_t held = [] {
      sigset_t set;
      sigfillset(&set);
      for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&set, fault);
      return set;
    }();
    pthread_sigmask(SIG_BLOCK, &held, &before_);
  }
  ~HeldSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace stretto::kernels::cpu
