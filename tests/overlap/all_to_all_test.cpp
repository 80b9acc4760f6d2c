// All-to-all with computation against the plain all-to-all: the rows computed on, their order, and the traffic.
#include "stretto/overlap/all_to_all.hpp"

#include <gmock/gmock.h>

#include <cstring>
#include <numeric>
#include <random>
#include <stdexcept>

#include "device/kernels/kernel_data.hpp"
#include "stretto/kernels.hpp"
#include "stretto/stretto.hpp"
#include "support/data.hpp"
#include "support/error.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

using Matrix = std::vector<std::vector<std::int64_t>>;  // rows[from][to]

std::vector<std::int64_t> column(const Matrix& rows, int to) {
  std::vector<std::int64_t> result;
  for (const auto& from : rows) result.push_back(from[static_cast<std::size_t>(to)]);
  return result;
}
std::int64_t sum(const std::vector<std::int64_t>& rows) {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

Matrix some_rows(int ranks, int seed) {
  std::mt19937 generator(static_cast<unsigned>(seed));
  std::uniform_int_distribution<std::int64_t> some(0, 40);
  Matrix rows(static_cast<std::size_t>(ranks), std::vector<std::int64_t>(static_cast<std::size_t>(ranks)));
  for (auto& from : rows) {
    for (auto& to : from) to = seed == 0 ? 16 : seed == 1 ? 0 : some(generator) / (1 + some(generator) % 3);
  }
  return rows;
}

constexpr std::int64_t columns = 5;

// A rank's input, and the output that the plain operation gives.
struct Plain {
  Plain(const Communicator& world, const Matrix& rows, DType dtype)
      : send_rows(rows[static_cast<std::size_t>(world.rank())]),
        receive_rows(column(rows, world.rank())),
        input(random_tensor({sum(send_rows), columns}, dtype, static_cast<unsigned>(world.rank()))),
        output({sum(receive_rows), columns}, dtype) {
    const auto elements = [](std::vector<std::int64_t> counts) {
      for (std::int64_t& count : counts) count *= columns;
      return counts;
    };
    world.all_to_all_v(input.raw(), elements(send_rows), output.raw(), elements(receive_rows), dtype, Stream::inline_())
        .wait();
  }
  std::vector<std::int64_t> send_rows, receive_rows;
  Tensor input, output;
};

template <class Body>
void for_each_exchange(Body body) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    run_threads(ranks, [&](const Communicator& world) {
      const Stream stream("ep");
      for (int seed = 0; seed < 5; ++seed) {
        for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
          const Plain plain(world, some_rows(ranks, seed), dtype);
          for (const int chunks : {0, 1, 2, 7}) {
            body(plain, AllToAllOptions{.chunks = chunks}, world, stream);
            body(plain, AllToAllOptions{.chunks = chunks}, world, Stream::inline_());
          }
        }
      }
    });
  }
}

// `compute` gets every row once, after its arrival, in the order that the header promises.
TEST(AllToAllThen, ComputesOnEveryRowWhenItIsThere) {
  for_each_exchange([](const Plain& plain, const AllToAllOptions& options, const Communicator& world, const Stream& stream) {
    const Tensor output = Tensor::zeros(plain.output.shape(), plain.output.dtype());
    const Tensor computed = Tensor::zeros(plain.output.shape(), plain.output.dtype());
    int step = 0;
    std::int64_t rows_seen = 0;
    const auto compute = [&](const BlockRows& part) {
      const int distance = (world.rank() - part.rank + world.size()) % world.size();
      EXPECT_GE(distance, step);
      step = distance;
      const std::int64_t place = static_cast<std::byte*>(part.rows.raw()) - static_cast<std::byte*>(output.raw());
      std::int64_t first = part.first;
      for (int rank = 0; rank < part.rank; ++rank) first += plain.receive_rows[static_cast<std::size_t>(rank)];
      EXPECT_EQ(place, first * columns * static_cast<std::int64_t>(size_of(output.dtype())));
      computed.view(first * columns, part.rows.shape()).copy_from(part.rows);
      rows_seen += part.rows.rows();
    };
    all_to_all_then(plain.input, plain.send_rows, output, plain.receive_rows, compute, world, stream, options);
    EXPECT_EQ(rows_seen, output.rows());
    EXPECT_TRUE(same_bits(computed, plain.output));
    EXPECT_TRUE(same_bits(output, plain.output));
  });
}

TEST(ComputeThenAllToAll, SendsWhatWasComputedJustBefore) {
  for_each_exchange([](const Plain& plain, const AllToAllOptions& options, const Communicator& world, const Stream& stream) {
    const Tensor input = Tensor::zeros(plain.input.shape(), plain.input.dtype());
    const Tensor output = Tensor::zeros(plain.output.shape(), plain.output.dtype());
    int step = 1;
    const auto compute = [&](const BlockRows& part) {
      const int distance = (part.rank - world.rank() + world.size() - 1) % world.size() + 1;  // the own block is the last
      EXPECT_GE(distance, step);
      step = distance;
      std::int64_t first = part.first;
      for (int rank = 0; rank < part.rank; ++rank) first += plain.send_rows[static_cast<std::size_t>(rank)];
      part.rows.copy_from(plain.input.view(first * columns, part.rows.shape()));
    };
    compute_then_all_to_all(compute, input, plain.send_rows, output, plain.receive_rows, world, stream, options);
    EXPECT_TRUE(same_bits(output, plain.output));
  });
}

