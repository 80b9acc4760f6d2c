#include "core/forks.hpp"

#include <pthread.h>

#include "core/fail.hpp"

namespace stretto {

void count_forks() {
  static const int error = pthread_atfork(nullptr, nullptr, [] { ++forks; });
  ensure(error == 0, "pthread_atfork: {}.", errno_text(error));
}

}  // namespace stretto
