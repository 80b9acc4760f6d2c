#pragma once
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

#include "core/parts.hpp"
#include "core/setting_values.hpp"

namespace stretto::kernels::cpu {

inline int compute_threads() {
  static const int threads = static_cast<int>(number_setting("STRETTO_COMPUTE_THREADS"));
  return threads;
}

// GCC's OpenMP is not built with ThreadSanitizer, which therefore cannot see that a parallel loop begins behind what comes
// before it, and that its threads meet at its end. These functions tell it.
#ifdef __SANITIZE_THREAD__
#define STRETTO_UNSEEN_BY_SANITIZER [[gnu::no_sanitize("thread")]]
inline void tell_done(void* event) { __tsan_release(event); }
inline void tell_seen(void* event) { __tsan_acquire(event); }
#else
#define STRETTO_UNSEEN_BY_SANITIZER
inline void tell_done(void* /*event*/) {}
inline void tell_seen(void* /*event*/) {}
#endif

// Calls run(number of the thread, first, end) in each of so many threads, which cut the count into parts. It must not throw.
// ThreadSanitizer watches run(), but not the loop itself, whose threads read its variables before anything can be told.
template <class Run>
STRETTO_UNSEEN_BY_SANITIZER void in_threads(int threads, std::int64_t count, Run run) {
  char begin = 0, end = 0;  // have addresses only
  tell_done(&begin);
#pragma omp parallel for num_threads(threads) schedule(static, 1) if (threads > 1)
  for (int i = 0; i < threads; ++i) {
    tell_seen(&begin);
    run(i, part_begin(count, threads, i), part_begin(count, threads, i + 1));
    tell_done(&end);
  }
  tell_seen(&end);
}

#undef STRETTO_UNSEEN_BY_SANITIZER

}  // namespace stretto::kernels::cpu
