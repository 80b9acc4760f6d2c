#pragma once

namespace stretto {

// Asks the kernel to let this thread run soon after it has been woken, also where the core is busy: communication needs the
// core for microseconds, and computation keeps it for a time slice, of three milliseconds, unless the one who wakes has a
// shorter one (Linux 6.12; older kernels have no such wish and are not asked twice). Takes nobody's share of the core.
void run_promptly();

}  // namespace stretto
