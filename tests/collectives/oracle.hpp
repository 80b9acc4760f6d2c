#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "stretto/device.hpp"
#include "stretto/stretto.hpp"

// The result of a collective, computed by one thread from the inputs of all ranks. Values are small integers, so sums are
// exact in every type and results can be compared for equality in any order of summation.
namespace stretto::oracle {

inline const std::vector<DType> all_dtypes{DType::f64, DType::f32, DType::bf16, DType::f16, DType::i8,     DType::u8,
                                           DType::i32, DType::u32, DType::i64,  DType::u64, DType::f8e4m3, DType::f8e5m2};
inline const std::vector<ReduceOp> all_ops{ReduceOp::sum, ReduceOp::prod, ReduceOp::min,
                                           ReduceOp::max, ReduceOp::avg,  ReduceOp::premul_sum};

inline bool is_unsigned(DType dtype) { return dtype == DType::u8 || dtype == DType::u32 || dtype == DType::u64; }
inline bool is_integer(DType dtype) {
  return is_unsigned(dtype) || dtype == DType::i8 || dtype == DType::i32 || dtype == DType::i64;
}

// The double rounded to the type.
inline double rounded(double value, DType dtype) {
  const Tensor one({1}, dtype, Device::cpu);
  one.set(0, value);
  return one.at(0);
}

struct Problem {
  Collective collective = Collective::all_reduce;
  int size = 1;
  std::int64_t count = 0;
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  std::vector<std::int64_t> counts = {};               // uneven shares
  std::vector<std::vector<std::int64_t>> matrix = {};  // uneven all_to_all: matrix[from][to]
  std::int64_t salt = 0;
  // Inputs are drawn from these values instead of small integers; if they are reduced, all ranks have the same inputs.
  std::vector<double> values = {};
  double tolerance = 0;  // relative
  int servers = 0;       // ranks behind the `size` first ones, without a vector

  Call call(int rank) const {
    Call result;
    result.collective = collective;
    result.count = count;
    result.dtype = dtype;
    result.op = op;
    result.root = root;
    result.counts = matrix.empty() ? counts : matrix[rank];
    for (int from = 0; from < size && !matrix.empty(); ++from) result.receive_counts.push_back(matrix[from][rank]);
    return result;
  }
  PlanRequest request(int rank) const {
    const Call c = call(rank);
    PlanRequest result{collective, Algorithm::automatic, rank, size, count, root, c.counts, c.receive_counts};
    result.servers = servers;
    return result;
  }
  double factor(int rank) const { return op == ReduceOp::premul_sum ? 1 + rank % 2 : 1; }

  double input(int rank, std::int64_t i) const {
    if (!values.empty()) {
      return values[static_cast<std::size_t>((i * 7 + i / 11 + (reduces(collective) ? 0 : rank)) % 17) % values.size()];
    }
    const std::int64_t mixed = (rank * 7 + i * 3 + salt) % 11;
    if (op == ReduceOp::prod && reduces(collective)) return mixed == 1 ? 2 : mixed == 2 && !is_unsigned(dtype) ? -1 : 1;
    return static_cast<double>(is_unsigned(dtype) ? mixed : mixed - 4);
  }
  std::int64_t begin(int rank) const {  // the first element of a rank's share in the whole vector
    std::int64_t sum = counts.empty() ? count * rank : 0;
    for (int r = 0; r < rank && !counts.empty(); ++r) sum += counts[r];
    return sum;
  }

  double reduced(std::int64_t i) const {
    double result = input(0, i) * factor(0);
    for (int rank = 1; rank < size; ++rank) {
      const double v = input(rank, i) * factor(rank);
      switch (op) {
        case ReduceOp::sum:
        case ReduceOp::avg:
        case ReduceOp::premul_sum: result += v; break;
        case ReduceOp::prod: result *= v; break;
        case ReduceOp::min: result = std::min(result, v); break;
        case ReduceOp::max: result = std::max(result, v); break;
      }
    }
    if (op == ReduceOp::avg) {
      result = dtype == DType::f64 ? result / size
               : is_integer(dtype) ? std::trunc(result / size)
                                   : static_cast<float>(result) / static_cast<float>(size);
    }
    return rounded(result, dtype);
  }

