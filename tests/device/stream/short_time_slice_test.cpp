#include "device/stream/short_time_slice.hpp"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <thread>

#include "stretto/stream.hpp"

namespace stretto {
namespace {

// The layout of struct sched_attr in <linux/sched/types.h>, which cannot be included together with <sched.h>.
struct Attributes {
  std::uint32_t size, policy;
  std::uint64_t flags;
  std::int32_t nice;
  std::uint32_t priority;
  std::uint64_t runtime, deadline, period;
};

std::uint64_t time_slice() {
  Attributes attributes{};
  return syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) == 0 ? attributes.runtime : 0;
}

// Otherwise a woken communication thread waits for the end of computation's time slice.
TEST(ShortTimeSlice, StreamsAskForShortTimeSlices) {
  const std::uint64_t usual = time_slice();
  std::uint64_t prompt = 0;
  std::thread([&] {
    run_promptly();
    prompt = time_slice();
  }).join();
  if (prompt == usual) GTEST_SKIP() << "time slices here are not a thread's own (Linux 6.12), or are short already";
  std::uint64_t of_stream = 0;
  Stream("slices").enqueue([&] { of_stream = time_slice(); }).wait();
  EXPECT_EQ(of_stream, prompt);
  EXPECT_EQ(time_slice(), usual) << "other threads keep theirs";
}

}  // namespace
}  // namespace stretto
