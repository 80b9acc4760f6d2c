// Another rank's memory: mapped where it lies in a heap, read through the kernel elsewhere.
#include "transport/shm/peer_memory.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include "stretto/error.hpp"
#include "stretto/memory.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class Pipe {
 public:
  Pipe() { EXPECT_EQ(pipe(ends_), 0); }
  ~Pipe() {
    close(ends_[0]);
    close(ends_[1]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  template <class T>
  void put(const T& value) const {
    if (write(ends_[1], &value, sizeof value) != sizeof value) std::abort();
  }
  template <class T>
  T get() const {
    T value;
    if (read(ends_[0], &value, sizeof value) != sizeof value) std::abort();
    return value;
  }

 private:
  int ends_[2] = {-1, -1};
};

// Another process. It tells the addresses of its memory and continues when it is told to.
class Peer {
 public:
  struct Door {
    const Pipe& in;
    const Pipe& out;
  };
  explicit Peer(const std::function<void(const Door&)>& body) : child_(fork()) {
    if (child_ == 0) {
      alarm(60);
      to_us_.put(Heap::mine().address());
      body({to_peer_, to_us_});
      pause();
    }
    heap_ = get<HeapAddress>();
  }
  ~Peer() { end(); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  const HeapAddress& heap() const { return heap_; }
  template <class T>
  T get() const {
    return to_us_.get<T>();
  }
  void tell() const { to_peer_.put('!'); }
  void end() {
    if (child_ <= 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    child_ = -1;
  }

 private:
  Pipe to_peer_;
  Pipe to_us_;
  pid_t child_;
  HeapAddress heap_;
};

constexpr std::size_t count = 1 << 20;
using Numbers = std::vector<std::int32_t>;

void fill(std::byte* to, std::int32_t first) {
  Numbers numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  std::memcpy(to, numbers.data(), count * 4);
}
std::int32_t number(const std::byte* from, std::size_t i) {
  std::int32_t value = 0;
  std::memcpy(&value, from + 4 * i, 4);
  return value;
}

TEST(PeerMemory, OfAHeapIsMappedAlsoWhereItGrewLater) {
  const Peer peer([](const Peer::Door& door) {
    const auto first = allocate(count * 4);
    fill(first.get(), 1);
    door.out.put(buffer_place_of(first.get()));
    door.in.get<char>();
    const auto second = allocate(count * 40);
    fill(second.get(), 1000);
    door.out.put(buffer_place_of(second.get()));
    door.in.get<char>();
    door.out.put(number(first.get(), 7));
    pause();
  });
  PeerMemory memory(peer.heap(), 1);
  const auto first = peer.get<BufferPlace>();
  ASSERT_TRUE(memory.maps(first));
  std::byte* const seen = memory.at(first, count * 4);
  EXPECT_EQ(number(seen, 0), 1);
  EXPECT_EQ(number(seen, count - 1), static_cast<std::int32_t>(count));
  peer.tell();
  const auto second = peer.get<BufferPlace>();
  EXPECT_EQ(number(memory.at(second, count * 40), count - 1), static_cast<std::int32_t>(999 + count));
  EXPECT_EQ(memory.at(first, count * 4), seen) << "addresses that were given stay";
  // The peer sees values that are written here.
  const std::int32_t answer = 42;
  std::memcpy(seen + 28, &answer, 4);
  peer.tell();
  EXPECT_EQ(peer.get<std::int32_t>(), 42);
  Numbers read(count);
  memory.read(second, 4 * (count - 2), read.data(), 8);
  EXPECT_EQ(read[1], static_cast<std::int32_t>(999 + count));
  EXPECT_THAT(sentence_of([&] {
                memory.at({0, std::uint64_t{1} << 32}, 8);
              }),
              AllOf(HasSubstr("Rank 1 announced 8 bytes at 4294967296"), HasSubstr("which has")));
}

TEST(PeerMemory, OutsideOfItsHeapIsReadThroughTheKernel) {
  const Peer peer([](const Peer::Door& door) {
    static Numbers numbers;
    numbers.resize(count);
    std::iota(numbers.begin(), numbers.end(), 5);
    door.out.put(buffer_place_of(numbers.data()));
    pause();
  });
  PeerMemory memory(peer.heap(), 1);
  const auto place = peer.get<BufferPlace>();
  EXPECT_FALSE(memory.maps(place));
  Numbers read(count);
  if (!memory.readable()) {  // a container may forbid reading another process's memory
    EXPECT_THAT(sentence_of([&] { memory.read(place, 0, read.data(), count * 4); }), HasSubstr("stretto::allocate"));
    return;
  }
  memory.read(place, 0, read.data(), count * 4);
  EXPECT_EQ(read.front(), 5);
  EXPECT_EQ(read.back(), static_cast<std::int32_t>(4 + count));
  memory.read(place, 400, read.data(), 4);
  EXPECT_EQ(read.front(), 105);
  EXPECT_THAT(sentence_of([&] {
                memory.read({8, BufferPlace::no_heap}, 8, read.data(), 4);
              }),
              AllOf(HasSubstr("4 bytes at 0x10 in the memory of rank 1"), HasSubstr("they were freed, or never there")));
}

TEST(PeerMemory, OfADeadPeerStaysWhereItIsMapped) {
  Peer peer([](const Peer::Door& door) {
    static Numbers numbers(count);
    const auto block = allocate(count * 4);
    fill(block.get(), 3);
    door.out.put(buffer_place_of(block.get()));
    door.out.put(buffer_place_of(numbers.data()));
    pause();
  });
  PeerMemory memory(peer.heap(), 2);
  const auto mapped = peer.get<BufferPlace>();
  const auto unmapped = peer.get<BufferPlace>();
  peer.end();
  EXPECT_EQ(number(memory.at(mapped, count * 4), 9), 12) << "also at the first look";
  std::byte word[4];
  EXPECT_THAT(sentence_of(ErrorCode::peer_lost, [&] { memory.read(unmapped, 0, word, 4); }),
              AllOf(HasSubstr("rank 2"), HasSubstr("has ended")));
  EXPECT_THAT(sentence_of(ErrorCode::peer_lost, [&] { PeerMemory(peer.heap(), 2); }),
              AllOf(HasSubstr("symmetric heap of rank 2"), HasSubstr("has ended")));
}

TEST(PeerMemory, ThatIsNotTheOneAnnouncedIsRefused) {
  const Peer peer([](const Peer::Door& /*door*/) { pause(); });
  HeapAddress heap = peer.heap();
  ++heap.check;
  EXPECT_THAT(sentence_of([&] { PeerMemory(heap, 3); }), AllOf(HasSubstr("rank 3"), HasSubstr("announced")));
}

TEST(PeerMemory, OfAThreadIsUsedAsItIs) {
  Numbers anywhere(10, 4);
  const auto block = allocate(40);
  std::thread([&] {
    PeerMemory memory(Heap::mine().address(), 1);
    EXPECT_TRUE(memory.readable());
    for (void* const pointer : {static_cast<void*>(anywhere.data()), static_cast<void*>(block.get())}) {
      const BufferPlace place = buffer_place_of(pointer);
      EXPECT_TRUE(memory.maps(place));
      EXPECT_EQ(memory.at(place, 40), pointer);
    }
    std::int32_t read = 0;
    memory.read(buffer_place_of(anywhere.data()), 36, &read, 4);
    EXPECT_EQ(read, 4);
  }).join();
}

// Several threads may map the heap's new memory at the same time.
TEST(PeerMemory, ServesThreads) {
  const Peer peer([](const Peer::Door& door) {
    for (int i = 0; i < 20; ++i) {
      const auto block = allocate(count * 4);
      std::memcpy(block.get(), &i, 4);
      door.out.put(buffer_place_of(block.get()));
      if (i % 2 == 0) continue;
      static std::vector<std::shared_ptr<std::byte>> kept;
      kept.push_back(block);
    }
    pause();
  });
  PeerMemory memory(peer.heap(), 1);
  std::vector<BufferPlace> places;
  for (int i = 0; i < 20; ++i) places.push_back(peer.get<BufferPlace>());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 1; i < 20; i += 2) EXPECT_EQ(number(memory.at(places[static_cast<std::size_t>(i)], 4), 0), i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace stretto
