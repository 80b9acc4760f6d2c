#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "perf/cases.hpp"
#include "perf/values.hpp"

namespace perf {

enum class Memory { symmetric, ordinary, gpu };  // stretto::allocate, what malloc gives, or of this thread's GPU

// One rank's input and output of a case, each between two guards, in several copies that take turns so that a small message
// is not always found in the same cache lines. Those on a GPU are written and looked at through images of them in the host's
// memory.
class Buffers {
 public:
  Buffers(const Case& of, int rank, bool in_place, int copies, Memory memory);

  int copies() const { return copies_; }
  bool in_place() const { return in_place_; }
  const void* input(int copy) const { return at(copy, input_); }
  void* output(int copy) const { return at(copy, output_); }

  // Writes everything anew: inputs, guards, and nonsense where results go.
  void fill(const Values& values) const;
  // Wrong elements of the outputs, changed elements of inputs (out of place, or where there is no output) and changed guard
  // bytes, over all copies. How far outputs are from what is exact is added to the deviation.
  std::int64_t wrong(const Values& values, Deviation& deviation) const;
  std::int64_t wrong(const Values& values) const {
    Deviation unused;
    return wrong(values, unused);
  }

 private:
  struct Place {
    int region = 0;           // of a copy: what is allocated by itself
    std::int64_t offset = 0;  // in bytes from where its data begins
  };

  std::byte* begin_of(int copy, int region) const {
    return memory_[copy * region_bytes_.size() + region].get() + guard_bytes;
  }
  std::byte* at(int copy, Place place) const { return begin_of(copy, place.region) + place.offset; }

  static constexpr std::int64_t guard_bytes = 64;
  // One copy as the host reads and writes it: where each region's data begins.
  struct OnHost {
    std::vector<std::byte*> begins;
    std::vector<std::vector<std::byte>> images;  // with their guards; none where the memory is the host's
    std::byte* at(Place place) const { return begins[place.region] + place.offset; }
  };
  OnHost on_host(int copy) const;  // images without contents
  void from_gpu(int copy, OnHost& here) const;
  void to_gpu(int copy, const OnHost& here) const;

  Case case_;
  int rank_;
  bool in_place_;
  int copies_;
  std::vector<std::int64_t> region_bytes_;
  Place input_, output_;
  std::vector<std::shared_ptr<std::byte>> memory_;  // of every region of every copy; guards lie before and behind the data
  std::vector<stretto::Tensor> on_gpu_;             // the same, of a GPU
};

}  // namespace perf
