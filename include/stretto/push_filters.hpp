#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "stretto/export.hpp"
#include "stretto/quantization.hpp"
#include "stretto/tensor.hpp"

// Filters make pushes to parameter servers smaller on their way (Li et al. 2014, section 5.1): of tables of f32, in chains.
// A worker's chain encodes the part of each push in the order of the chain, and the server's decodes it in reverse order.
//
// Cost: a worker keeps what a filter remembers of each part. significantly_modified() and kkt() have an entry of a hash
// table for each row that they hold back or have seen, which for a dense table is each element; quantized() has 4 bytes an
// element.
namespace stretto {

// A part of a push on its way.
struct PushedMessage {
  // A sparse table has the keys of its rows here, a dense one the numbers of elements in the part, or none if `all` are
  // there. They ascend. A filter may leave some out; the server adds zeros in place of a dense table's.
  std::vector<std::uint64_t> keys;
  bool all = false;
  Tensor rows;                                     // of the keys, f32 until a filter packs them
  std::vector<std::vector<std::byte>> notes = {};  // what decode() needs: encode() may add one, decode() then takes the last
};

// The filter of one part at one worker, or of one table at a server. A rank's filters are used by one thread.
class STRETTO_API PushFilter {
 public:
  virtual ~PushFilter() = default;
  // At a worker. Replaces tensors whose elements it changes. May leave out keys with their rows; those that it keeps must
  // stay in their order. The push throws Error(invalid_argument) otherwise.
  virtual void encode(PushedMessage& message) = 0;
  // At a server: undoes what encode() has done, but for what it has left out or rounded. Must depend on the message only.
  virtual void decode(PushedMessage& /*message*/) const {}
  // At a worker: a pull has brought these values of the part; keys: of a dense table none.
  virtual void see_pulled(const std::vector<std::uint64_t>& /*keys*/, const Tensor& /*rows*/) {}
};

struct FilteredPart {
  std::int64_t count = 0;  // elements; of a sparse table 0
  std::int64_t width = 1;  // of a row; of a dense table 1
  std::uint64_t seed = 0;  // another one for each worker and part, the same in each run
};

// What a table is given: all ranks must give filters of the same names, which have their parameters.
struct FilterKind {
  std::string name;
  std::function<std::unique_ptr<PushFilter>(const FilteredPart& part)> make;
  bool packs = false;      // rows are u8 afterwards: the last filter of a chain
  bool needs_all = false;  // of a dense table; nothing is left out before it
};

namespace push_filters {
// Elements as whole numbers of 1 to 3 bytes times a scale, the largest magnitude of the part. Rounds up or down at random,
// so that the mean is exact. A part of a push has 64 bytes more than its elements. NaN and infinity travel in f32.
STRETTO_API FilterKind fixed_point(int bytes);
// int8, int4, fp8 or one bit, in groups (stretto/quantization.hpp). With error feedback: what rounding has left out is added
// to the next push; what the last one leaves out is lost when the worker leaves. For dense tables.
STRETTO_API FilterKind quantized(QuantizedFormat format);
// Holds rows back until the sum of what was held back has an element of `threshold` or more in magnitude. What is held back
// when the worker leaves is lost. 0: holds back nothing.
STRETTO_API FilterKind significantly_modified(double threshold);
// Leaves out each row with this probability.
STRETTO_API FilterKind random_skip(double probability);
// For server functions with an L1 penalty: leaves out rows whose weights, as last pulled, are all 0 and whose gradients are
// all at most lambda - delta in magnitude, since the soft threshold would keep these weights at 0. That holds if the server
// function takes the mean of the workers' gradients; the sum of N gradients may be N times as large.
STRETTO_API FilterKind kkt(double lambda, double delta = 0);
}  // namespace push_filters

}  // namespace stretto
