#include "perf/values.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "common/fail.hpp"
#include "perf/random.hpp"

namespace perf {

using stretto::DType;
using stretto::ReduceOp;
using stretto::Tensor;

namespace {

bool is_unsigned(DType dtype) { return dtype == DType::u8 || dtype == DType::u32 || dtype == DType::u64; }

// The type holds all integers up to this magnitude.
std::int64_t exact_up_to(DType dtype) {
  switch (dtype) {
    case DType::f8e5m2: return 8;
    case DType::f8e4m3: return 16;
    case DType::i8: return 127;
    case DType::u8: return 255;
    case DType::bf16: return 256;
    case DType::f16: return 2048;
    default: return 1 << 20;
  }
}

struct Reduction {
  DType dtype;
  ReduceOp op;
  int ranks;
  std::uint64_t seed;

  // A rank's input element, where results must stay among the exact integers.
  std::int64_t small(int rank, std::int64_t element) const {
    const std::uint64_t own = random_at(seed, rank, element);
    const std::uint64_t common = random_at(seed, -1, element);
    // The ranks that give non-zero values change from element to element.
    const std::int64_t place = (rank + static_cast<std::int64_t>(common % ranks)) % ranks;
    const std::int64_t most = exact_up_to(dtype);
    if (op == ReduceOp::prod) {
      const std::int64_t twos = 1 + static_cast<std::int64_t>((common >> 32) % 4);
      return (place < twos ? 2 : 1) * (own % 2 == 0 ? 1 : -1);
    }
    std::int64_t range = std::min<std::int64_t>(most, 1000);
    if (op != ReduceOp::min && op != ReduceOp::max) {
      const std::int64_t budget = op == ReduceOp::premul_sum ? most / 2 : most;
      if (place >= budget) return 0;
      range = std::clamp<std::int64_t>(budget / ranks, 1, 1000);
    }
    if (is_unsigned(dtype)) return static_cast<std::int64_t>(own % (range + 1));
    return static_cast<std::int64_t>(own % (2 * range + 1)) - range;
  }
};

double reduce_small(const Reduction& reduction, std::int64_t element) {
  double result = 0;
  for (int rank = 0; rank < reduction.ranks; ++rank) {
    const double value = static_cast<double>(reduction.small(rank, element));
    switch (reduction.op) {
      case ReduceOp::prod: result = rank == 0 ? value : result * value; break;
      case ReduceOp::min: result = rank == 0 ? value : std::min(result, value); break;
      case ReduceOp::max: result = rank == 0 ? value : std::max(result, value); break;
      case ReduceOp::premul_sum: result += value * Values::factor(rank); break;
      default: result += value;
    }
  }
  return reduction.op == ReduceOp::avg ? result / reduction.ranks : result;
}

// Integers of any value: sums and products wrap. Factors are odd, since products with even ones would soon be zero.
template <class T>
T any_integer(const Reduction& reduction, int rank, std::int64_t element) {
  const auto value = static_cast<T>(random_at(reduction.seed, rank, element));
  return reduction.op == ReduceOp::prod ? static_cast<T>(value | 1) : value;
}

template <class T>
T reduce_any(const Reduction& reduction, std::int64_t element) {
  auto result = any_integer<T>(reduction, 0, element);
  for (int rank = 1; rank < reduction.ranks; ++rank) {
    const auto value = any_integer<T>(reduction, rank, element);
    const std::uint64_t a = static_cast<std::make_unsigned_t<T>>(result);
    const std::uint64_t b = static_cast<std::make_unsigned_t<T>>(value);
    switch (reduction.op) {
      case ReduceOp::sum: result = static_cast<T>(a + b); break;
      case ReduceOp::prod: result = static_cast<T>(a * b); break;
      case ReduceOp::min: result = std::min(result, value); break;
      default: result = std::max(result, value);
    }
  }
  return result;
}

template <class T>
void make_integers(const Reduction& reduction, const std::vector<Tensor>& inputs, const Tensor& reduced) {
  const bool wraps = reduction.op != ReduceOp::avg && reduction.op != ReduceOp::premul_sum;
  for (std::int64_t i = 0; i < reduced.size(); ++i) {
    for (int rank = 0; rank < reduction.ranks; ++rank) {
      static_cast<T*>(inputs[rank].raw())[i] =
          wraps ? any_integer<T>(reduction, rank, i) : static_cast<T>(reduction.small(rank, i));
    }
    // Averages of integers round towards zero, like this conversion.
    static_cast<T*>(reduced.raw())[i] = wraps ? reduce_any<T>(reduction, i) : static_cast<T>(reduce_small(reduction, i));
  }
}

void make_floats(const Reduction& reduction, const std::vector<Tensor>& inputs, const Tensor& reduced) {
  for (std::int64_t i = 0; i < reduced.size(); ++i) {
    for (int rank = 0; rank < reduction.ranks; ++rank) inputs[rank].set(i, static_cast<double>(reduction.small(rank, i)));
    reduced.set(i, reduce_small(reduction, i));
  }
}

void make_reduction(const Reduction& reduction, const std::vector<Tensor>& inputs, const Tensor& reduced) {
  switch (reduction.dtype) {
    case DType::i8: return make_integers<std::int8_t>(reduction, inputs, reduced);
    case DType::u8: return make_integers<std::uint8_t>(reduction, inputs, reduced);
    case DType::i32: return make_integers<std::int32_t>(reduction, inputs, reduced);
    case DType::u32: return make_integers<std::uint32_t>(reduction, inputs, reduced);
    case DType::i64: return make_integers<std::int64_t>(reduction, inputs, reduced);
    case DType::u64: return make_integers<std::uint64_t>(reduction, inputs, reduced);
    default: return make_floats(reduction, inputs, reduced);
  }
}

void fill_random(std::uint64_t seed, int rank, const Tensor& input) {
  auto* bytes = static_cast<std::byte*>(input.raw());
  for (std::size_t i = 0; i < input.bytes(); ++i) {
    bytes[i] = static_cast<std::byte>(random_at(seed, rank, static_cast<std::int64_t>(i)) & 0xff);
  }
}

}  // namespace

Values::Values(const Case& test_case, std::uint64_t seed, const stretto::Quantization& quantization)
    : dtype_(test_case.dtype) {
  if (quantization.format != stretto::QuantizedFormat::none) {
    inputs_ = Approximate::inputs_of(test_case, seed, period);
    approximate_.emplace(test_case, quantization, inputs_);
    return;
  }
  const bool reduced = reduces(test_case.test->collective);
  for (int rank = 0; rank < test_case.ranks; ++rank) {
    inputs_.emplace_back(stretto::Shape{period}, dtype_, stretto::Device::cpu);
    if (!reduced) fill_random(seed, rank, inputs_.back());
  }
  if (!reduced) return;
  reduced_ = Tensor({period}, dtype_, stretto::Device::cpu);
  make_reduction({dtype_, test_case.op, test_case.ranks, seed}, inputs_, reduced_);
}

const std::byte* Values::pattern(int source) const {
  return static_cast<const std::byte*>((source == SourceRange::reduced ? reduced_ : inputs_[source]).raw());
}

// visit(first element in the period, number of elements, their address)
template <class Byte, class Visit>
void Values::for_each_run(const SourceRange& part, Byte* at, Visit visit) const {
  for (std::int64_t done = 0; done < part.count;) {
    const std::int64_t from = (part.first + done) % period;
    const std::int64_t run = std::min(part.count - done, period - from);
    visit(from, run, at + done * size_of(dtype_));
    done += run;
  }
}

void Values::fill(const SourceRange& part, void* to) const {
  const std::size_t element = size_of(dtype_);
  for_each_run(part, static_cast<std::byte*>(to), [&](std::int64_t from, std::int64_t run, std::byte* at) {
    std::memcpy(at, pattern(part.source) + from * element, run * element);
  });
}

std::int64_t Values::wrong(const SourceRange& part, const void* found) const {
  const std::size_t element = size_of(dtype_);
  std::int64_t wrong = 0;
  for_each_run(part, static_cast<const std::byte*>(found), [&](std::int64_t from, std::int64_t run, const std::byte* at) {
    const std::byte* wanted = pattern(part.source) + from * element;
    if (std::memcmp(at, wanted, run * element) == 0) return;
    for (std::int64_t i = 0; i < run; ++i) wrong += std::memcmp(at + i * element, wanted + i * element, element) != 0;
  });
  return wrong;
}

std::int64_t Values::wrong_results(const SourceRange& part, const void* found, Deviation& deviation) const {
  if (!approximate_) return wrong(part, found);
  std::int64_t wrong = 0;
  for_each_run(part, static_cast<const std::byte*>(found), [&](std::int64_t from, std::int64_t run, const std::byte* at) {
    wrong += approximate_->compare(part.source, from, run, at, deviation);
  });
  return wrong;
}

}  // namespace perf
