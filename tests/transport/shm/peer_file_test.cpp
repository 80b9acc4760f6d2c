// Whether another process can be opened depends on who runs the ranks, so the tests of ordinary users run as one.
#include "transport/shm/peer_file.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "core/fail.hpp"
#include "ordinary_user.hpp"

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

TEST(PeerFile, OfAProcessThatHasEndedIsLost) {
  EXPECT_TRUE(holds_for_an_ordinary_user([] {
    const pid_t peer = fork();
    if (peer == 0) _exit(0);
    siginfo_t ended{};
    waitid(P_PID, static_cast<id_t>(peer), &ended, WEXITED | WNOWAIT);  // it stays a zombie
    const Error zombie = error_of_opening(peer);
    waitpid(peer, nullptr, 0);
    return zombie.code() == ErrorCode::peer_lost && error_of_opening(peer).code() == ErrorCode::peer_lost;
  }));
}

TEST(PeerFile, OfAnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "takes root, to have another user";
  const pid_t root = getpid();
  EXPECT_TRUE(holds_for_an_ordinary_user([&] {
    const Error error = error_of_opening(root);
    return error.code() == ErrorCode::unavailable &&
           std::string(error.what()).find("run all ranks of a host as one user") != std::string::npos;
  }));
}

}  // namespace
}  // namespace stretto