  double expected(int rank, std::int64_t i) const {
    switch (collective) {
      case Collective::all_reduce:
      case Collective::reduce: return reduced(i);
      case Collective::reduce_scatter: return reduced(begin(rank) + i);
      case Collective::broadcast: return input(root, i);
      case Collective::scatter: return input(root, begin(rank) + i);
      case Collective::all_gather:
      case Collective::gather: {
        int from = 0;
        while (i >= begin(from + 1)) ++from;
        return input(from, i - begin(from));
      }
      case Collective::all_to_all: {
        for (int from = 0; from < size; ++from) {
          const std::int64_t block = matrix.empty() ? count : matrix[from][rank];
          if (i >= block) {
            i -= block;
            continue;
          }
          std::int64_t at = matrix.empty() ? count * rank : 0;
          for (int to = 0; to < rank && !matrix.empty(); ++to) at += matrix[from][to];
          return input(from, at + i);
        }
        return NAN;
      }
      default: return NAN;
    }
  }
};

// One rank's buffers for a problem, with guards on both sides, at a chosen misalignment, in place or out of place.
class Buffers {
 public:
  Buffers(const Problem& problem, int rank, bool in_place, std::int64_t misaligned_by = 0)
      : problem_(problem), rank_(rank), in_place_(in_place) {
    const PlanRequest request = problem.request(rank);
    inputs_ = input_count(request);
    outputs_ = output_count(request);
    const auto width = static_cast<std::int64_t>(size_of(problem.dtype));
    const std::int64_t share = counts_shares(problem.collective) ? problem.begin(rank) * width : 0;
    std::int64_t input_at = guard + misaligned_by;
    std::int64_t output_at = input_at + inputs_ * width + guard;
    if (in_place_) {
      const bool gathers = problem.collective == Collective::all_gather || problem.collective == Collective::gather;
      output_at = input_at;
      if (inputs_ > 0 && outputs_ > 0) (gathers ? input_at : output_at) += share;
    }
    memory_.assign(static_cast<std::size_t>(std::max(input_at + inputs_ * width, output_at + outputs_ * width) + guard),
                   pattern);
    input_ = memory_.data() + input_at;
    output_ = memory_.data() + output_at;
    const Tensor value({1}, problem.dtype, Device::cpu);
    for (std::int64_t i = 0; i < inputs_; ++i) {
      value.set(0, problem.input(rank, i));
      std::memcpy(input_ + i * width, value.raw(), static_cast<std::size_t>(width));
    }
    before_ = memory_;
  }

  Call call() const {
    Call call = problem_.call(rank_);
    call.input = input_;
    call.output = output_;
    return call;
  }

  // The call on a copy of memory() that lies elsewhere.
  std::vector<std::byte>& memory() { return memory_; }
  Call call_in(std::byte* copy) const {
    Call call = problem_.call(rank_);
    call.input = copy + (input_ - memory_.data());
    call.output = copy + (output_ - memory_.data());
    return call;
  }

  // Describes the first wrong element or overwritten byte; empty if there is none.
  std::string fault() const {
    const auto width = static_cast<std::int64_t>(size_of(problem_.dtype));
    const Tensor value({1}, problem_.dtype, Device::cpu);
    for (std::int64_t i = 0; i < outputs_; ++i) {
      std::memcpy(value.raw(), output_ + i * width, static_cast<std::size_t>(width));
      const double wanted = problem_.expected(rank_, i);
      if (!(std::fabs(value.at(0) - wanted) <= problem_.tolerance * std::fabs(wanted))) {
        return "output element " + std::to_string(i) + " of rank " + std::to_string(rank_) + " is " +
               std::to_string(value.at(0)) + " instead of " + std::to_string(wanted);
      }
    }
    const auto output_begin = output_ - memory_.data();
    const auto input_begin = input_ - memory_.data();
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(memory_.size()); ++i) {
      const bool in_output = i >= output_begin && i < output_begin + outputs_ * width;
      const bool in_input = i >= input_begin && i < input_begin + inputs_ * width;
      if (in_output || (in_place_ && in_input)) continue;  // in place, the operation may overwrite the input
      if (memory_[i] != before_[i])
        return "byte " + std::to_string(i) + " of rank " + std::to_string(rank_) + " was overwritten";
    }
    return {};
  }

 private:
  static constexpr std::int64_t guard = 64;
  static constexpr std::byte pattern{0xa5};
  Problem problem_;
  int rank_;
  bool in_place_;
  std::int64_t inputs_ = 0, outputs_ = 0;
  std::vector<std::byte> memory_, before_;
  std::byte* input_ = nullptr;
  std::byte* output_ = nullptr;
};

// The algorithms of a collective, with and without parameters. Algorithms with levels need on_nodes; those over the host's
// shared memory are left out on GPUs.
inline std::vector<Method> methods_of(Collective collective, bool on_nodes, Device device = Device::cpu) {
  std::vector<Method> methods{Algorithm::automatic};
  for (const Algorithm algorithm : algorithms_for(collective)) {
    if (device == Device::cuda && shares_memory(algorithm)) continue;
    Method method(algorithm);
    if (needs_nodes(algorithm)) {
      if (!on_nodes) continue;
      method.inside = method.between = algorithms_for(collective).front();
      if (algorithm == Algorithm::three_level) method.above = method.inside;
    }
    methods.push_back(method);
    if (takes_lanes(algorithm)) method.lanes = 2;
    if (takes_pieces(algorithm)) method.pieces = 3;
    if (method != methods.back()) methods.push_back(method);
  }
  return methods;
}

// Runs a problem on a communicator, out of place and in place. Memory: Buffers, or a class like it for another memory.
template <class Memory = Buffers>
void expect_right(const Communicator& group, const Problem& problem, const Method& method,
                  const Stream& stream = Stream::inline_()) {
  for (const bool in_place : {false, true}) {
    if (in_place && !can_be_in_place(problem.collective)) continue;
    Memory buffers(problem, group.rank(), in_place);
    OperationOptions options;
    options.method = method;
    options.factor = problem.factor(group.rank());
    options.servers = problem.servers;
    computation().wait(group.start(buffers.call(), stream, options));
    ASSERT_EQ(buffers.fault(), "") << name(problem.collective) << " by " << to_string(method) << " of " << problem.count
                                   << " " << name(problem.dtype) << " (" << name(problem.op) << ") over " << group.size()
                                   << (in_place ? ", in place" : "");
  }
}

}  // namespace stretto::oracle
