// Whether another process can be opened depends on who runs the ranks, so the tests of ordinary users run as one.
#include "transport/shm/peer_file.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <string>

#include "core/fail.hpp"

namespace stretto {
namespace {

// Opens standard input of a process.
Error error_of_opening(pid_t pid) {
  try {
    close(open_peer_file(pid, 0, "shared memory", 3));
  } catch (const Error& error) {
    return error;
  }
  return {ErrorCode::internal, "It was opened."};
}

// Runs the body in a process of a user who is not root. Returns its exit status.
int as_an_ordinary_user(const std::function<bool()>& body) {
  constexpr uid_t nobody = 65534;
  const pid_t child = fork();
  if (child == 0) {
    if (geteuid() == 0 && setresuid(nobody, nobody, nobody) != 0) _exit(2);
    _exit(body() ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WEXITSTATUS(status);
}

TEST(PeerFile, OfAProcessThatHasEndedIsLost) {
  EXPECT_EQ(as_an_ordinary_user([] {
              const pid_t peer = fork();
              if (peer == 0) _exit(0);
              siginfo_t ended{};
              waitid(P_PID, static_cast<id_t>(peer), &ended, WEXITED | WNOWAIT);  // it stays a zombie
              const Error zombie = error_of_opening(peer);
              waitpid(peer, nullptr, 0);
              return zombie.code() == ErrorCode::peer_lost && error_of_opening(peer).code() == ErrorCode::peer_lost;
            }),
            0);
}

TEST(PeerFile, OfAnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "takes root, to have another user";
  const pid_t root = getpid();
  EXPECT_EQ(as_an_ordinary_user([&] {
              const Error error = error_of_opening(root);
              return error.code() == ErrorCode::unavailable &&
                     std::string(error.what()).find("run all ranks of a host as one user") != std::string::npos;
            }),
            0);
}

}  // namespace
}  // namespace stretto
