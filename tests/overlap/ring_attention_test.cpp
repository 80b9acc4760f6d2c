// Ring attention, forward and backward, against attention over the whole sequence; and the work per rank with zigzag chunks.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>

#include "device/kernels/kernel_data.hpp"
#include "overlap/exchange.hpp"
#include "stretto/overlap/ring_pass.hpp"
#include "stretto/stretto.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using Vector = std::vector<double>;

// Attention with one head, computed block by block with an online softmax (Milakov & Gimelshein 2018).
struct Attention {
  std::int64_t width;  // of the head
  bool causal = true;

  // The scaled score of a query and a key.
  double score(const double* q, const double* k) const {
    double sum = 0;
    for (std::int64_t c = 0; c < width; ++c) sum += q[c] * k[c];
    return sum / std::sqrt(static_cast<double>(width));
  }
  bool sees(std::int64_t query, std::int64_t key) const { return !causal || key <= query; }
};

using Positions = std::vector<std::int64_t>;  // the positions of a block's rows in the whole sequence

// Merges a block's contribution into `out` and into the log-sum-exp of each row.
void attend(const Attention& attention, const Tensor& q, const Positions& of_q, const Tensor& k, const Tensor& v,
            const Positions& of_k, const Tensor& out, Vector& log_sum_exp) {
  const std::int64_t width = attention.width;
  for (std::int64_t i = 0; i < q.rows(); ++i) {
    double* const row = out.data<double>() + i * width;
    double& before = log_sum_exp[static_cast<std::size_t>(i)];
    for (std::int64_t j = 0; j < k.rows(); ++j) {
      if (!attention.sees(of_q[static_cast<std::size_t>(i)], of_k[static_cast<std::size_t>(j)])) continue;
      const double score = attention.score(q.data<double>() + i * width, k.data<double>() + j * width);
      const double top = std::max(before, score);
      const double after = top + std::log(std::exp(before - top) + std::exp(score - top));
      const double kept = std::exp(before - after);
      const double added = std::exp(score - after);
      for (std::int64_t c = 0; c < width; ++c) row[c] = row[c] * kept + v.data<double>()[j * width + c] * added;
      before = after;
    }
  }
}

// Adds to dq; overwrites dk and dv of the block.
void attend_backward(const Attention& attention, const Tensor& q, const Positions& of_q, const Tensor& k, const Tensor& v,
                     const Positions& of_k, const Tensor& out, const Vector& log_sum_exp, const Tensor& dout,
                     const Tensor& dq, const Tensor& dk, const Tensor& dv) {
  const std::int64_t width = attention.width;
  dk.zero();
  dv.zero();
  for (std::int64_t i = 0; i < q.rows(); ++i) {
    const double* const dout_row = dout.data<double>() + i * width;
    double product = 0;
    for (std::int64_t c = 0; c < width; ++c) product += dout_row[c] * out.data<double>()[i * width + c];
    for (std::int64_t j = 0; j < k.rows(); ++j) {
      if (!attention.sees(of_q[static_cast<std::size_t>(i)], of_k[static_cast<std::size_t>(j)])) continue;
      const double score = attention.score(q.data<double>() + i * width, k.data<double>() + j * width);
      const double weight = std::exp(score - log_sum_exp[static_cast<std::size_t>(i)]);
      double dweight = 0;
      for (std::int64_t c = 0; c < width; ++c) dweight += dout_row[c] * v.data<double>()[j * width + c];
      const double dscore = weight * (dweight - product) / std::sqrt(static_cast<double>(width));
      for (std::int64_t c = 0; c < width; ++c) {
        dv.data<double>()[j * width + c] += weight * dout_row[c];
        dq.data<double>()[i * width + c] += dscore * k.data<double>()[j * width + c];
        dk.data<double>()[j * width + c] += dscore * q.data<double>()[i * width + c];
      }
    }
  }
}

struct Results {
  Tensor out, dq, dk, dv;
  std::vector<Tensor> all() const { return {out, dq, dk, dv}; }
};

Positions counted(std::int64_t rows) {
  Positions positions;
  for (std::int64_t i = 0; i < rows; ++i) positions.push_back(i);
  return positions;
}

// The positions of a rank's rows: a zigzag pair of chunks, or a contiguous block.
Positions positions_of(int rank, int ranks, std::int64_t tokens, bool zigzag) {
  Positions positions;
  const std::int64_t chunk = tokens / ranks / 2;
  const std::array<int, 2> chunks = zigzag ? zigzag_chunks(rank, ranks) : std::array<int, 2>{2 * rank, 2 * rank + 1};
  for (const int one : chunks) {
    for (std::int64_t i = 0; i < chunk; ++i) positions.push_back(one * chunk + i);
  }
  return positions;
}

