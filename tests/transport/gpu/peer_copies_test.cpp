// Ranks that share a GPU copy from each other.
#include "transport/gpu/peer_copies.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>

#include "support/error.hpp"
#include "transport/gpu/gpu_ranks.hpp"

namespace stretto {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;

CopyMember place(int member, int size, double timeout = 60) {
  CopyMember result;
  result.rank = member;
  for (int rank = 0; rank < size; ++rank) result.job_ranks.push_back(10 + rank);
  result.timeout = timeout;
  return result;
}

std::function<std::unique_ptr<GpuLinks>(int)> copies(HostGpu& gpu, int size, double timeout = 60) {
  return [&gpu, size, timeout, board = make_copy_board(size)](int rank) {
    return std::make_unique<PeerCopies>(gpu, board, place(rank, size, timeout));
  };
}

TEST(PeerCopies, ExchangeWhatIsSent) {
  for (const int size : {1, 2, 3, 5, 8}) {
    HostGpu gpu({.longest_delay_us = 50, .seed = static_cast<std::uint64_t>(size)});
    EXPECT_EQ(wrong_in_all(exchanges_of(size), size, gpu, copies(gpu, size)), 0U);
    EXPECT_THAT(gpu.violations(), IsEmpty());
    EXPECT_EQ(gpu.events_in_use(), 0U);
  }
}

TEST(PeerCopies, OfTwoCommunicatorsTakeTurns) {
  HostGpu gpu({.longest_delay_us = 50});
  expect_turns_of(copies(gpu, 3), copies(gpu, 3), gpu);
}

// Rank 0 must serve rank 2 before the message of rank 1 that it lists first: rank 1 sends only after a message from rank 2,
// which sends that only after rank 0 has received its first one.
TEST(PeerCopies, ServeWhoeverHasPosted) {
  HostGpu gpu;
  const auto links_of = copies(gpu, 3);
  EXPECT_THAT(on_ranks(3,
                       [&](int rank) {
                         const StreamInUse stream(gpu);
                         const auto links = links_of(rank);
                         const OnGpu<std::uint8_t> data(gpu, stream, 3, static_cast<std::uint8_t>(rank + 1));
                         const auto receives = [&](int peer, std::size_t at) {
                           return GpuMessage{false, data.bytes_at(at), 1, peer};
                         };
                         const auto sends = [&](int peer) { return GpuMessage{true, data.bytes_at(), 1, peer}; };
                         if (rank == 0) {
                           links->exchange({receives(1, 1), receives(2, 2)}, stream);
                           EXPECT_EQ(data.values(), (std::vector<std::uint8_t>{1, 2, 3}));
                         } else if (rank == 1) {
                           links->exchange({receives(2, 2)}, stream);
                           links->exchange({sends(0)}, stream);
                         } else {
                           links->exchange({sends(0)}, stream);
                           links->exchange({sends(1)}, stream);
                         }
                       }),
              Each(""));
}

void sleep_in(HostGpu& gpu, GpuStream stream) {
  gpu.put(stream, [] { std::this_thread::sleep_for(std::chrono::milliseconds(60)); });
}

// Rank 0 sends a value that its stream writes late and overwrites after the exchange; or rank 1's stream is late.
std::uint8_t received(bool sender_is_late, bool ignores_waits) {
  HostGpu gpu({.ignores_waits = ignores_waits});
  const auto links_of = copies(gpu, 2);
  std::uint8_t result = 0;
  const auto sentences = on_ranks(2, [&](int rank) {
    const StreamInUse stream(gpu);
    const auto links = links_of(rank);
    const OnGpu<std::uint8_t> data(gpu, stream, 1, std::uint8_t{1});
    data.values();
    if ((rank == 0) == sender_is_late) sleep_in(gpu, stream);
    if (rank == 0) gpu.put(stream, [at = data.at()] { *at = 2; });
    links->exchange({{rank == 0, data.bytes_at(), 1, 1 - rank}}, stream);
    if (rank == 0) gpu.put(stream, [at = data.at()] { *at = 3; });
    const std::uint8_t last = data.values()[0];
    if (rank == 1) result = last;
  });
  EXPECT_THAT(sentences, Each(""));
  return result;
}

TEST(PeerCopies, MakeStreamsWaitForEachOther) {
  EXPECT_EQ(received(true, false), 2);
  EXPECT_EQ(received(false, false), 2);
#if !defined(__SANITIZE_THREAD__)       // the controls are the races that it would find
  EXPECT_NE(received(true, true), 2);   // without the receiver's wait ...
  EXPECT_NE(received(false, true), 2);  // ... and without the sender's
#endif
}

TEST(PeerCopies, DoNotWaitForTheGpu) {
  HostGpu gpu;
  const auto links_of = copies(gpu, 2);
  std::atomic<bool> goes_on = false;
  EXPECT_THAT(
      on_ranks(2,
               [&](int rank) {
                 const StreamInUse stream(gpu);
                 const auto links = links_of(rank);
                 const OnGpu<std::uint8_t> data(gpu, stream, 2, std::uint8_t{0});
                 data.values();
                 gpu.put(stream, [&] { goes_on.wait(false); });
                 for (int i = 0; i < 3; ++i) {
                   links->exchange({{true, data.bytes_at(0), 1, 1 - rank}, {false, data.bytes_at(1), 1, 1 - rank}}, stream);
                 }
                 goes_on = true;
                 goes_on.notify_all();
                 data.values();
               }),
      Each(""));
}

TEST(PeerCopies, NameThePeerThatDoesNotCome) {
  for (const bool sends : {false, true}) {
    HostGpu gpu;
    const auto links_of = copies(gpu, 3, 0.2);
    const auto sentences = on_ranks(3, [&](int rank) {
      const StreamInUse stream(gpu);
      const auto links = links_of(rank);
      const OnGpu<std::uint8_t> data(gpu, stream, 8, std::uint8_t{0});
      if (rank == 1) links->exchange({{sends, data.bytes_at(), 8, 2}}, stream);
      if (rank == 0) {  // waits for rank 1, which has given up
        links->exchange({{false, data.bytes_at(), 8, 1}}, stream);
      }
    });
    const auto names_it = AllOf(HasSubstr("Rank 11 has waited 0.2 s"),
                                HasSubstr(sends ? "for rank 12 to receive from it" : "for rank 12 to send to it"));
    EXPECT_TRUE(testing::Value(sentences[1], names_it) || testing::Value(sentences[1], HasSubstr("Rank 10 gave up")))
        << sentences[1];
    EXPECT_THAT(sentences[0], testing::AnyOf(HasSubstr("for rank 11 to send to it"), HasSubstr("Rank 11 gave up")));
    EXPECT_EQ(sentences[2], "");
  }
}

TEST(PeerCopies, SayThatSizesDiffer) {
  HostGpu gpu;
  const auto links_of = copies(gpu, 2);
  const auto sentences = on_ranks(2, [&](int rank) {
    const StreamInUse stream(gpu);
    const auto links = links_of(rank);
    const OnGpu<std::uint8_t> data(gpu, stream, 8, std::uint8_t{0});
    links->exchange({{rank == 0, data.bytes_at(), rank == 0 ? 8U : 7U, 1 - rank}}, stream);
  });
  EXPECT_THAT(sentences, Each(HasSubstr("Rank 10 sends 8 bytes to rank 11, which receives 7")));
}

TEST(PeerCopies, NoticeALostRankWhileTheyWait) {
  HostGpu gpu;
  CopyMember here = place(0, 2);
  here.check = [] { throw std::runtime_error("rank 11 is lost"); };
  PeerCopies links(gpu, make_copy_board(2), here);
  const StreamInUse stream(gpu);
  const OnGpu<std::uint8_t> data(gpu, stream, 8, std::uint8_t{0});
  EXPECT_EQ(sentence_of([&] { links.exchange({{false, data.bytes_at(), 8, 1}}, stream); }), "rank 11 is lost");
  EXPECT_THAT(links.failure(), HasSubstr("rank 11 is lost"));
}

TEST(PeerCopies, EndWithAnAbort) {
  HostGpu gpu;
  const auto links_of = copies(gpu, 2);
  const auto sentences = on_ranks(2, [&](int rank) {
    const StreamInUse stream(gpu);
    const auto links = links_of(rank);
    const OnGpu<std::uint8_t> data(gpu, stream, 8, std::uint8_t{0});
    if (rank == 1) return links->abort();
    links->exchange({{false, data.bytes_at(), 8, 1}}, stream);
  });
  EXPECT_EQ(sentences[0], "Rank 11 has aborted the communicator.");
}

TEST(PeerCopies, SayThatTheyCannotBePartOfAGraph) {
  HostGpu gpu;
  const auto links_of = copies(gpu, 2);
  EXPECT_THAT(on_ranks(2,
                       [&](int rank) {
                         const StreamInUse stream(gpu);
                         const auto links = links_of(rank);
                         const OnGpu<std::uint8_t> data(gpu, stream, 8, std::uint8_t{0});
                         gpu.begin_capture(stream);
                         EXPECT_THAT(sentence_of([&] {
                                       links->exchange({{rank == 0, data.bytes_at(), 8, 1 - rank}}, stream);
                                     }),
                                     HasSubstr("in a graph"));
                         gpu.destroy(gpu.end_capture(stream));
                       }),
              Each(""));
}

}  // namespace
}  // namespace stretto
