// The symmetric heap: blocks whose addresses give their offsets in a file.
#include "device/memory/heap.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "stretto/error.hpp"
#include "stretto/memory.hpp"
#include "stretto/tensor.hpp"
#include "support/error.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Block = std::shared_ptr<std::byte>;

std::uint64_t offset(const void* pointer) { return Heap::mine().offset_of(pointer).value(); }

// The exit status of a fork()ed child: 0 if check() returns true there.
template <class Check>
int in_child(const Check& check) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(check() ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

TEST(Heap, GivesDistinctAlignedBlocksThatKeepWhatIsWritten) {
  const std::vector<std::size_t> sizes = {1, 63, 64, 65, 1000, 4096, 70000, 1 << 20, (2 << 20) - 1, 2 << 20, 5 << 20, 0, 8};
  std::vector<Block> blocks;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    blocks.push_back(allocate(sizes[i]));
    std::memset(blocks[i].get(), static_cast<int>(i + 1), sizes[i]);
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::byte* const block = blocks[i].get();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % (sizes[i] >= huge_page ? huge_page : block_alignment), 0U);
    EXPECT_TRUE(std::all_of(block, block + sizes[i], [&](std::byte b) { return b == std::byte(i + 1); })) << sizes[i];
    EXPECT_EQ(offset(block + sizes[i] / 2), offset(block) + sizes[i] / 2);
  }
}

TEST(Heap, HandsOutAgainWhatWasGivenBack) {
  for (const std::size_t bytes : {std::size_t{100}, std::size_t{3} << 20}) {
    Block block = allocate(bytes);
    const std::byte* const place = block.get();
    const Block view = block;
    block.reset();
    EXPECT_NE(allocate(bytes).get(), place) << "still owned";
  }
#if !defined(STRETTO_SANITIZE)  // sanitizer builds never reuse blocks
  for (const std::size_t bytes : {std::size_t{12345}, std::size_t{7} << 20}) {
    const std::byte* const place = allocate(bytes).get();
    EXPECT_EQ(allocate(bytes).get(), place);
    EXPECT_EQ(allocate(bytes - 1).get(), place) << "a slightly different size";
  }
#endif
}

TEST(Heap, KnowsItsOwnAddresses) {
  const Block inside = allocate(100);
  const std::vector<std::byte> outside(100);
  int local = 0;
  const HeapAddress address = Heap::mine().address();
  EXPECT_EQ(offset(inside.get()), reinterpret_cast<std::uintptr_t>(inside.get()) - address.base);
  EXPECT_GT(offset(inside.get()), 0U) << "the first page is the heap's own";
  for (const void* pointer :
       {static_cast<const void*>(outside.data()), static_cast<const void*>(&local), static_cast<const void*>(nullptr),
        reinterpret_cast<const void*>(address.base - 1), reinterpret_cast<const void*>(address.base + address.reserved)}) {
    EXPECT_FALSE(Heap::mine().offset_of(pointer)) << pointer;
  }
  EXPECT_EQ(address.pid, getpid());
  EXPECT_EQ(address.reserved, std::uint64_t{64} << 30);
}

TEST(Heap, GrowsAndItsFileHoldsWhatItsAddressesHold) {
  std::vector<Block> blocks;
  for (int i = 0; i < 12; ++i) {
    blocks.push_back(allocate(i % 2 == 0 ? std::size_t{3} << 20 : 500));
    std::memset(blocks.back().get(), i + 1, 500);
  }
  const int file = static_cast<int>(Heap::mine().address().file);
  for (int i = 0; i < 12; ++i) {
    std::byte read[500];
    ASSERT_EQ(pread(file, read, sizeof read, static_cast<off_t>(offset(blocks[i].get()))), 500);
    EXPECT_TRUE(std::all_of(read, read + 500, [&](std::byte b) { return b == std::byte(i + 1); })) << i;
  }
}

