#pragma once
#include <cstddef>

#if defined(__SANITIZE_THREAD__)
#define STRETTO_SEES_THREADS
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define STRETTO_SEES_THREADS
#endif
#endif

#ifdef STRETTO_SEES_THREADS
#include <sys/stat.h>

#include <array>
#include <cstdint>

#include "core/split_mix.hpp"

extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
#endif

namespace stretto {

// Tells ThreadSanitizer that two mappings of a word are one word. It knows a word by its address; but ranks that are threads
// of one process each map the shared memory for themselves, so it would take a published word and a seen one for two, and
// report races. In other builds this class does nothing.
class OneWord {
 public:
#ifdef STRETTO_SEES_THREADS
  OneWord(int file, std::size_t offset) {
    // Words that share an entry by chance count as ordered with each other: a race may be missed, none is invented.
    static std::array<std::uint64_t, 65536> addresses;
    struct stat status {};
    fstat(file, &status);
    address_ = &addresses[split_mixed(static_cast<std::uint64_t>(status.st_ino) * split_mix_step + offset) >> 48];
  }
  void published() const { __tsan_release(address_); }  // before the store
  void seen() const { __tsan_acquire(address_); }       // after the load

 private:
  void* address_;
#else
  OneWord(int /*file*/, std::size_t /*offset*/) {}
  void published() const {}
  void seen() const {}
#endif
};

}  // namespace stretto
