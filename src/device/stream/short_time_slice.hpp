#pragma once

namespace stretto {

// Asks the kernel to let this thread run soon after it has been woken, also where the core is busy: communication needs the
// core for microseconds, and computation keeps it for a time slice of milliseconds, unless the thread that is woken asks for
// a shorter one (Linux 6.12; elsewhere this does nothing). It takes nobody's share of the core. A thread with a
// scheduling policy of its own stays as it is.
void run_promptly();

}  // namespace stretto
