// The protocol by which two ranks announce full and empty blocks to each other.
#include "transport/gpu/ipc_peer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "transport/linked_ranks.hpp"

namespace stretto {
namespace {

using testing::Each;
using testing::HasSubstr;

constexpr IpcBlocks three{3, 16};

// Two ranks with blocks in this test's memory instead of a GPU's.
void on_two(const std::function<void(IpcPeer& peer, int rank, std::byte* own, std::byte* peers)>& body) {
  std::array<std::array<std::byte, 48>, 2> memory{};
  EXPECT_THAT(on_linked_ranks(2,
                              [&](Links& links, JobControl& job) {
                                const auto rank = static_cast<std::size_t>(job.rank());
                                std::byte* const own = memory[rank].data();
                                std::byte* const peers = memory[1 - rank].data();
                                IpcPeer peer(links.to(1 - job.rank(), Links::gpu_lane), own, peers, three);
                                body(peer, job.rank(), own, peers);
                              }),
              Each(""));
}

IpcPeer::Full next_full(IpcPeer& peer) {
  while (true) {
    if (const IpcPeer::Full block = peer.take_full(); block.memory != nullptr) return block;
    peer.progress();
  }
}

void exchange_bytes(IpcPeer& peer) {
  while (!peer.has_told_all()) peer.progress();
}

void wait_until_emptied(IpcPeer& peer) {
  while (!peer.has_been_emptied()) peer.progress();
}

TEST(IpcPeer, GivesNoBlockOutThatThePeerMayStillCopyFrom) {
  on_two([](IpcPeer& peer, int rank, std::byte* own, std::byte* peers) {
    if (rank == 0) {
      for (std::size_t i = 0; i < three.number; ++i) {
        EXPECT_EQ(peer.take_own(), own + i * three.bytes);
        EXPECT_FALSE(peer.has_been_emptied());
      }
      EXPECT_EQ(peer.take_own(), nullptr);
      for (std::size_t i = 0; i < three.number; ++i) peer.say_full(i + 1);
      std::byte* again = nullptr;
      while (again == nullptr) {
        peer.progress();
        again = peer.take_own();
      }
      EXPECT_EQ(again, own);
      EXPECT_EQ(peer.take_own(), nullptr);  // only one block was emptied
      peer.say_full(16);
      wait_until_emptied(peer);
      return;
    }
    EXPECT_EQ(peer.take_full().memory, nullptr);
    for (std::size_t i = 0; i < three.number; ++i) {
      const IpcPeer::Full block = next_full(peer);
      EXPECT_EQ(block.memory, peers + i * three.bytes);
      EXPECT_EQ(block.bytes, i + 1);
    }
    peer.say_empty();
    EXPECT_EQ(next_full(peer).memory, peers);
    for (std::size_t i = 0; i < three.number; ++i) peer.say_empty();
    exchange_bytes(peer);
  });
}

// Announcements of one direction and acknowledgements of the other share a link. Without acknowledgements, blocks would be
// overwritten before they are copied.
TEST(IpcPeer, KeepsBothDirectionsApart) {
  constexpr int many = 5000;
  on_two([](IpcPeer& peer, int rank, std::byte* /*own*/, std::byte* /*peers*/) {
    std::mt19937 chance(static_cast<unsigned>(rank));
    int sent = 0, received = 0, copying = 0, wrong = 0;
    while (received < many || sent < many || copying > 0 || !peer.has_told_all()) {
      peer.progress();
      if (chance() % 2 == 0 && sent < many) {
        if (std::byte* const block = peer.take_own()) {
          *block = static_cast<std::byte>(sent + 100 * rank);
          peer.say_full(static_cast<std::size_t>(1 + sent++ % 16));
        }
      }
      if (chance() % 3 == 0) {
        if (const IpcPeer::Full block = peer.take_full(); block.memory != nullptr) {
          wrong += *block.memory != static_cast<std::byte>(received + 100 * (1 - rank));
          wrong += block.bytes != static_cast<std::size_t>(1 + received++ % 16);
          ++copying;
        }
      }
      if (chance() % 3 == 0 && copying > 0) {
        peer.say_empty();
        --copying;
      }
    }
    wait_until_emptied(peer);
    EXPECT_EQ(wrong, 0);
  });
}

// The control: a peer that says a block is empty before it copies finds a later message's bytes.
TEST(IpcPeer, BlocksThatAreSaidToBeEmptyAreFilledAgain) {
  on_two([](IpcPeer& peer, int rank, std::byte* /*own*/, std::byte* /*peers*/) {
    constexpr int times = 7;
    if (rank == 0) {
      for (int i = 0; i < times;) {
        peer.progress();
        std::byte* const block = peer.take_own();
        if (block == nullptr) continue;
        *block = static_cast<std::byte>(i++);
        peer.say_full(1);
      }
      wait_until_emptied(peer);
      return;
    }
    const IpcPeer::Full first = next_full(peer);
    peer.say_empty();
    for (int i = 1; i < times; ++i) {
      next_full(peer);
      peer.say_empty();
    }
    exchange_bytes(peer);
    EXPECT_NE(*first.memory, std::byte{0});
  });
}

TEST(IpcPeer, SaysWhatItDoesNotUnderstand) {
  EXPECT_THAT(on_linked_ranks(2,
                              [&](Links& links, JobControl& job) {
                                Link& link = links.to(1 - job.rank(), Links::gpu_lane);
                                if (job.rank() == 1) {
                                  const std::array<std::uint32_t, 2> note{77, 0};
                                  Transfer transfer;
                                  transfer.source = reinterpret_cast<const std::byte*>(note.data());
                                  transfer.bytes = sizeof note;
                                  while (!transfer.complete()) link.progress(transfer);
                                  return;
                                }
                                IpcPeer peer(link, nullptr, nullptr, three);
                                while (true) peer.progress();
                              }),
              testing::ElementsAre(HasSubstr("that means 77"), ""));
}

}  // namespace
}  // namespace stretto
