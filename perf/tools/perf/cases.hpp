#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "stretto/dtype.hpp"
#include "stretto/plan.hpp"

// The measured operations: how many elements each rank gives, which elements it gets, and how bandwidth is counted.
namespace perf {

struct Test {
  const char* name;
  stretto::Collective collective;  // send: every rank sends to the next one while it receives from the one before
  bool uneven = false;             // shares of different sizes, some of them empty
};
const std::vector<Test>& all_tests();
const Test& test_from_name(const std::string& name);

constexpr bool is_ring_exchange(const Test& test) { return test.collective == stretto::Collective::send; }
inline bool can_be_in_place(const Test& test) { return stretto::can_be_in_place(test.collective); }

// A run of elements of an output: elements [first, first + count) of the source.
struct SourceRange {
  static constexpr int reduced = -1;  // the source that is the reduction of all inputs
  int source = 0;                     // reduced, or the rank whose input it is
  std::int64_t first = 0;
  std::int64_t count = 0;
};

// One test at one size. Counts are in elements.
struct Case {
  const Test* test = nullptr;
  int ranks = 1;  // with vectors
  int root = 0;
  stretto::DType dtype = stretto::DType::f32;
  stretto::ReduceOp op = stretto::ReduceOp::sum;
  std::int64_t count = 0;            // as in stretto::Call; 0 if shares are uneven
  std::vector<std::int64_t> counts;  // uneven: each rank's share; all_to_all: row s holds what rank s sends to each rank
  int servers = 0;                   // ranks behind the others, which have neither input nor output

  // The case that fits into `bytes` bytes; shares are rounded down to whole elements.
  static Case of_bytes(const Test& test, int ranks, int root, stretto::DType dtype, stretto::ReduceOp op, std::int64_t bytes,
                       int servers = 0);

  std::int64_t share(int rank) const { return test->uneven ? counts[rank] : count; }
  std::int64_t sent(int from, int to) const { return test->uneven ? counts[from * ranks + to] : count; }  // all_to_all
  std::int64_t input_count(int rank) const;
  std::int64_t output_count(int rank) const;
  // In place, the smaller of input and output lies inside the larger one: the offset of each.
  std::int64_t input_offset(int rank) const;
  std::int64_t output_offset(int rank) const;
  std::vector<SourceRange> expected(int rank) const;  // a rank's output from its beginning

  // The S of algbw = S / time: the most bytes that a rank has in one buffer.
  std::int64_t bytes() const;
  // busbw = factor * algbw.
  double bus_factor() const;
};

}  // namespace perf