Tensor taken(const Tensor& whole, const Positions& positions) {
  const std::int64_t width = whole.columns();
  Tensor rows({static_cast<std::int64_t>(positions.size()), width}, whole.dtype());
  for (std::size_t i = 0; i < positions.size(); ++i) {
    rows.view(static_cast<std::int64_t>(i) * width, {width}).copy_from(whole.view(positions[i] * width, {width}));
  }
  return rows;
}

struct Data {
  Tensor q, k, v, dout;
};
Data whole_data(std::int64_t tokens, std::int64_t width) {
  const auto make = [&](unsigned seed) { return random_tensor({tokens, width}, DType::f64, seed); };
  return {make(1), make(2), make(3), make(4)};
}
Data taken(const Data& whole, const Positions& positions) {
  return {taken(whole.q, positions), taken(whole.k, positions), taken(whole.v, positions), taken(whole.dout, positions)};
}

// The reference: plain softmax over whole rows.
Results whole_attention(const Attention& attention, const Data& data) {
  const std::int64_t tokens = data.q.rows();
  const std::int64_t width = attention.width;
  Results results{Tensor::zeros(data.q.shape(), DType::f64), Tensor::zeros(data.q.shape(), DType::f64),
                  Tensor(data.q.shape(), DType::f64), Tensor(data.q.shape(), DType::f64)};
  Vector log_sum_exp;
  for (std::int64_t i = 0; i < tokens; ++i) {
    Vector weights;
    double sum = 0;
    for (std::int64_t j = 0; j < tokens; ++j) {
      const double score = attention.score(data.q.data<double>() + i * width, data.k.data<double>() + j * width);
      weights.push_back(attention.sees(i, j) ? std::exp(score) : 0);
      sum += weights.back();
    }
    log_sum_exp.push_back(std::log(sum));
    for (std::int64_t j = 0; j < tokens; ++j) {
      for (std::int64_t c = 0; c < width; ++c) {
        results.out.data<double>()[i * width + c] +=
            weights[static_cast<std::size_t>(j)] / sum * data.v.data<double>()[j * width + c];
      }
    }
  }
  const Positions all = counted(tokens);
  attend_backward(attention, data.q, all, data.k, data.v, all, results.out, log_sum_exp, data.dout, results.dq, results.dk,
                  results.dv);
  return results;
}

enum class Fault { none, no_rotation, sums_stay };

// This rank's rows of the same attention, computed round the ring. Backward computes the first half of the own block before
// the blocks of others and the second half after them.
Results ring_attention(const Attention& attention, const Data& own, const Communicator& blocks_group,
                       const Communicator& sums_group, bool overlap, bool zigzag, Fault fault = Fault::none) {
  const int ranks = blocks_group.size();
  const std::int64_t tokens = own.q.rows() * ranks;
  const auto positions = [&](int rank) { return positions_of(rank, ranks, tokens, zigzag); };
  const Positions mine = positions(blocks_group.rank());
  const auto stream = [&](const char* name) { return overlap ? Stream(name) : Stream::inline_(); };
  Results results{Tensor::zeros(own.q.shape(), DType::f64), Tensor::zeros(own.q.shape(), DType::f64), {}, {}};
  Vector log_sum_exp(static_cast<std::size_t>(own.q.rows()), -INFINITY);

  RingPass forward({own.k, own.v}, blocks_group, stream("kv"));
  do {
    attend(attention, own.q, mine, forward.current()[0], forward.current()[1], positions(forward.source()), results.out,
           log_sum_exp);
  } while (fault != Fault::no_rotation && forward.rotate());

  RingPass blocks({own.k, own.v}, blocks_group, stream("kv"));
  RingSum sums({own.k, own.v}, sums_group, stream("dkv"));
  const auto backward = [&](const Tensor& k, const Tensor& v, const Positions& of_k, const Tensor& dk, const Tensor& dv) {
    attend_backward(attention, own.q, mine, k, v, of_k, results.out, log_sum_exp, own.dout, results.dq, dk, dv);
  };
  const std::int64_t half = own.k.rows() / 2;
  const auto own_half = [&](std::int64_t first) {
    const auto rows = [&](const Tensor& tensor) { return rows_of(tensor, first, half); };
    backward(rows(own.k), rows(own.v), Positions(mine.begin() + first, mine.begin() + first + half), rows(sums.own()[0]),
             rows(sums.own()[1]));
  };
  own_half(0);
  while (blocks.rotate()) {
    backward(blocks.current()[0], blocks.current()[1], positions(blocks.source()), sums.contribution()[0],
             sums.contribution()[1]);
    sums.pass();
  }
  own_half(half);
  results.dk = sums.own()[0].clone();
  results.dv = sums.own()[1].clone();
  const std::vector<Tensor> home = sums.finish();
  if (fault != Fault::sums_stay) {
    results.dk = home[0];
    results.dv = home[1];
  }
  return results;
}

