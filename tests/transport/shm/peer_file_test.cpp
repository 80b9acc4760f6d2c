// Whether another process can be opened depends on who runs the ranks, so the tests of ordinary users run as one.
#include "transport/shm/peer_file.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <string>

#include "core/fail.hpp"
#include "support/ordinary_user.hpp"

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

// What is wrong with this process must not be told of the peer.
TEST(PeerFile, OfALivingPeerIsRefusedWithWhatThisProcessLacks) {
  const auto said_by_child = [](const std::function<bool()>& prepare, const std::string& word) {
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child == 0) {
      if (!prepare()) _exit(77);
      const Error error = error_of_opening(parent);
      const bool is_right =
          error.code() == ErrorCode::unavailable && std::string(error.what()).find(word) != std::string::npos;
      _exit(is_right ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
  };
  const auto without_descriptors = [] {
    rlimit files{};
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = static_cast<rlim_t>(dup(STDERR_FILENO));
    return setrlimit(RLIMIT_NOFILE, &files) == 0;
  };
  EXPECT_EQ(said_by_child(without_descriptors, "ulimit -n"), 0);
  const auto without_proc = [] {
    return unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           mount("none", "/proc", "tmpfs", 0, nullptr) == 0;
  };
  const int status = said_by_child(without_proc, "/proc");
  if (status == 77) GTEST_SKIP() << "a directory in place of /proc takes root";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace stretto
