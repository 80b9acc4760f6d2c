#pragma once

namespace stretto {

// Asks Linux to run this thread soon after it has been woken, even if the core is busy. Communication needs the core for
// microseconds, but computation keeps it for a time slice of milliseconds unless the woken thread has asked for a shorter
// slice. Needs Linux 6.12; without it, this does nothing. The thread's share of the core does not change. A thread with a
// scheduling policy of its own keeps that.
void run_promptly();

}  // namespace stretto
