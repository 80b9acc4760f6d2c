#pragma once

namespace stretto {

// What a rehearsal leaves out of a step (stretto/overlap/rehearsal.hpp), in this thread.
struct LeftOut {
  bool kernels = false;
  bool communication = false;
  bool overlap = false;  // who starts an operation waits for it
};
// Every operation asks: without set-up or a call.
[[gnu::tls_model("initial-exec")]] inline constinit thread_local LeftOut left_out;

}  // namespace stretto