double largest_difference(const Results& expected, const Positions& positions, const Results& actual) {
  double largest = 0;
  for (std::size_t i = 0; i < expected.all().size(); ++i) {
    const Tensor rows = taken(expected.all()[i], positions);
    EXPECT_EQ(rows.size(), actual.all()[i].size());
    for (std::int64_t j = 0; j < rows.size(); ++j) {
      largest = std::max(largest, std::abs(rows.at(j) - actual.all()[i].at(j)));
    }
  }
  return largest;
}

TEST(RingAttention, IsThatOfTheWholeSequence) {
  for (const int ranks : {1, 2, 3, 4, 5}) {
    const std::int64_t tokens = 8 * ranks;
    for (const bool causal : {true, false}) {
      const Attention attention{8, causal};
      const Data data = whole_data(tokens, attention.width);
      const Results expected = whole_attention(attention, data);
      run_threads(ranks, [&](const Communicator& world) {
        const Communicator second = world.duplicate("dkv");
        for (const bool zigzag : {false, true}) {
          const Positions mine = positions_of(world.rank(), ranks, tokens, zigzag);
          const Results overlapped = ring_attention(attention, taken(data, mine), world, second, true, zigzag);
          EXPECT_LT(largest_difference(expected, mine, overlapped), 1e-12);
          const Results plain = ring_attention(attention, taken(data, mine), world, second, false, zigzag);
          for (std::size_t i = 0; i < plain.all().size(); ++i) {
            EXPECT_EQ(std::memcmp(plain.all()[i].raw(), overlapped.all()[i].raw(), plain.all()[i].bytes()), 0) << i;
          }
          if (ranks == 1) continue;
          for (const Fault fault : {Fault::no_rotation, Fault::sums_stay}) {
            const bool notices =
                largest_difference(expected, mine,
                                   ring_attention(attention, taken(data, mine), world, second, true, zigzag, fault)) > 1e-3;
            double noticing = notices ? 1 : 0;
            world.all_reduce(&noticing, &noticing, 1, DType::f64, ReduceOp::max, Stream::inline_()).wait();
            EXPECT_EQ(noticing, 1) << "the control " << static_cast<int>(fault);
          }
        }
      });
    }
  }
}

// A rank's work in a step is the number of pairs of a query and a key that it sees.
TEST(Zigzag, GivesAllRanksTheSameToDo) {
  for (const int ranks : {1, 2, 3, 8}) {
    constexpr std::int64_t chunk = 4;
    const std::int64_t tokens = 2 * chunk * ranks;
    for (const bool zigzag : {false, true}) {
      std::int64_t pairs = 0;
      std::int64_t slowest = 0;
      for (int step = 0; step < ranks; ++step) {
        std::int64_t most = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          std::int64_t own = 0;
          for (const std::int64_t query : positions_of(rank, ranks, tokens, zigzag)) {
            for (const std::int64_t key : positions_of((rank + ranks - step) % ranks, ranks, tokens, zigzag)) {
              own += key <= query ? 1 : 0;
            }
          }
          pairs += own;
          most = std::max(most, own);
        }
        slowest += most;
      }
      const double efficiency = static_cast<double>(pairs) / static_cast<double>(slowest) / ranks;
      // The diagonal of a rank's own block adds work that the formula ignores; its part shrinks with the block's length.
      EXPECT_NEAR(efficiency, zigzag ? 1 : contiguous_causal_efficiency(ranks), 0.03) << ranks << zigzag;
    }
  }
  EXPECT_EQ(contiguous_causal_efficiency(1), 1);
  EXPECT_THAT(sentence_of([] { zigzag_chunks(2, 2); }), testing::HasSubstr("Rank 2 is outside a ring of 2"));
}

}  // namespace
}  // namespace stretto
