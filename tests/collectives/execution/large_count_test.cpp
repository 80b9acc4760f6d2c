// More than 2^31 elements, in every step from the call to the wire.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "collectives/plans/formulas.hpp"
#include "stretto/stretto.hpp"
#include "support/tiers.hpp"

namespace stretto {
namespace {

constexpr std::int64_t element_count = (std::int64_t{1} << 31) + 37;
constexpr std::uint64_t needed_mib = 12 << 10;  // 8 GiB for two vectors and two_shot's scratch, and room for other programs

// Both ends, the middle where shares are cut, the end of 31 bits, and the elements that a wrapped index would hit instead.
constexpr std::array<std::int64_t, 8> marks{
    0, 36, 37, element_count / 2, element_count / 2 + 1, element_count - 38, element_count - 37, element_count - 1};

std::uint64_t available_mib() {
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;) {
    std::uint64_t kib = 0;
    if (word == "MemAvailable:" && file >> kib) return kib >> 10;
  }
  return 0;
}

// A rank's vector holds one value everywhere but at the marks, which are all different.
int background(int rank) { return 3 + 4 * rank; }
int mark(int rank, std::size_t k) { return 20 + 50 * rank + 3 * static_cast<int>(k); }

class Vector {
 public:
  void fill(int rank) {
    std::memset(data(), background(rank), element_count);
    for (std::size_t k = 0; k < marks.size(); ++k) values_[marks[k]] = static_cast<std::uint8_t>(mark(rank, k));
  }
  // Describes the first element that is not times_first times rank 0's plus times_second times rank 1's; empty if there is
  // none. Checks the marks and one element of every page.
  std::string fault(int times_first, int times_second) const {
    for (std::int64_t i = 1000; i < element_count; i += 4099) {
      std::string text = fault_at(i, times_first * background(0) + times_second * background(1));
      if (!text.empty() && std::find(marks.begin(), marks.end(), i) == marks.end()) return text;
    }
    for (std::size_t k = 0; k < marks.size(); ++k) {
      std::string text = fault_at(marks[k], times_first * mark(0, k) + times_second * mark(1, k));
      if (!text.empty()) return text;
    }
    return {};
  }
  void* data() const { return values_.get(); }

 private:
  std::string fault_at(std::int64_t i, int expected) const {
    if (values_[i] == static_cast<std::uint8_t>(expected)) return {};
    return "element " + std::to_string(i) + " is " + std::to_string(values_[i]) + " instead of " +
           std::to_string(expected % 256);
  }
  std::unique_ptr<std::uint8_t[]> values_ = std::make_unique_for_overwrite<std::uint8_t[]>(element_count);
};

TEST(LargeCounts, ReachTheElementsBeyond31Bits) {
#ifdef STRETTO_SANITIZE
  GTEST_SKIP() << "sanitizers take too much time and memory for vectors of 2 GiB";
#endif
  if (available_mib() < needed_mib) {
    GTEST_SKIP() << "it takes " << needed_mib << " MiB of memory, and " << available_mib() << " are available";
  }
  run_threads(2, [](const Communicator& world) {
    const int rank = world.rank();
    const Stream inline_stream = Stream::inline_();
    Vector vector;
    vector.fill(rank);
    int times = 1;
    std::vector<Algorithm> algorithms{Algorithm::ring, Algorithm::automatic};
    if (all_tests()) algorithms.push_back(Algorithm::two_shot);
    if (!all_tests()) algorithms = {Algorithm::ring};
    for (const Algorithm algorithm : algorithms) {
      const std::uint64_t since = world.job().ledger().next_sequence();
      std::ignore = world.all_reduce(vector.data(), vector.data(), element_count, DType::u8, ReduceOp::sum, inline_stream,
                                     {.method = algorithm});
      EXPECT_EQ(vector.fault(times, times), "") << name(algorithm) << " on rank " << rank;
      times *= 2;  // each sum starts from the result of the one before
      const Record record = world.job().ledger().records(since).at(0);
      const std::int64_t formula = formulas::all_reduce(record.method.algorithm, 2, element_count);
      EXPECT_NEAR(static_cast<double>(record.bytes_sent), static_cast<double>(formula) / 2, 1) << record.to_string();
    }
    if (rank == 0) vector.fill(0);
    std::ignore = world.broadcast(vector.data(), vector.data(), element_count, DType::u8, 0, inline_stream);
    EXPECT_EQ(vector.fault(1, 0), "") << "broadcast on rank " << rank;
    if (rank == 1) {
      vector.fill(1);
      std::ignore = world.send(vector.data(), element_count, DType::u8, 0, inline_stream);
    } else {
      std::ignore = world.recv(vector.data(), element_count, DType::u8, 1, inline_stream);
    }
    EXPECT_EQ(vector.fault(0, 1), "") << "send and recv on rank " << rank;
  });
}

}  // namespace
}  // namespace stretto
