// The error of a quantized sum against a model, at growing numbers of ranks.
//
// The model. Rounding to nearest has an error that is uniform over a step of the grid, with variance step^2/12. The errors
// of different elements and ranks are independent. v is that variance, averaged over the groups of the contributions. A sum
// of p contributions that are quantized once each has an error of variance v p. The sum of a node's m contributions is
// sqrt(m) times as large as one contribution, and so is the step of its groups: quantizing it adds m v, and the sums of all
// p/m nodes together add p v. Two quantizations therefore give 2 v p for any m. A single one, where a node or the group of
// nodes has one member, gives v p. A ring that quantizes a partial sum at every hop quantizes the sum of k contributions for
// each k from 1 to p-1, which adds k v each time: (1 + 2 + ... + p-1) v = p (p-1)/2 v.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <mutex>

#include "collectives/gaussian_data.hpp"
#include "stretto/kernels.hpp"
#include "stretto/stretto.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

using gaussian_data::gaussian;
using gaussian_data::normal;

constexpr std::int64_t share_elements = 1024;  // elements of a rank's result

// A record of int8 or int4 begins with its scale, which is the step.
double mean_variance(QuantizedFormat format, const std::vector<std::byte>& records) {
  double sum = 0;
  const auto bytes = static_cast<std::size_t>(record_bytes(format));
  for (std::size_t at = 0; at < records.size(); at += bytes) {
    std::uint32_t bits = 0;
    if (format == QuantizedFormat::int8) {
      std::memcpy(&bits, &records[at], 4);
    } else {
      std::memcpy(reinterpret_cast<std::byte*>(&bits) + 2, &records[at], 2);
    }
    float step = 0;
    std::memcpy(&step, &bits, 4);
    sum += static_cast<double>(step) * step / 12;
  }
  const std::size_t count = records.size() / bytes;
  return sum / static_cast<double>(count);
}

std::vector<std::byte> records_of(QuantizedFormat format, const Tensor& x) {
  std::vector<std::byte> records(static_cast<std::size_t>(packed_bytes(format, x.size())));
  kernels::quantize(format, DType::f32, x.raw(), records.data(), x.size());
  return records;
}

// The model's v, averaged over all ranks' contributions.
double variance_of_one(QuantizedFormat format, int ranks) {
  double sum = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    sum += mean_variance(format, records_of(format, gaussian(ranks * share_elements, DType::f32, rank)));
  }
  return sum / ranks;
}

double exact_sum(int ranks, std::int64_t i) {
  double sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += static_cast<float>(normal(rank, i));
  return sum;
}

double square_error(const Tensor& found, int ranks, std::int64_t first) {
  double sum = 0;
  for (std::int64_t i = 0; i < found.size(); ++i) sum += std::pow(found.at(i) - exact_sum(ranks, first + i), 2);
  return sum;
}

// The root mean square error over all elements of all ranks.
double error_of_reduce_scatter(QuantizedFormat format, int ranks_per_node, int nodes) {
  const Variable variable("STRETTO_RANKS_PER_NODE", std::to_string(ranks_per_node));
  const int ranks = ranks_per_node * nodes;
  std::mutex mutex;
  double sum = 0;
  run_threads(ranks, [&](const Communicator& world) {
    const Tensor out({share_elements}, DType::f32);
    OperationOptions options;
    options.method = Algorithm::two_level;
    options.quantization.format = format;
    world
        .reduce_scatter(gaussian(ranks * share_elements, DType::f32, world.rank()).raw(), out.raw(), share_elements,
                        DType::f32, ReduceOp::sum, Stream::inline_(), options)
        .wait();
    const double mine = square_error(out, ranks, world.rank() * share_elements);
    const std::lock_guard lock(mutex);
    sum += mine;
  });
  return std::sqrt(sum / static_cast<double>(ranks * share_elements));
}

// Every partial sum is quantized on its way to the next rank; the last rank adds its own contribution unquantized.
double error_of_requantizing_ring(QuantizedFormat format, int ranks) {
  double sum = 0;
  for (int owner = 0; owner < ranks; ++owner) {
    Tensor partial;
    for (int hop = 1; hop <= ranks; ++hop) {
      const int rank = (owner + hop) % ranks;
      const Tensor own = gaussian(ranks * share_elements, DType::f32, rank).view(owner * share_elements, {share_elements});
      if (partial) {
        const auto records = records_of(format, partial);
        kernels::dequantize(format, records.data(), DType::f32, partial.raw(), share_elements);
        kernels::add(own, partial, partial);
      } else {
        partial = own.clone();
      }
    }
    sum += square_error(partial, ranks, owner * share_elements);
  }
  return std::sqrt(sum / static_cast<double>(ranks * share_elements));
}

struct Grid {
  int ranks_per_node, nodes;
};

class QuantizationError : public testing::TestWithParam<QuantizedFormat> {};
INSTANTIATE_TEST_SUITE_P(All, QuantizationError, testing::Values(QuantizedFormat::int8, QuantizedFormat::int4),
                         [](const auto& parameter) { return std::string(name(parameter.param)); });

TEST_P(QuantizationError, IsThatOfTwoQuantizationsAtAnyNumberOfRanks) {
  for (const Grid grid : {Grid{2, 2}, {2, 3}, {2, 4}, {4, 2}, {4, 4}, {2, 16}, {8, 4}}) {
    const int ranks = grid.ranks_per_node * grid.nodes;
    const double model = std::sqrt(2 * variance_of_one(GetParam(), ranks) * ranks);
    const double found = error_of_reduce_scatter(GetParam(), grid.ranks_per_node, grid.nodes);
    EXPECT_NEAR(found / model, 1, 0.1) << grid.nodes << " nodes of " << grid.ranks_per_node;
  }
}

TEST_P(QuantizationError, IsThatOfOneQuantizationWhereOneLevelIsTrivial) {
  for (const Grid grid : {Grid{1, 2}, {2, 1}, {1, 8}, {8, 1}}) {
    const int ranks = grid.ranks_per_node * grid.nodes;
    const double model = std::sqrt(variance_of_one(GetParam(), ranks) * ranks);
    const double found = error_of_reduce_scatter(GetParam(), grid.ranks_per_node, grid.nodes);
    EXPECT_NEAR(found / model, 1, 0.1) << grid.nodes << " nodes of " << grid.ranks_per_node;
  }
}

// The control: a ring has the model's error for a ring, not that of two quantizations.
TEST_P(QuantizationError, GrowsWithTheHopsOfARing) {
  for (const int ranks : {8, 16, 32}) {
    const double one = variance_of_one(GetParam(), ranks);
    const double found = error_of_requantizing_ring(GetParam(), ranks);
    EXPECT_NEAR(found / std::sqrt(one * ranks * (ranks - 1) / 2), 1, 0.1) << ranks;
    EXPECT_GT(found / std::sqrt(2 * one * ranks), 1.1) << ranks;
  }
}

}  // namespace
}  // namespace stretto
