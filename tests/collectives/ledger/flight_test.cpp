// The flight recorder, and what the sentence of a timeout says.
#include "collectives/ledger/flight.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill

#include <atomic>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>
#include <tuple>

#include "stretto/stretto.hpp"
#include "support/error.hpp"
#include "support/jobs.hpp"
#include "support/temporary_directory.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;

std::string here(int line) { return fmt::format("ledger/flight_test.cpp:{}", line); }

TEST(FlightRecorder, NumbersOperationsInTheirCommunicatorAndKnowsTheirCallSites) {
  run_threads(3, [](const Communicator& world) {
    const std::uint64_t since = world.job().ledger().next_sequence();
    const Communicator other = world.duplicate("other");
    const Stream stream("comm");
    float x[4] = {};
    std::vector<int> lines;
    for (int i = 0; i < 2; ++i) {  // at first planned, then by the fast path
      world.all_reduce(x, x, 1, DType::f32, ReduceOp::sum, Stream::inline_()).wait(), lines.push_back(__LINE__);
      other.barrier(Stream::inline_()).wait(), lines.push_back(__LINE__);
      other.all_gather(x + 3, x, 1, DType::f32, stream, {.tag = "tagged"}).wait(), lines.push_back(__LINE__);
    }
    OperationGroup messages;
    const int next = (world.rank() + 1) % 3;
    const int before = (world.rank() + 2) % 3;
    for (int i = 0; i < 2; ++i) {
      std::ignore = world.send(x, 1, DType::f32, next, stream);
      std::ignore = world.recv(x + 1 + i, 1, DType::f32, before, stream);
    }
    messages.end().wait();
    std::vector<std::string> said;
    for (const Record& record : world.job().ledger().records(since)) {
      said.push_back(fmt::format("{} {} {}", record.group, name(record.collective), record.number));
      if (record.tag == "split" || record.root >= 0) continue;
      EXPECT_EQ(record.site.to_string(), here(lines.front()));
      lines.erase(lines.begin());
    }
    EXPECT_THAT(said, ElementsAre("world all_gather 1", "world all_reduce 2", "other barrier 1", "other all_gather 2",
                                  "world all_reduce 3", "other barrier 3", "other all_gather 4", "world send 1",
                                  "world recv 1", "world send 2", "world recv 2"));
  });
}

TEST(FlightRecorder, TheCallSiteIsThatOfTheCallWhereverItsOptionsComeFrom) {
  run_threads(1, [](const Communicator& world) {
    OperationOptions options;
    options.tag = "later";
    float x = 0;
    for (const Stream& stream : {Stream::inline_(), Stream("comm")}) {
      world.all_reduce(&x, &x, 1, DType::f32, ReduceOp::sum, stream, options).wait();
      EXPECT_EQ(world.job().ledger().last(1).back().site.to_string(), here(__LINE__ - 1));
      options.site = {"/home/user/model.cpp", 7};
      world.all_reduce(&x, &x, 1, DType::f32, ReduceOp::sum, stream, options).wait();
      EXPECT_EQ(world.job().ledger().last(1).back().site.to_string(), "user/model.cpp:7");
      options.site = {};
    }
  });
}

TEST(CallSite, IsToldByItsLastFolderAndName) {
  for (const auto& [path, told] : std::map<const char*, std::string>{{"main.cpp", "main.cpp:1"},
                                                                     {"/main.cpp", "main.cpp:1"},
                                                                     {"src/main.cpp", "src/main.cpp:1"},
                                                                     {"/home/user/src/main.cpp", "src/main.cpp:1"},
                                                                     {"../src/main.cpp", "src/main.cpp:1"}}) {
    EXPECT_EQ((CallSite{path, 1}.to_string()), told);
  }
  EXPECT_EQ(CallSite{}.to_string(), "");
}

