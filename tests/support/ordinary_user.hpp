#pragma once
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace stretto {

// Runs the body in a process of a user who is not root. Returns whether it returned true.
inline bool holds_for_an_ordinary_user(const std::function<bool()>& body) {
  constexpr uid_t nobody = 65534;
  const pid_t child = fork();
  if (child == 0) {
    if (geteuid() == 0 && setresuid(nobody, nobody, nobody) != 0) _exit(2);
    _exit(body() ? 0 : 1);
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && status == 0;
}

}  // namespace stretto
