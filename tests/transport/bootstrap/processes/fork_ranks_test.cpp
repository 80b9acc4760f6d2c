#include "transport/bootstrap/processes/fork_ranks.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <vector>

namespace stretto {
namespace {

TEST(ForkRanks, ReturnsWhatBecameOfThem) {
  EXPECT_EQ(fork_ranks(3, [](int) { return 0; }), 0);
  EXPECT_EQ(fork_ranks(3, [](int rank) { return rank == 1 ? 7 : 0; }), 7);
  EXPECT_EQ(fork_ranks(2, [](int rank) { return rank == 1 ? raise(SIGKILL) : 0; }), 128 + SIGKILL);
  bool told = false;
  EXPECT_EQ(fork_ranks(
                2, [&](int) { return told ? 1 : 0; }, [&] { told = true; }),
            0);
  EXPECT_TRUE(told);
}

// Ranks 0 and 1 end as ranks do that hear of a failure.
TEST(ForkRanks, NamesTheChildByWhichTheJobFailed) {
  const auto lost_with = [](const std::function<int()>& end_of_rank2) {
    LostChild lost;
    EXPECT_NE(fork_ranks(
                  3,
                  [&](int rank) {
                    if (rank == 2) return end_of_rank2();
                    usleep(200000);
                    return failed_with_others;
                  },
                  {}, false, &lost),
              failed_with_others);
    EXPECT_EQ(lost.rank, 2);
    return lost.fate;
  };
  EXPECT_EQ(lost_with([] { return raise(SIGKILL); }), "was killed by SIGKILL");
  EXPECT_EQ(lost_with([] {
              usleep(400000);
              return 7;
            }),
            "failed with status 7");
  EXPECT_EQ(lost_with([] { return 0; }), "ended before the others");
}

TEST(ForkRanks, KnowsTheSignalThatEndsAllAtOnce) {
  LostChild lost;  // not by SIGSEGV, which sanitizers catch
  EXPECT_EQ(fork_ranks(
                3, [](int) { return raise(SIGABRT); }, {}, false, &lost),
            128 + SIGABRT);
  EXPECT_TRUE(lost.by_signal);
  EXPECT_EQ(lost.fate, "was killed by SIGABRT");
}

TEST(ForkRanks, StartsOthersInThePlacesOfThoseThatHaveEnded) {
  int said[2];
  ASSERT_EQ(pipe(said), 0);
  const auto run_rank = [&](int rank) {
    if (rank == 2) raise(SIGKILL);
    const int number = rank;
    if (rank > 2) return write(said[1], &number, sizeof number) == sizeof number ? 0 : 1;
    int came = 0;
    for (int i = 0; rank == 0 && i < 2; ++i) {  // 3 and 4, in any order
      int one = 0;
      if (read(said[0], &one, sizeof one) != sizeof one) return 1;
      came += one;
    }
    return rank == 0 && came != 7 ? 1 : 0;
  };
  std::vector<int> left_at;
  const auto wanted = [&](int left) {
    left_at.push_back(left);
    return left_at.size() <= 2 ? 1 : 0;
  };
  EXPECT_EQ(fork_ranks(3, run_rank, {}, true, nullptr, wanted), 0);
  EXPECT_GE(left_at.size(), 2u);
  for (const int left : left_at) EXPECT_LT(left, 3);
  close(said[0]);
  close(said[1]);
}

TEST(ForkRanks, AsksNoMoreWhenNoneAreWanted) {
  int asked = 0;
  const auto run_rank = [](int rank) {
    usleep(rank == 0 ? 300000 : 0);  // which it would be asked about many times
    return 0;
  };
  const auto wanted = [&](int) {
    ++asked;
    return -1;
  };
  EXPECT_EQ(fork_ranks(3, run_rank, {}, true, nullptr, wanted), 0);
  EXPECT_EQ(asked, 1);
}

// The system refuses a process where the limit of a user's processes is reached. It limits all users but root.
TEST(ForkRanks, LosesNobodyIfAReplacementCannotStart) {
  const auto in_a_process_of_its_own = [] {
    if (getuid() == 0 && setuid(65534) != 0) return 77;
    rlimit most{};
    getrlimit(RLIMIT_NPROC, &most);
    int asked = 0;
    const auto run_rank = [](int rank) {
      usleep(rank == 0 ? 300000 : 0);
      return 0;
    };
    const auto wanted = [&](int) {
      ++asked;
      most.rlim_cur = 0;
      setrlimit(RLIMIT_NPROC, &most);
      return asked == 1 ? 1 : -1;
    };
    return fork_ranks(3, run_rank, {}, true, nullptr, wanted) == 0 && asked == 2 ? 0 : 1;
  };
  const int status = fork_ranks(1, [&](int) { return in_a_process_of_its_own(); });
  if (status == 77) GTEST_SKIP() << "Root cannot become another user here.";
  EXPECT_EQ(status, 0);
}

TEST(ForkRanks, LetsSurvivorsGoOnWhileRank0Does) {
  const auto run_rank = [](int rank) {
    if (rank == 1) raise(SIGKILL);
    return rank == 2 ? 3 : 0;
  };
  EXPECT_EQ(fork_ranks(3, run_rank, {}, true), 0);
  EXPECT_EQ(fork_ranks(
                3, [](int rank) { return rank == 0 ? 5 : 0; }, {}, true),
            5);
}

TEST(ForkRanks, NamesTheChildWithoutWhichTheOthersCouldNotGoOn) {
  const auto lost_if_rank0_ends_with = [](int status) {
    LostChild lost;
    const auto run_rank = [&](int rank) {
      if (rank == 2) raise(SIGKILL);
      usleep(200000);
      return rank == 0 ? status : failed_with_others;
    };
    EXPECT_NE(fork_ranks(3, run_rank, {}, true, &lost), 0);
    return lost.rank;
  };
  EXPECT_EQ(lost_if_rank0_ends_with(failed_with_others), 2);
  EXPECT_EQ(lost_if_rank0_ends_with(7), 0);
}

TEST(ForkRanks, EndsARank0ThatTheOthersHaveLost) {
  LostChild lost;
  const auto run_rank = [](int rank) { return rank == 0 ? pause() : rank == 1 ? lost_rank_0 : 3; };
  EXPECT_EQ(fork_ranks(3, run_rank, {}, true, &lost), 1);
  EXPECT_EQ(lost.rank, 0);
  EXPECT_EQ(lost.fate, "did not end with the others, and was killed");
  EXPECT_TRUE(lost.killed_here);
}

TEST(ForkRanks, EndsTheRestIfItIsStopped) {
  LostChild lost;
  const auto run_rank = [](int rank) { return rank == 0 ? raise(SIGSTOP) : 0; };
  EXPECT_EQ(fork_ranks(2, run_rank, {}, true, &lost), 1);
  EXPECT_EQ(lost.rank, 0);
  EXPECT_TRUE(lost.killed_here);
}

TEST(ForkRanks, WaitsForAStoppedOneThatIsWoken) {
  const auto run_rank = [](int rank) {
    if (rank == 1) return 0;
    const pid_t self = getpid();
    if (fork() == 0) {  // wakes it
      usleep(300000);
      kill(self, SIGCONT);
      _exit(0);
    }
    raise(SIGSTOP);
    return 0;
  };
  EXPECT_EQ(fork_ranks(2, run_rank), 0);
}

TEST(ForkRanks, HearsOfChildrenWhereSigchldIsIgnored) {
  const auto before = std::signal(SIGCHLD, SIG_IGN);
  EXPECT_EQ(fork_ranks(2, [](int rank) { return rank == 1 ? raise(SIGKILL) : 0; }), 128 + SIGKILL);
  EXPECT_EQ(std::signal(SIGCHLD, before), SIG_IGN);
}

}  // namespace
}  // namespace stretto
