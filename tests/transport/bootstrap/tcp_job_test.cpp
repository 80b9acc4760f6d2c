// Ranks that meet over TCP: admission and refusal, and how every rank learns that another has ended. The ranks are threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <list>
#include <thread>

#include "core/fail.hpp"
#include "stretto/stream.hpp"
#include "support/error.hpp"
#include "transport/bootstrap/frames.hpp"
#include "transport/bootstrap/handshake.hpp"
#include "transport/bootstrap/job.hpp"
#include "transport/bootstrap/processes/fork_ranks.hpp"
#include "transport/bootstrap/socket.hpp"

namespace stretto {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using Joining = std::future<std::unique_ptr<JobControl>>;
using Jobs = std::vector<std::unique_ptr<JobControl>>;

// The meeting as rank 0 opens it; the other ranks use elsewhere().
Meeting open_place(double timeout = 20) {
  const Listener listener = listen_on("127.0.0.1", 0);
  return {"127.0.0.1", listener.port, "the secret", listener.socket, timeout};
}

Meeting elsewhere(Meeting meeting, const std::string& secret = "the secret") {
  meeting.listener = -1;
  meeting.secret = secret;
  return meeting;
}

Joining join(int rank, int size, const Meeting& meeting) {
  return std::async(std::launch::async, [=] { return join_tcp_job(rank, size, meeting); });
}

std::string failure_of(Joining& joining) {
  return sentence_of([&] { joining.get(); });
}

Jobs meet(int size, double timeout = 20) {
  const Meeting place = open_place(timeout);
  std::vector<Joining> joining;
  for (int rank = 0; rank < size; ++rank) joining.push_back(join(rank, size, rank == 0 ? place : elsewhere(place)));
  Jobs jobs;
  for (Joining& one : joining) jobs.push_back(one.get());
  return jobs;
}

void on_every_rank(const Jobs& jobs, const std::function<void(JobControl&)>& action) {
  std::vector<std::thread> threads;
  for (const auto& job : jobs) {
    if (job) threads.emplace_back([&] { action(*job); });
  }
  for (std::thread& thread : threads) thread.join();
}

// Polls check() until it throws and returns that error: a rank hears of another's end with some delay.
Error end_of(const JobControl& job) {
  const double deadline = now_seconds() + 20;
  while (now_seconds() < deadline) {
    try {
      job.check();
    } catch (const Error& error) {
      return error;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return {ErrorCode::internal, "Nothing was heard of an end."};
}

Bytes contribution(int rank, std::size_t bytes) { return Bytes(bytes, static_cast<std::byte>(rank + 1)); }

TEST(TcpJob, ExchangesPartsOfAllSizes) {
  const Jobs jobs = meet(5);
  on_every_rank(jobs, [](JobControl& job) {
    for (const std::size_t unit : {0, 1, 1000, 1000000}) {
      const std::vector<Bytes> parts = job.exchange(contribution(job.rank(), unit * job.rank()));
      ASSERT_EQ(parts.size(), 5U);
      for (int rank = 0; rank < 5; ++rank) EXPECT_EQ(parts[rank], contribution(rank, unit * rank));
    }
    job.leave();
    EXPECT_NO_THROW(job.check());
  });
}

TEST(TcpJob, TurnsAwayWhoDoesNotKnowTheSecret) {
  const Meeting place = open_place();
  Joining rank0 = join(0, 2, place);
  Joining wrong = join(1, 2, elsewhere(place, "a guess"));
  EXPECT_THAT(failure_of(wrong), AllOf(HasSubstr("turned rank 1 away"), HasSubstr("STRETTO_JOB_SECRET")));
  Joining right = join(1, 2, elsewhere(place));
  EXPECT_EQ(right.get()->rank(), 1);
  EXPECT_EQ(rank0.get()->size(), 2);
}

// Whoever has taken the port of rank 0 lets everybody in.
TEST(TcpJob, LeavesARank0ThatDoesNotKnowTheSecret) {
  const Meeting place = open_place();
  const Socket listener(place.listener);
  Joining rank1 = join(1, 2, elsewhere(place));
  const Hash guess = hash_of("a guess");
  Socket connection;
  while (!connection) connection = accept_on(listener.descriptor());
  Arriving arriving(std::move(connection), guess);
  while (arriving.look() == Arriving::State::waits) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const Socket admitted = arriving.admit(introduce(0, 2, "job"), 7);
  EXPECT_THAT(failure_of(rank1), HasSubstr("without knowing the job's STRETTO_JOB_SECRET"));
}

TEST(TcpJob, IsNotDisturbedByStrangers) {
  const Meeting place = open_place();
  Joining rank0 = join(0, 2, place);
  try_to_connect("127.0.0.1", place.port, 5).close();
  const Socket talker = try_to_connect("127.0.0.1", place.port, 5);
  const std::string garbage(1000, '!');
  talker.write_some(garbage.data(), garbage.size());
  const Socket silent = try_to_connect("127.0.0.1", place.port, 5);
  const Jobs jobs = [&] {
    Jobs both;
    both.push_back(join(1, 2, elsewhere(place)).get());
    both.push_back(rank0.get());
    return both;
  }();
  on_every_rank(jobs, [](JobControl& job) { EXPECT_EQ(job.exchange(contribution(job.rank(), 3))[1], contribution(1, 3)); });
}

TEST(TcpJob, IsNotHeldUpByAStrangerThatTrickles) {
  const Meeting place = open_place();
  Joining rank0 = join(0, 2, place);
  const Socket stranger = try_to_connect("127.0.0.1", place.port, 5);
  std::atomic<bool> met = false;
  std::thread trickle([&] {
    while (!met && stranger.write_some("?", 1) == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  });
  Joining rank1 = join(1, 2, elsewhere(place));
  EXPECT_EQ(failure_of(rank0), "");
  EXPECT_EQ(failure_of(rank1), "");
  met = true;
  trickle.join();
}

// Whoever comes in vain is told, and rank 0 goes on.
TEST(TcpJob, RefusesASecondRankOfOneNumber) {
  const Meeting place = open_place();
  Joining rank0 = join(0, 3, place);
  const std::unique_ptr<JobControl> first = join(1, 3, elsewhere(place)).get();
  Joining second = join(1, 3, elsewhere(place));
  EXPECT_THAT(failure_of(second), HasSubstr("Rank 1 came twice"));
  Joining rank2 = join(2, 3, elsewhere(place));
  EXPECT_EQ(failure_of(rank2), "");
  EXPECT_EQ(failure_of(rank0), "");
}

TEST(TcpJob, RefusesRanksThatCountDifferently) {
  const Meeting place = open_place(1);
  Joining rank0 = join(0, 2, place);
  Joining rank1 = join(1, 3, elsewhere(place));
  EXPECT_THAT(failure_of(rank1), HasSubstr("believes in 3 ranks, rank 0 in 2"));
  EXPECT_THAT(failure_of(rank0), AllOf(HasSubstr("rank 1 did not come"), HasSubstr("believes in 3 ranks, rank 0 in 2")));
}

TEST(TcpJob, RefusesRanksOfAnotherJob) {
  Meeting place = open_place();
  place.job = "Slurm 17.0";
  Joining rank0 = join(0, 2, place);
  Meeting other = elsewhere(place);
  other.job = "Slurm 18.0";
  Joining wrong = join(1, 2, other);
  EXPECT_THAT(failure_of(wrong), AllOf(HasSubstr("'Slurm 18.0'"), HasSubstr("'Slurm 17.0'"), HasSubstr("MASTER_PORT")));
  Joining right = join(1, 2, elsewhere(place));
  EXPECT_EQ(failure_of(right), "");
  EXPECT_EQ(failure_of(rank0), "");
}

// A torchrun with a UUID as its id makes a name of 65 bytes.
TEST(TcpJob, KnowsItsJobByANameOfAnyLength) {
  for (const std::size_t length : {1, 63, 64, 65, 127, 128, 300, 5000}) {
    Meeting place = open_place();
    place.job = std::string(length, 'j');
    Joining rank0 = join(0, 2, place);
    for (const std::size_t differs_at : {std::size_t{0}, length / 2, length - 1}) {
      Meeting other = elsewhere(place);
      other.job[differs_at] = 'k';
      Joining wrong = join(1, 2, other);
      EXPECT_THAT(failure_of(wrong), HasSubstr("MASTER_PORT")) << length << " bytes, other at " << differs_at;
    }
    Joining right = join(1, 2, elsewhere(place));
    EXPECT_EQ(failure_of(right), "") << length;
    EXPECT_EQ(failure_of(rank0), "") << length;
  }
}

TEST(TcpJob, SaysThatThePortIsTaken) {
  const Meeting other = open_place();
  const Socket closes(other.listener);
  EXPECT_THAT(sentence_of([&] { join_tcp_job(0, 2, elsewhere(other)); }),
              AllOf(HasSubstr("127.0.0.1:" + std::to_string(other.port)), HasSubstr("in use"), HasSubstr("MASTER_PORT")));
}

TEST(TcpJob, SaysWhoDidNotCome) {
  const Meeting place = open_place(0.5);
  Joining rank0 = join(0, 4, place);
  const std::unique_ptr<JobControl> rank2 = join(2, 4, elsewhere(place)).get();
  EXPECT_THAT(failure_of(rank0), AllOf(HasSubstr("Of 4 ranks, ranks 1 and 3 did not come"), HasSubstr("0.5 s")));
  EXPECT_EQ(end_of(*rank2).code(), ErrorCode::peer_gave_up);
}

TEST(TcpJob, SaysThatRank0DoesNotAnswer) {
  const Meeting place = open_place(0.2);
  Socket(place.listener).close();
  EXPECT_THAT(sentence_of([&] { join_tcp_job(1, 2, elsewhere(place)); }),
              AllOf(HasSubstr("Rank 0 does not answer at 127.0.0.1:" + std::to_string(place.port)), HasSubstr("0.2 s")));
  EXPECT_THAT(sentence_of([] {
                join_tcp_job(1, 2, {"no.such.host.invalid", 1, "", -1, 0.2});
              }),
              HasSubstr("'no.such.host.invalid' is not known"));
}

TEST(TcpJob, TellsAllWhyARankGaveUp) {
  for (const int who : {0, 2}) {
    const Jobs jobs = meet(4);
    jobs[who]->abort("no paper left.");
    on_every_rank(jobs, [&](JobControl& job) {
      const Error heard = end_of(job);
      EXPECT_EQ(heard.code(), ErrorCode::peer_gave_up);
      EXPECT_EQ(std::string(heard.what()), fmt::format("Rank {} gave up: no paper left.", who));
      job.leave();
    });
  }
}

TEST(TcpJob, TellsAllWhichRankDied) {
  for (const int who : {0, 2}) {
    Jobs jobs = meet(4);
    jobs[who].reset();  // closes its connections without a message, as a crash does
    on_every_rank(jobs, [&](JobControl& job) {
      const Error heard = end_of(job);
      EXPECT_EQ(heard.code(), ErrorCode::peer_lost);
      EXPECT_THAT(heard.what(), AllOf(HasSubstr(fmt::format("Rank {} ", who)), HasSubstr("killed or crashed")));
      job.leave();
    });
  }
}

std::string loss_heard_by(const JobControl& job, int rank) {
  for (const double deadline = now_seconds() + 20; job.loss_of(rank).empty() && now_seconds() < deadline;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_TRUE(job.has_left(rank));
  return job.loss_of(rank);
}

TEST(AnyJob, GoesOnWithoutRanksThatItDoesWithout) {
  for (const bool over_tcp : {true, false}) {
    Jobs jobs = over_tcp ? meet(4) : make_local_jobs(4);
    jobs[0]->do_without({0, 1, 2, 3});
    jobs[0]->need({3});
    jobs[2]->need({1, 2});  // rank 0's calls count
    jobs[1].reset();
    jobs[2]->abort("bad luck");
    for (const int rank : {0, 3}) {
      EXPECT_THAT(loss_heard_by(*jobs[static_cast<std::size_t>(rank)], 1), HasSubstr("ended without a word"));
      EXPECT_EQ(loss_heard_by(*jobs[static_cast<std::size_t>(rank)], 2), "Rank 2 gave up: bad luck");
      EXPECT_EQ(jobs[static_cast<std::size_t>(rank)]->loss_of(0), "");
      EXPECT_NO_THROW(jobs[static_cast<std::size_t>(rank)]->check());
    }
    jobs[3].reset();  // the control
    EXPECT_THAT(end_of(*jobs[0]).what(), AllOf(HasSubstr("ank 3"), HasSubstr("ended without a word")));
  }
}

TEST(TcpJob, HearsManyStrangersAtOnce) {
  const Meeting place = open_place();
  std::list<Socket> strangers;
  for (int i = 0; i < 300; ++i) strangers.push_back(try_to_connect("127.0.0.1", place.port, 5));
  Joining rank0 = join(0, 2, place);  // one after the other, strangers would take all of the meeting's time
  Joining rank1 = join(1, 2, elsewhere(place));
  EXPECT_EQ(failure_of(rank1), "");
  EXPECT_EQ(failure_of(rank0), "");
}

// A child, whose limit of descriptors does not concern the other tests.
TEST(TcpJob, SaysThatDescriptorsHaveRunOut) {
  const Meeting place = open_place();
  const auto run_rank = [&](int rank) {
    if (rank == 1) {
      close(place.listener);
      return sentence_of([&] { join_tcp_job(1, 2, elsewhere(place)); }).empty() ? 1 : 0;
    }
    rlimit files{};
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = static_cast<rlim_t>(dup(place.listener)) + 1;
    setrlimit(RLIMIT_NOFILE, &files);
    const std::string said = sentence_of([&] { join_tcp_job(0, 2, place); });
    return said.find("ulimit -n") != std::string::npos ? 0 : 2;
  };
  EXPECT_EQ(fork_ranks(2, run_rank, [&] { close(place.listener); }), 0);
}

TEST(TcpJob, EndsAnExchangeInWhichARankIsSilent) {
  for (const int who : {0, 2}) {
    const Jobs jobs = meet(3, 0.3);
    std::vector<std::future<std::string>> waiting;
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == who) continue;
      waiting.push_back(std::async(std::launch::async,
                                   [&, rank] { return sentence_of([&] { jobs[rank]->exchange(contribution(rank, 5)); }); }));
    }
    for (auto& one : waiting) EXPECT_THAT(one.get(), HasSubstr(fmt::format("Rank {} did not take part", who)));
  }
}

// A process that is admitted, and then sends what ranks never do.
TEST(TcpJob, SurvivesWhatIsNoMessage) {
  struct Head {
    FrameKind kind;
    std::uint32_t bytes;
  };
  const std::vector<Head> heads{{FrameKind::result, 0},
                                {FrameKind::failed, 2},
                                {FrameKind::contribution, 0xffffffff},
                                {static_cast<FrameKind>(77), 0},
                                {FrameKind::contribution, 1000}};
  for (const Head& head : heads) {
    const Meeting place = open_place();
    Joining rank0 = join(0, 2, place);
    {
      const Admission admission = arrive(elsewhere(place), introduce(1, 2, ""));
      ASSERT_TRUE(admission.socket.write_all(&head, sizeof head, 5));
      ASSERT_TRUE(admission.socket.write_all("ab", 2, 5));
    }
    const Error heard = end_of(*rank0.get());
    EXPECT_EQ(heard.code(), ErrorCode::peer_lost);
    EXPECT_THAT(heard.what(), testing::ContainsRegex("ank 1 "));
  }
}

// Rank 1 has announced a long message and sends no more of it; rank 2 dies.
TEST(TcpJob, TellsOfADeathBesideARankThatStopsInMidFrame) {
  const Meeting place = open_place();
  Joining rank0 = join(0, 4, place);
  const Admission stopped = arrive(elsewhere(place), introduce(1, 4, ""));
  Joining joining2 = join(2, 4, elsewhere(place));
  Joining joining3 = join(3, 4, elsewhere(place));
  std::unique_ptr<JobControl> rank2 = joining2.get();
  const std::unique_ptr<JobControl> rank3 = joining3.get();
  const std::unique_ptr<JobControl> first = rank0.get();
  const std::uint32_t head[2] = {static_cast<std::uint32_t>(FrameKind::contribution), 1000};
  ASSERT_TRUE(stopped.socket.write_all(&head, sizeof head, 5));
  rank2.reset();
  EXPECT_THAT(end_of(*first).what(), HasSubstr("Rank 2 "));
  EXPECT_THAT(end_of(*rank3).what(), HasSubstr("Rank 2 "));
}

TEST(TcpJob, KnowsWhoHasLeft) {
  const Jobs jobs = meet(3);
  EXPECT_FALSE(jobs[0]->any_left());
  std::thread leaving([&] { jobs[2]->leave(); });
  for (const int rank : {0, 1}) {
    const double deadline = now_seconds() + 20;
    while (!jobs[rank]->any_left() && now_seconds() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_TRUE(jobs[rank]->has_left(2));
    EXPECT_FALSE(jobs[rank]->has_left(1 - rank));
    EXPECT_THAT(jobs[rank]->news_of(2), HasSubstr("Rank 2 has left"));
  }
  on_every_rank(jobs, [&](JobControl& job) {
    if (job.rank() != 2) job.leave();
  });
  leaving.join();
}

TEST(TcpJob, HasAnIdentity) {
  const Jobs one = meet(2);
  const Jobs other = meet(2);
  EXPECT_EQ(one[0]->identity(), one[1]->identity());
  EXPECT_NE(one[0]->identity(), other[0]->identity());
}

TEST(TcpJob, EndsIfARankDiesWhileTheyMeet) {
  const Meeting place = open_place();
  Joining rank0 = join(0, 3, place);
  const std::unique_ptr<JobControl> rank2 = join(2, 3, elsewhere(place)).get();
  arrive(elsewhere(place), introduce(1, 3, "")).socket.close();
  std::unique_ptr<JobControl> job;
  std::string said = sentence_of([&] { job = rank0.get(); });
  if (job) said = end_of(*job).what();  // all had come before the death was noticed
  EXPECT_THAT(said, HasSubstr("ank 1 "));
  EXPECT_EQ(end_of(*rank2).code(), ErrorCode::peer_lost);
}

TEST(TcpJob, EndsAnExchangeThatCannotBecomeComplete) {
  Jobs jobs = meet(3);
  std::vector<std::future<std::string>> waiting;
  for (const int rank : {0, 1}) {
    waiting.push_back(std::async(std::launch::async,
                                 [&, rank] { return sentence_of([&] { jobs[rank]->exchange(contribution(rank, 5)); }); }));
  }
  jobs[2].reset();
  for (auto& one : waiting) EXPECT_THAT(one.get(), HasSubstr("Rank 2 "));
}

}  // namespace
}  // namespace stretto
