#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "stretto/dtype.hpp"
#include "stretto/tensor.hpp"

// Quantized collectives: elements travel in fewer bits than their type has. Block quantization follows ZeRO++ (Wang et
// al. 2023); one bit with error feedback follows 1-bit Adam (Tang et al. 2021). A share is cut into groups of fixed
// size, whatever the tensor's shape. A group is sent as one record, which holds the group's scale and its codes.
// Messages consist of records only. The last group of a share may be short; its record is filled up with zeros to full
// length.
//
// Cost, per rank, for p ranks, n elements in all and records of b bytes per element:
// - all-gather: sends (p-1)/p n b bytes, and quantizes every element once.
// - reduce-scatter by Algorithm::direct: sends (p-1)/p n b bytes, and quantizes every element once.
// - reduce-scatter by Algorithm::two_level, N nodes of m ranks: sends (m-1)/m n b bytes inside the node and (N-1)/N n b
//   / m bytes between nodes, and quantizes twice.
// A ring would quantize a partial sum again at every hop; therefore no quantized collective uses a ring.
namespace stretto {

// The format of a record. A group has one scale s, and each element x of the group is represented by code * s. Codes are
// whole numbers, except in fp8. A scale is rounded up to 16 significant bits (int4: 8), so that code * s is exact in
// f32. A group that contains NaN or infinity reserves some codes for them; its finite elements then have codes up to 125
// (int8) or 5 (int4), or codes in f8e5m2 (fp8). Only finite elements determine the scale.
enum class QuantizedFormat : std::uint8_t {
  none,
  int8,    // groups of 256: s as f32, codes -127..127; 1.016 bytes per element
  int4,    // groups of 64: s as bf16, rounded up, codes -7..7; 0.531 bytes per element
  fp8,     // groups of 256: s as f32, codes f8e4m3; 1.016 bytes per element
  onebit,  // groups of 1024: s, the mean of |x|, as f32, codes -1 and 1; 0.129 bytes per element
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
// `count` rounded up to whole groups.
constexpr std::int64_t whole_groups(QuantizedFormat format, std::int64_t count) {
  const std::int64_t group = group_elements(format);
  return (count + group - 1) / group * group;
}
// Bytes of the records of `count` elements.
constexpr std::int64_t packed_bytes(QuantizedFormat format, std::int64_t count) {
  return whole_groups(format, count) / group_elements(format) * record_bytes(format);
}

enum class Rounding : std::uint8_t {
  nearest_even,
  stochastic,  // int8 and int4 only: rounds up or down at random; the expected value is exact to 2^-16 of the scale
};

// The points in a collective at which elements are quantized. The enumerators name the data that is quantized there.
enum class Hop : std::uint8_t {
  contribution,  // a rank's input
  node_sum,      // the sum over a node's ranks, before it is sent to other nodes
  result,        // all_reduce: the sum that goes to all ranks
};
constexpr int hops = 3;
STRETTO_API const char* name(Hop hop);

// Error feedback (Seide et al. 2014): the quantization error of a tensor is stored, and is added to the tensor before
// the tensor is quantized the next time. The stored errors are f32 tensors, one for each tensor name and hop, initially
// zero. A trainer should save them in its checkpoints. They belong to this rank, and are valid only for the same
// placement of ranks on nodes. Only one operation at a time may use the errors stored under a name. Any thread may call
// the functions.
class STRETTO_API ErrorFeedback {
 public:
  // Returns the stored errors, in the same memory at each call. Throws Error(invalid_argument) if they exist with
  // another number of elements.
  Tensor state(const std::string& tensor, Hop hop, std::int64_t count);

  struct Entry {
    std::string tensor;
    Hop hop;
    Tensor values;  // the stored errors themselves, not a copy
  };
  std::vector<Entry> entries() const;                                      // ordered by name and hop
  void restore(const std::string& tensor, Hop hop, const Tensor& values);  // copies `values`, which must be f32
  void clear();

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, Hop>, Tensor> states_;
};

// How an operation is quantized. all_gather, reduce_scatter and all_reduce of f32, bf16 and f16 can be quantized, with
// sum, avg and premul_sum. Every contribution is quantized, including the rank's own. Contributions are added in f32,
// and an average is divided once, so every rank gets the same bits. NaN and infinity arrive unchanged, except in onebit:
// there, the whole group that contains them becomes NaN.
struct Quantization {
  QuantizedFormat format = QuantizedFormat::none;
  QuantizedFormat result = QuantizedFormat::none;  // all_reduce: the format of the sum sent to all ranks; none: `format`
  Rounding rounding = Rounding::nearest_even;
  std::uint64_t seed = 0;  // for stochastic rounding: the same seed and input give the same bits
  // Lets the cost model choose an unquantized method if that method is faster. Elements then travel in their own type,
  // and the stored errors stay unchanged. The ledger and STRETTO_EXPLAIN report the choice.
  bool only_if_faster = false;
  ErrorFeedback* errors = nullptr;  // must outlive the operation. null: quantization errors are dropped
  std::string tensor = {};          // the tensor's name in `errors`
};

}  // namespace stretto
