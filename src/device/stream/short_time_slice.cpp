#include "device/stream/short_time_slice.hpp"

#include <linux/sched.h>
#include <linux/sched/types.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace stretto {

void run_promptly() {
  constexpr int this_thread = 0;
  sched_attr attributes{};
  if (syscall(SYS_sched_getattr, this_thread, &attributes, sizeof attributes, 0) != 0) return;
  if (attributes.sched_policy != SCHED_NORMAL) return;  // it has a scheduling policy of its own
  attributes.sched_runtime = 100'000;                   // nanoseconds, the least that Linux allows
  syscall(SYS_sched_setattr, this_thread, &attributes, 0);
}

}  // namespace stretto
