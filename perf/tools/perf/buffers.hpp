#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "perf/cases.hpp"
#include "perf/values.hpp"

namespace perf {

enum class Memory { symmetric, ordinary, gpu };  // stretto::allocate, malloc, or this thread's GPU

// One rank's input and output of a case, each between two guards, in several copies that take turns so that a small message
// is not always found in the same cache lines. Buffers on a GPU are filled and checked through images in host memory.
class Buffers {
 public:
  Buffers(const Case& test_case, int rank, bool in_place, int copies, Memory memory);

  int copies() const { return copies_; }
  bool in_place() const { return in_place_; }
  const void* input(int copy) const { return at(copy, input_); }
  void* output(int copy) const { return at(copy, output_); }

  // Writes everything anew: inputs, guards, and nonsense in place of results.
  void fill(const Values& values) const;
  // Counts wrong elements of the outputs, changed elements of inputs (out of place, or if there is no output) and changed
  // guard bytes, over all copies. Adds the outputs' distance from the exact results to the deviation.
  std::int64_t wrong(const Values& values, Deviation& deviation) const;
  std::int64_t wrong(const Values& values) const {
    Deviation unused;
    return wrong(values, unused);
  }

 private:
  struct RegionOffset {
    int region = 0;           // number of an allocation within a copy
    std::int64_t offset = 0;  // bytes from the beginning of the region's data
  };

  std::byte* begin_of(int copy, int region) const {
    return memory_[copy * region_bytes_.size() + region].get() + guard_bytes;
  }
  std::byte* at(int copy, RegionOffset where) const { return begin_of(copy, where.region) + where.offset; }

  static constexpr std::int64_t guard_bytes = 64;
  // One copy as the host reads and writes it: the beginning of each region's data.
  struct OnHost {
    std::vector<std::byte*> begins;
    std::vector<std::vector<std::byte>> images;  // with their guards; empty for host memory
    std::byte* at(RegionOffset where) const { return begins[where.region] + where.offset; }
  };
  OnHost on_host(int copy) const;  // images without contents
  void from_gpu(int copy, OnHost& here) const;
  void to_gpu(int copy, const OnHost& here) const;

  Case case_;
  int rank_;
  bool in_place_;
  int copies_;
  std::vector<std::int64_t> region_bytes_;
  RegionOffset input_, output_;
  std::vector<std::shared_ptr<std::byte>> memory_;  // every region of every copy, with guards before and behind the data
  std::vector<stretto::Tensor> on_gpu_;             // the same on a GPU
};

}  // namespace perf
