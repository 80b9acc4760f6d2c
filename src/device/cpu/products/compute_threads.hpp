#pragma once
#include "core/parts.hpp"
#include "core/setting_values.hpp"

namespace stretto::kernels::cpu {

inline int compute_threads() {
  static const int threads = static_cast<int>(number_setting("STRETTO_COMPUTE_THREADS"));
  return threads;
}

// Calls run(number of the thread, first, end) in each of so many threads, which cut the count into parts. It must not throw.
template <class Run>
void in_threads(int threads, std::int64_t count, Run run) {
#pragma omp parallel for num_threads(threads) schedule(static, 1) if (threads > 1)
  for (int i = 0; i < threads; ++i) run(i, part_begin(count, threads, i), part_begin(count, threads, i + 1));
}

}  // namespace stretto::kernels::cpu
