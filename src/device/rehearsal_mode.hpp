#pragma once

namespace stretto {

// What a rehearsal leaves out of a step (stretto/overlap/rehearsal.hpp), in this thread.
struct RehearsalMode {
  bool skip_kernels = false;
  bool skip_communication = false;
  bool no_overlap = false;  // the caller waits for each operation that it starts
};
// Every operation asks: without set-up or a call.
[[gnu::tls_model("initial-exec")]] inline constinit thread_local RehearsalMode rehearsal_mode;

}  // namespace stretto
