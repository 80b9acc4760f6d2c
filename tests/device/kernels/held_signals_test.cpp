#include "device/cpu/products/held_signals.hpp"

#include <gtest/gtest.h>
#include <sys/time.h>

#include <atomic>
#include <cstdlib>

#include "stretto/kernels.hpp"

namespace stretto::kernels {
namespace {

std::atomic<int> signals = 0;

// Ten thousand signals a second, whose handler's frame lies wherever the stack pointer points.
class Timer {
 public:
  Timer() {
    struct sigaction action {};
    action.sa_handler = [](int) { ++signals; };
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, &before_);
    set(100);
  }
  ~Timer() {
    set(0);
    sigaction(SIGALRM, &before_, nullptr);
  }

 private:
  static void set(int microseconds) {
    const itimerval interval{{0, microseconds}, {0, microseconds}};
    setitimer(ITIMER_REAL, &interval, nullptr);
  }
  struct sigaction before_ {};
};

// Without held signals, the heap is destroyed within a tenth of a second.
TEST(HeldSignals, ProductsSurviveHandlers) {
  constexpr std::int64_t m = 256, n = 192, k = 128;
  for (const Transpose transpose : {Transpose::yes, Transpose::no}) {
    const Tensor a(transpose == Transpose::yes ? Shape{k, m} : Shape{m, 40 * k}, DType::f32);
    const Tensor b({transpose == Transpose::yes ? k : 40 * k, n}, DType::f32), c({m, n}, DType::f32);
    for (const Tensor& each : {a, b}) {
      for (std::int64_t i = 0; i < each.size(); ++i) each.set(i, static_cast<double>(i % 5 - 2));
    }
    gemm(a, transpose, b, Transpose::no, c);
    const Tensor expected = c.clone();
    const int before = signals;
    const Timer timer;
    for (int i = 0; i < (transpose == Transpose::yes ? 3000 : 100); ++i) {
      gemm(a, transpose, b, Transpose::no, c);
      std::free(std::malloc(1000 + static_cast<std::size_t>(i)));
    }
    for (std::int64_t i = 0; i < c.size(); ++i) ASSERT_EQ(c.at(i), expected.at(i));
    EXPECT_GT(signals, before + 10);
  }
}

TEST(HeldSignals, ArriveWhenItEnds) {
  struct sigaction action {
  }, usual{};
  action.sa_handler = [](int) { ++signals; };
  sigaction(SIGUSR2, &action, &usual);
  const int before = signals;
  {
    const cpu::HeldSignals held;
    raise(SIGUSR2);
    EXPECT_EQ(signals, before);
  }
  EXPECT_EQ(signals, before + 1);
  sigaction(SIGUSR2, &usual, nullptr);
}

}  // namespace
}  // namespace stretto::kernels