// Dispatch and combine, where experts double their tokens on both ways.
TEST(AllToAll, DispatchesAndCombines) {
  run_threads(3, [](const Communicator& world) {
    const Plain plain(world, some_rows(3, 4), DType::f32);
    const Stream stream("ep");
    const Tensor there(plain.output.shape(), DType::f32);
    const Tensor back(plain.input.shape(), DType::f32);
    const auto doubled = [](const BlockRows& part) { kernels::scale(part.rows, 2); };
    all_to_all_then(plain.input, plain.send_rows, there, plain.receive_rows, doubled, world, stream, {});
    compute_then_all_to_all(doubled, there, plain.receive_rows, back, plain.send_rows, world, stream, {});
    for (std::int64_t i = 0; i < back.size(); ++i) EXPECT_EQ(back.at(i), 4 * plain.input.at(i));
  });
}

TEST(AllToAll, SendsEveryRowForOthersOnce) {
  run_threads(4, [](const Communicator& world) {
    const Plain plain(world, some_rows(4, 3), DType::f32);
    const std::int64_t bytes =
        (sum(plain.send_rows) - plain.send_rows[static_cast<std::size_t>(world.rank())]) * columns * 4;
    const Stream stream("ep");
    for (const int chunks : {1, 4}) {
      const AllToAllOptions options{.chunks = chunks, .tag = "dispatch"};
      const Tensor output(plain.output.shape(), DType::f32);
      const std::uint64_t since = world.job().ledger().next_sequence();
      all_to_all_then(
          plain.input, plain.send_rows, output, plain.receive_rows, [](const BlockRows&) {}, world, stream, options);
      EXPECT_EQ(static_cast<std::int64_t>(world.job().ledger().traffic(since).bytes_sent), bytes);
      for (const Record& record : world.job().ledger().records(since)) EXPECT_EQ(record.tag, "dispatch");
      compute_then_all_to_all([](const BlockRows&) {}, plain.input, plain.send_rows, output, plain.receive_rows, world,
                              stream, options);
      EXPECT_EQ(static_cast<std::int64_t>(world.job().ledger().traffic(since).bytes_sent), 2 * bytes);
    }
  });
}

// Each of two ranks receives a single block. On slow links a large block comes in several chunks, a small one in one.
TEST(AllToAll, CutsTheOneBlockOfTwoRanks) {
  const Variable links("STRETTO_LINKS", "intra=1GB/s,5us");
  run_threads(2, [](const Communicator& world) {
    const auto chunks = [&](std::int64_t rows) {
      const Tensor input = Tensor::zeros({2 * rows, 256}, DType::f32);
      const Tensor output({2 * rows, 256}, DType::f32);
      int calls = 0;
      all_to_all_then(input, {rows, rows}, output, {rows, rows}, [&](const BlockRows&) { ++calls; }, world, Stream("ep"),
                      {});
      return calls - 1;  // the own block is whole
    };
    EXPECT_GE(chunks(1024), 2);
    EXPECT_EQ(chunks(4), 1);
    EXPECT_EQ(chunks(0), -1);
  });
}

// When the computation throws, buffers stay alive until all operations have ended, and the communicator stays usable.
TEST(AllToAll, OutlivesAComputationThatThrows) {
  run_threads(3, [](const Communicator& world) {
    const Stream stream("ep");
    for (int round = 0; round < 20; ++round) {
      const Plain plain(world, some_rows(3, 0), DType::f32);
      const std::string sentence = sentence_of([&] {
        const Tensor output(plain.output.shape(), DType::f32);
        all_to_all_then(plain.input, plain.send_rows, output, plain.receive_rows,
                        [](const BlockRows&) { throw std::runtime_error("no more experts"); }, world, stream, {.chunks = 4});
      });
      EXPECT_EQ(sentence, "no more experts");
    }
    const Tensor one = integer_tensor({100}, DType::f32);
    const Tensor three = one.clone();
    world.all_reduce(three, ReduceOp::sum, stream).wait();
    for (std::int64_t i = 0; i < one.size(); ++i) EXPECT_EQ(three.at(i), 3 * one.at(i));
  });
}

TEST(AllToAll, RefusesWhatDoesNotFit) {
  run_threads(2, [](const Communicator& world) {
    const Tensor x({4, 3}, DType::f32);
    const Tensor y({4, 3}, DType::f32);
    const auto refusal = [&](const std::vector<std::int64_t>& send, const Tensor& output,
                             const std::vector<std::int64_t>& receive, const AllToAllOptions& options = {}) {
      return sentence_of([&] {
        all_to_all_then(
            x, send, output, receive, [](const BlockRows&) {}, world, Stream::inline_(), options);
      });
    };
    EXPECT_THAT(refusal({4}, y, {2, 2}), testing::HasSubstr("The input of an all-to-all got the rows [4] for a group of 2"));
    EXPECT_THAT(refusal({2, 3}, y, {2, 2}), testing::HasSubstr("whose blocks have 5 rows together"));
    EXPECT_THAT(refusal({1, 3}, y, {2, 2}), testing::HasSubstr("rows in an all-to-all and expects 2"));
    EXPECT_THAT(refusal({2, 2}, Tensor({4, 2}, DType::f32), {2, 2}), testing::HasSubstr("they must be alike"));
    EXPECT_THAT(refusal({2, 2}, y, {2, 2}, {.chunks = -2}), testing::HasSubstr("-2 chunks"));
  });
}

}  // namespace
}  // namespace stretto