// Rank 2 does not come, and the others end. `meanwhile` is what rank 2 does.
std::string sentence_of_a_wait(const std::function<void(const Communicator&)>& meanwhile, const Stream& stream) {
  return sentence_of(ErrorCode::timeout, [&] {
    run_threads(3, [&](const Communicator& world) {
      double x = 0;
      std::ignore = world.all_reduce(&x, &x, 1, DType::f64, ReduceOp::sum, stream.is_inline() ? stream : Stream("comm"));
      world.job().set_timeout(world.rank() == 2 ? 600 : 1);  // rank 2 must still be where it is when the others ask
      if (world.rank() != 2) {
        world
            .all_reduce(&x, &x, 1, DType::f64, ReduceOp::sum, stream.is_inline() ? stream : Stream("comm"),
                        {.tag = "gradients"})
            .wait();
      }
      meanwhile(world);
    });
  });
}

TEST(FlightRecorder, ATimeoutSaysWhatTheMissingRankIsDoing) {
  for (const Stream& stream : {Stream::inline_(), Stream("any")}) {
    const std::string sentence = sentence_of_a_wait(wait_until_others_fail, stream);
    EXPECT_THAT(sentence,
                ContainsRegex("Rank [01] waited 1 s for rank 2 in all_reduce #2 of 'world' \\(1 f64, gradients, at "
                              "ledger/flight_test.cpp:[0-9]+\\); rank 2 is in no operation: its "
                              "last one, all_reduce #1 of 'world' \\(1 f64, at [^)]*\\), ended [0-9.]+ s ago"));
    EXPECT_THAT(sentence, HasSubstr("STRETTO_CHECK=1"));
  }
  EXPECT_THAT(sentence_of_a_wait([](const Communicator&) {}, Stream::inline_()),
              HasSubstr("rank 2 has ended its part of the job"));
}

TEST(FlightRecorder, ATimeoutSaysInWhichOtherOperationTheMissingRankIs) {
  const auto in_another = [](const Communicator& world) {
    if (world.rank() != 2) return;
    float x = 0;
    world.recv(&x, 1, DType::f32, 0, Stream::inline_()).wait();
  };
  EXPECT_THAT(sentence_of_a_wait(in_another, Stream::inline_()),
              ContainsRegex("for rank 2 in all_reduce #2 .*; rank 2 has been in recv #1 of 'world'"));
}

// Rank 1 waits for rank 2, which waits for rank 3, which has not come.
TEST(FlightRecorder, ATimeoutFollowsRanksThatWaitToTheOneThatHoldsThemUp) {
  const std::string sentence = sentence_of([] {
    run_threads(4, [](const Communicator& world) {
      float x = 0;
      world.barrier(Stream::inline_()).wait();
      if (world.rank() == 3) return wait_until_others_fail(world);
      world.job().set_timeout(world.rank() == 0 ? 3 : 600);  // the others have waited long when rank 0 asks
      world.recv(&x, 1, DType::f32, world.rank() + 1, Stream::inline_()).wait();
    });
  });
  EXPECT_THAT(sentence,
              ContainsRegex("Rank 0 waited 3 s for rank 1 in recv #1 .*; rank 1 has been in recv #1 of 'world' .*, "
                            "and waits for rank 2; rank 2 has been in recv #1 of 'world' .*, and waits for rank 3; "
                            "rank 3 is in no operation: its last one, barrier #1"));
}

nlohmann::json flight_of(const std::filesystem::path& directory, int rank) {
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename();
    if (name.ends_with(fmt::format("_{:05}.json", rank))) return nlohmann::json::parse(std::ifstream(entry.path()));
  }
  return {};
}