TEST(Heap, CountsAsMemoryInUse) {
  const std::size_t before = memory_use().bytes;
  {
    const Tensor tensor = Tensor::symmetric({1000, 3}, DType::f64);
    EXPECT_EQ(tensor.shape(), (Shape{1000, 3}));
    EXPECT_TRUE(Heap::mine().offset_of(tensor.raw()));
    EXPECT_GE(memory_use().bytes, before + 24000);
    EXPECT_GE(memory_use().peak_bytes, memory_use().bytes);
  }
  EXPECT_EQ(memory_use().bytes, before);
}

TEST(Heap, SaysWhatItCannotHold) {
  EXPECT_THAT(sentence_of([] { allocate(~std::size_t{0}); }), HasSubstr("STRETTO_HEAP_BYTES"));
  EXPECT_THAT(sentence_of([] { allocate(std::size_t{65} << 30); }), HasSubstr("STRETTO_HEAP_BYTES"));
  EXPECT_EQ(in_child([] {
              const Variable small("STRETTO_HEAP_BYTES", "8000000");
              const Block most = allocate(5 << 20);
              try {
                allocate(5 << 20);
              } catch (const Error& error) {
                return error.code() == ErrorCode::unavailable && allocate(100) != nullptr;
              }
              return false;
            }),
            0);
  EXPECT_EQ(in_child([] {
              const Variable small("STRETTO_HEAP_BYTES", "100");
              return sentence_of([] { allocate(1); }).find("STRETTO_HEAP_BYTES=100") != std::string::npos;
            }),
            0);
  EXPECT_EQ(in_child([] {
              const Variable large("STRETTO_HEAP_BYTES", "1e14");
              return sentence_of([] { allocate(1); }).find("STRETTO_HEAP_BYTES=1e14") != std::string::npos;
            }),
            0);
}

// Memory that is reserved but not committed ends a process at the first access.
TEST(Heap, SaysThatTheMachineHasNotThatMuchMemory) {
  const auto machine = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGE_SIZE));
  EXPECT_EQ(in_child([&] {
              const Variable large("STRETTO_HEAP_BYTES", std::to_string(2 * machine));
              const std::string sentence = sentence_of([&] { allocate(machine); });
              return sentence.find("bytes of shared memory: Cannot allocate memory") != std::string::npos &&
                     allocate(100) != nullptr;
            }),
            0);
}

TEST(Heap, OfAForkedChildIsItsOwn) {
  Block inherited = allocate(1000);
  std::memset(inherited.get(), 1, 1000);
  const HeapAddress parent = Heap::mine().address();
  EXPECT_EQ(in_child([&] {
              const Block own = allocate(1000);
              std::memset(own.get(), 2, 1000);
              const HeapAddress child = Heap::mine().address();
              const bool is_another = child.base != parent.base && child.check != parent.check && child.pid == getpid();
              const bool knows_its_own = Heap::mine().offset_of(own.get()) && !Heap::mine().offset_of(inherited.get());
              const bool still_read = *inherited == std::byte{1};
              *(inherited.get() + 1) = std::byte{3};  // shared with the parent
              inherited.reset();
              return is_another && knows_its_own && still_read && allocate(1000).get() != own.get();
            }),
            0);
  EXPECT_EQ(*inherited, std::byte{1});
  EXPECT_EQ(*(inherited.get() + 1), std::byte{3});
  EXPECT_EQ(Heap::mine().address().check, parent.check);
  EXPECT_NE(allocate(1000).get(), inherited.get());
}

TEST(Heap, ServesThreadsWhileAnotherForks) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([t] {
      for (std::size_t i = 1; i < 300; ++i) {
        const Block block = allocate(i * 40);
        std::memset(block.get(), t, i * 40);
        EXPECT_TRUE(std::all_of(block.get(), block.get() + i * 40, [t](std::byte b) { return b == std::byte(t); }));
      }
    });
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(in_child([] { return true; }), 0);
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace stretto
