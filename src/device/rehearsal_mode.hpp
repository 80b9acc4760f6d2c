#pragma once
#include <utility>

namespace stretto {

// The parts of a step that a rehearsal leaves out in this thread (stretto/overlap/rehearsal.hpp).
struct RehearsalMode {
  bool skip_kernels = false;
  bool skip_communication = false;
  bool no_overlap = false;  // the caller waits for each operation as soon as it has started it
};
// Every operation reads it: access needs neither initialisation nor a function call.
[[gnu::tls_model("initial-exec")]] inline constinit thread_local RehearsalMode rehearsal_mode;

// While the object lives, the calling thread rehearses in the given way, whatever it did before.
class RehearsalModeScope {
 public:
  explicit RehearsalModeScope(RehearsalMode mode) : before_(std::exchange(rehearsal_mode, mode)) {}
  ~RehearsalModeScope() { rehearsal_mode = before_; }
  RehearsalModeScope(const RehearsalModeScope&) = delete;
  RehearsalModeScope& operator=(const RehearsalModeScope&) = delete;

 private:
  RehearsalMode before_;
};

}  // namespace stretto
