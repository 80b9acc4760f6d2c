#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "stretto/dtype.hpp"
#include "stretto/tensor.hpp"

// Collectives that move fewer bits than their elements have: block quantization as in ZeRO++ (Wang et al. 2023), and one bit
// with error feedback as in 1-bit Adam (Tang et al. 2021). Elements are cut into groups of fixed size, whatever the tensor's
// shape; each group becomes one record of its scale and its codes, and a message is nothing but records. The last group of a
// vector may be short: its record is as long as the others and holds zeros.
//
// Cost of p ranks and n elements, records of b bytes an element: an all-gather moves (p-1)/p n b and quantizes once; a
// reduce-scatter by direct moves as much and quantizes once, in two levels (p-1)/p n b inside nodes, a node's share of that
// between them, and quantizes twice, whatever the number of ranks; never once a step of a ring.
namespace stretto {

// Codes of a group and its scale s. x stands for code * s; codes are whole numbers but in fp8. A scale is rounded up to 16
// significant bits (int4: 8), so that code * s is exact in f32. A group with NaN or infinity in it has a few codes less
// (int8: to 125, int4: to 5; fp8: f8e5m2), which say where they are, and a scale over its other elements.
enum class QuantizedFormat : std::uint8_t {
  none,
  int8,    // groups of 256: s as f32, codes -127..127; 1.016 bytes an element
  int4,    // groups of 64: s as bf16, rounded up, codes -7..7; 0.531 bytes an element
  fp8,     // groups of 256: s as f32, codes f8e4m3; 1.016 bytes an element
  onebit,  // groups of 1024: s, the mean of |x|, as f32, codes -1 and 1; 0.129 bytes an element
};
constexpr int quantized_formats = 5;
STRETTO_API const char* name(QuantizedFormat format);                             // "none", "int8", ...
STRETTO_API QuantizedFormat quantized_format_from_name(const std::string& name);  // throws Error naming the choices

constexpr std::int64_t group_elements(QuantizedFormat format) {
  switch (format) {
    case QuantizedFormat::none: return 1;
    case QuantizedFormat::int8:
    case QuantizedFormat::fp8: return 256;
    case QuantizedFormat::int4: return 64;
    case QuantizedFormat::onebit: return 1024;
  }
  return 1;
}
constexpr std::int64_t record_bytes(QuantizedFormat format) {
  switch (format) {
    case QuantizedFormat::none: return 0;
    case QuantizedFormat::int8:
    case QuantizedFormat::fp8: return 4 + 256;
    case QuantizedFormat::int4: return 2 + 32;
    case QuantizedFormat::onebit: return 4 + 128;
  }
  return 0;
}
// Elements with those that fill the last group.
constexpr std::int64_t whole_groups(QuantizedFormat format, std::int64_t count) {
  const std::int64_t group = group_elements(format);
  return (count + group - 1) / group * group;
}
// Bytes of the records of so many elements.
constexpr std::int64_t packed_bytes(QuantizedFormat format, std::int64_t count) {
  return whole_groups(format, count) / group_elements(format) * record_bytes(format);
}

enum class Rounding : std::uint8_t {
  nearest_even,
  stochastic,  // up or down, each with the probability that makes the expectation exact (to 2^-16 of the scale); int8 and
               // int4 only
};

// Where an element is quantized on its way.
enum class Hop : std::uint8_t {
  contribution,  // what a rank puts in
  node_sum,      // what a node's ranks have put in together, before it goes between nodes
  result,        // what goes to all ranks in the end
};
constexpr int hops = 3;
STRETTO_API const char* name(Hop hop);

// What quantization has left out of a tensor so far: it is added before the tensor is quantized the next time (error
// feedback, Seide et al. 2014). Explicit state of f32, one tensor for each name and hop, made of zeros when first used; to
// be kept in checkpoints by whoever trains. It belongs to this rank's place among the ranks and means nothing in another.
// One operation at a time uses the state of a name. Safe from any thread.
class STRETTO_API ErrorFeedback {
 public:
  // The same memory at each call; throws Error(invalid_argument) where it has another number of elements already.
  Tensor state(const std::string& tensor, Hop hop, std::int64_t count);

  struct Entry {
    std::string tensor;
    Hop hop;
    Tensor values;  // the state itself, no copy
  };
  std::vector<Entry> entries() const;                                      // by name and hop
  void restore(const std::string& tensor, Hop hop, const Tensor& values);  // of f32; copied
  void clear();

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, Hop>, Tensor> states_;
};

// How an operation may be quantized: all_gather, reduce_scatter and all_reduce, of f32, bf16 and f16; sums and averages.
// Every contribution is quantized, a rank's own too; they are added in f32 and an average is divided once; every rank gets
// the same bits. NaN and infinity arrive as what they are (in onebit: as NaN, all of their group).
struct Quantization {
  QuantizedFormat format = QuantizedFormat::none;
  QuantizedFormat result = QuantizedFormat::none;  // all_reduce: in which the sum goes to all; none: like format
  Rounding rounding = Rounding::nearest_even;
  std::uint64_t seed = 0;  // of stochastic rounding: the same numbers in another call give the same bits
  // The cost model may leave it be: then the elements go as they are, and error feedback stays as it is. The ledger and
  // STRETTO_EXPLAIN tell what was done.
  bool only_if_faster = false;
  ErrorFeedback* errors = nullptr;  // none: what is left out is forgotten. Must outlive the operation
  std::string tensor;               // by this name
};

}  // namespace stretto