TEST(FlightRecorder, EveryRankWritesItsLastThousandOperationsWhenTheJobFails) {
  const TemporaryDirectory directory;
  const Variable there("STRETTO_FLIGHT_DIR", directory / "flights");
  EXPECT_THROW(run_threads(3,
                           [](const Communicator& world) {
                             float x = 0;
                             for (int i = 0; i < 1200; ++i) {
                               world.all_reduce(&x, &x, 1, DType::f32, ReduceOp::sum, Stream::inline_()).wait();
                             }
                             if (world.rank() == 1) throw std::runtime_error("no more");
                             world.barrier(Stream::inline_()).wait();
                           }),
               std::runtime_error);
  for (const int rank : {0, 1, 2}) {
    const nlohmann::json flight = flight_of(directory / "flights", rank);
    ASSERT_TRUE(flight.is_object()) << rank;
    EXPECT_EQ(flight["rank"], rank);
    EXPECT_EQ(flight["size"], 3);
    EXPECT_THAT(flight["reason"].get<std::string>(), HasSubstr("Rank 1 gave up: no more"));
    const auto& operations = flight["operations"];
    ASSERT_GE(operations.size(), 1000U);
    ASSERT_LE(operations.size(), 1001U);
    const auto& sum = operations[990];
    EXPECT_EQ(sum["what"], "all_reduce");
    EXPECT_EQ(sum["state"], "done");
    EXPECT_GE(sum["ended"], sum["begun"]);
    if (rank == 1 || operations.back()["what"] == "all_reduce") {  // a rank may not have come to the barrier yet
      EXPECT_EQ(operations.back()["number"], 1200);
    } else {
      EXPECT_EQ(operations.back()["what"], "barrier");
      EXPECT_EQ(operations.back()["number"], 1201);
      EXPECT_TRUE(operations.back()["ended"].is_null()) << operations.back();
    }
  }
}

TEST(FlightRecorder, KnowsTheOperationThatFailedWhenItsCommunicatorIsGone) {
  std::atomic<bool> has_failed = false;
  const auto body = [&](const Communicator& world) {
    int line = 0;
    try {
      const Communicator other = world.duplicate("other");
      for (int i = 0; i < 3; ++i) other.barrier(Stream::inline_()).wait();
      if (world.rank() == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));  // until rank 0 is in the next one
        throw std::runtime_error("no more");
      }
      line = __LINE__ + 1;
      other.barrier(Stream::inline_()).wait();
    } catch (const Error&) {
      const Record last = world.job().ledger().last(1).back();
      EXPECT_EQ(last.headline(), fmt::format("barrier #4 of 'other' (1 f32, at {})", here(line)));
      EXPECT_TRUE(last.failed);
      EXPECT_GT(last.times.started, 0);
      EXPECT_EQ(world.job().ledger().records().back().sequence, last.sequence);
      has_failed = true;
    }
  };
  EXPECT_THROW(run_threads(2, body), std::runtime_error);
  EXPECT_TRUE(has_failed);
}

TEST(FlightRecorder, IsAskedForByTheProgramOrBySignal) {
  const TemporaryDirectory directory;
  const Variable there("STRETTO_FLIGHT_DIR", directory.path());
  run_threads(2, [&](const Communicator& world) {
    world.barrier(Stream::inline_()).wait();
    const std::filesystem::path path = world.job().write_flight(directory / "asked");
    EXPECT_EQ(nlohmann::json::parse(std::ifstream(path))["operations"].size(), 1U);
    world.barrier(Stream::inline_()).wait();
    if (world.rank() == 0) {
      write_flights_on(SIGUSR1);
      kill(getpid(), SIGUSR1);
    }
    while (flight_of(directory.path(), 1 - world.rank()).is_null()) std::this_thread::yield();
    world.barrier(Stream::inline_()).wait();
  });
  EXPECT_EQ(flight_of(directory.path(), 0)["reason"], fmt::format("signal {}", SIGUSR1));
}

TEST(FlightRecorder, ADirectoryThatCannotBeMadeIsAnError) {
  run_threads(1, [](const Communicator& world) { EXPECT_THROW(world.job().write_flight("/dev/null/flights"), Error); });
}

}  // namespace
}  // namespace stretto
