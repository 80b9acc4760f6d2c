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

// All integers up to this magnitude are in the type.
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

  // What a rank gives, where results must not leave the exact integers.
  std::int64_t small(int rank, std::int64_t element) const {
    const std::uint64_t own = random_at(seed, rank, element);
    const std::uint64_t common = random_at(seed, -1, element);
    // In this order, the ranks differ from element to element.
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

double reduce_small(const Reduction& how, std::int64_t element) {
  double result = 0;
  for (int rank = 0; rank < how.ranks; ++rank) {
    const double value = static_cast<double>(how.small(rank, element));
    switch (how.op) {
      case ReduceOp::prod: result = rank == 0 ? value : result * value; break;
      case ReduceOp::min: result = rank == 0 ? value : std::min(result, value); break;
      case ReduceOp::max: result = rank == 0 ? value : std::max(result, value); break;
      case ReduceOp::premul_sum: result += value * Values::factor(rank); break;
      default: result += value;
    }
  }
  return how.op == ReduceOp::avg ? result / how.ranks : result;
}

// Integers of any value: sums and products wrap. Odd factors only, or products would soon be zero.
template <class T>
T any_integer(const Reduction& how, int rank, std::int64_t element) {
  const auto value = static_cast<T>(random_at(how.seed, rank, element));
  return how.op == ReduceOp::prod ? static_cast<T>(value | 1) : value;
}

template <class T>
T reduce_any(const Reduction& how, std::int64_t element) {
  auto result = any_integer<T>(how, 0, element);
  for (int rank = 1; rank < how.ranks; ++rank) {
    const auto value = any_integer<T>(how, rank, element);
    const std::uint64_t a = static_cast<std::make_unsigned_t<T>>(result);
    const std::uint64_t b = static_cast<std::make_unsigned_t<T>>(value);
    switch (how.op) {
      case ReduceOp::sum: result = static_cast<T>(a + b); break;
      case ReduceOp::prod: result = static_cast<T>(a * b); break;
      case ReduceOp::min: result = std::min(result, value); break;
      default: result = std::max(result, value);
    }
  }
  return result;
}

template <class T>
void make_integers(const Reduction& how, const std::vector<Tensor>& inputs, const Tensor& reduced) {
  const bool wraps = how.op != ReduceOp::avg && how.op != ReduceOp::premul_sum;
  for (std::int64_t i = 0; i < reduced.size(); ++i) {
    for (int rank = 0; rank < how.ranks; ++rank) {
      static_cast<T*>(inputs[rank].raw())[i] = wraps ? any_integer<T>(how, rank, i) : static_cast<T>(how.small(rank, i));
    }
    // Integers that are averaged round towards zero, as this conversion does.
    static_cast<T*>(reduced.raw())[i] = wraps ? reduce_any<T>(how, i) : static_cast<T>(reduce_small(how, i));
  }
}

void make_floats(const Reduction& how, const std::vector<Tensor>& inputs, const Tensor& reduced) {
  for (std::int64_t i = 0; i < reduced.size(); ++i) {
    for (int rank = 0; rank < how.ranks; ++rank) inputs[rank].set(i, static_cast<double>(how.small(rank, i)));
    reduced.set(i, reduce_small(how, i));
  }
}

void make_reduction(const Reduction& how, const std::vector<Tensor>& inputs, const Tensor& reduced) {
  switch (how.dtype) {
    case DType::i8: return make_integers<std::int8_t>(how, inputs, reduced);
    case DType::u8: return make_integers<std::uint8_t>(how, inputs, reduced);
    case DType::i32: return make_integers<std::int32_t>(how, inputs, reduced);
    case DType::u32: return make_integers<std::uint32_t>(how, inputs, reduced);
    case DType::i64: return make_integers<std::int64_t>(how, inputs, reduced);
    case DType::u64: return make_integers<std::uint64_t>(how, inputs, reduced);
    default: return make_floats(how, inputs, reduced);
  }
}

void fill_random(std::uint64_t seed, int rank, const Tensor& input) {
  auto* bytes = static_cast<std::byte*>(input.raw());
  for (std::size_t i = 0; i < input.bytes(); ++i) {
    bytes[i] = static_cast<std::byte>(random_at(seed, rank, static_cast<std::int64_t>(i)) & 0xff);
  }
}

}  // namespace

Values::Values(const Case& of, std::uint64_t seed, const stretto::Quantization& quantization) : dtype_(of.dtype) {
  if (quantization.format != stretto::QuantizedFormat::none) {
    inputs_ = Approximate::inputs_of(of, seed, period);
    approximate_.emplace(of, quantization, inputs_);
    return;
  }
  const bool reduced = reduces(of.test->collective);
  for (int rank = 0; rank < of.ranks; ++rank) {
    inputs_.emplace_back(stretto::Shape{period}, dtype_, stretto::Device::cpu);
    if (!reduced) fill_random(seed, rank, inputs_.back());
  }
  if (!reduced) return;
  reduced_ = Tensor({period}, dtype_, stretto::Device::cpu);
  make_reduction({dtype_, of.op, of.ranks, seed}, inputs_, reduced_);
}

const std::byte* Values::pattern(int source) const {
  return static_cast<const std::byte*>((source == Part::reduced ? reduced_ : inputs_[source]).raw());
}

// visit(where in the period it begins, how many elements, where they are)
template <class Byte, class Visit>
void Values::for_each_run(const Part& part, Byte* at, Visit visit) const {
  for (std::int64_t done = 0; done < part.count;) {
    const std::int64_t from = (part.first + done) % period;
    const std::int64_t run = std::min(part.count - done, period - from);
    visit(from, run, at + done * size_of(dtype_));
    done += run;
  }
}

void Values::fill(const Part& part, void* to) const {
  const std::size_t element = size_of(dtype_);
  for_each_run(part, static_cast<std::byte*>(to), [&](std::int64_t from, std::int64_t run, std::byte* at) {
    std::memcpy(at, pattern(part.source) + from * element, run * element);
  });
}

std::int64_t Values::wrong(const Part& part, const void* found) const {
  const std::size_t element = size_of(dtype_);
  std::int64_t wrong = 0;
  for_each_run(part, static_cast<const std::byte*>(found), [&](std::int64_t from, std::int64_t run, const std::byte* at) {
    const std::byte* wanted = pattern(part.source) + from * element;
    if (std::memcmp(at, wanted, run * element) == 0) return;
    for (std::int64_t i = 0; i < run; ++i) wrong += std::memcmp(at + i * element, wanted + i * element, element) != 0;
  });
  return wrong;
}

std::int64_t Values::wrong_results(const Part& part, const void* found, Deviation& deviation) const {
  if (!approximate_) return wrong(part, found);
  std::int64_t wrong = 0;
  for_each_run(part, static_cast<const std::byte*>(found), [&](std::int64_t from, std::int64_t run, const std::byte* at) {
    wrong += approximate_->compare(part.source, from, run, at, deviation);
  });
  return wrong;
}

}  // namespace perf
