// Every collective by every algorithm against a single-threaded oracle. Data are small integers, so that sums are exact in
// every type and order and results can be compared for equality.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <thread>

#include "stretto/stretto.hpp"

namespace stretto {
namespace {

double value_of(int rank, std::int64_t i) { return static_cast<double>((rank * 7 + i * 3) % 11) - 4; }

double reduced(ReduceOp op, int size, std::int64_t i) {
  double result = value_of(0, i);
  for (int rank = 1; rank < size; ++rank) {
    const double v = value_of(rank, i);
    switch (op) {
      case ReduceOp::sum: result += v; break;
      case ReduceOp::prod: result *= v; break;
      case ReduceOp::min: result = std::min(result, v); break;
      case ReduceOp::max: result = std::max(result, v); break;
    }
  }
  return result;
}

Tensor input_of(int rank, std::int64_t count, DType dtype) {
  Tensor tensor({count}, dtype);
  for (std::int64_t i = 0; i < count; ++i) tensor.set(i, value_of(rank, i));
  return tensor;
}

template <class Expected>
void expect_elements(const Tensor& tensor, Expected expected, const std::string& where) {
  for (std::int64_t i = 0; i < tensor.size(); ++i) ASSERT_EQ(tensor.at(i), expected(i)) << where << ", element " << i;
}

const std::vector<int> sizes{1, 2, 3, 4, 5, 6, 7, 8};

void for_every_algorithm(Collective collective,
                         const std::function<void(const Communicator&, const OperationOptions&, std::string)>& use) {
  for (const int size : sizes) {
    run_threads(size, [&](const Communicator& world) {
      for (const Algorithm algorithm : algorithms_for(collective)) {
        if (needs_nodes(algorithm)) continue;
        use(world, {.method = algorithm}, std::string(name(algorithm)) + " on " + std::to_string(size));
      }
    });
  }
}

TEST(AllReduce, EqualsTheOracle) {
  for_every_algorithm(
      Collective::all_reduce, [](const Communicator& world, const OperationOptions& options, const std::string& where) {
        for (const std::int64_t count : {0, 1, 2, 7, 64, 1001}) {
          for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
            const Tensor input = input_of(world.rank(), count, dtype);
            const Tensor output({count}, dtype);
            world.all_reduce(input.raw(), output.raw(), count, dtype, ReduceOp::sum, Stream::inline_(), options);
            expect_elements(
                output, [&](std::int64_t i) { return reduced(ReduceOp::sum, world.size(), i); }, where);
            expect_elements(
                input, [&](std::int64_t i) { return value_of(world.rank(), i); }, where + ", the input");
            world.all_reduce(input, ReduceOp::sum, Stream::inline_(), options);  // in place
            expect_elements(
                input, [&](std::int64_t i) { return reduced(ReduceOp::sum, world.size(), i); }, where + ", in place");
          }
        }
      });
}

TEST(AllReduce, KnowsEveryOperation) {
  run_threads(3, [](const Communicator& world) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::prod, ReduceOp::min, ReduceOp::max}) {
      const Tensor data = input_of(world.rank(), 100, DType::f32);
      world.all_reduce(data, op, Stream::inline_());
      expect_elements(
          data, [&](std::int64_t i) { return reduced(op, 3, i); }, name(op));
    }
  });
}

TEST(ReduceScatter, EqualsTheOracle) {
  for_every_algorithm(Collective::reduce_scatter, [](const Communicator& world, const OperationOptions& options,
                                                     const std::string& where) {
    for (const std::int64_t count : {0, 1, 3, 250}) {
      const Tensor input = input_of(world.rank(), count * world.size(), DType::f32);
      const Tensor output({count}, DType::f32);
      const auto expected = [&](std::int64_t i) { return reduced(ReduceOp::sum, world.size(), world.rank() * count + i); };
      world.reduce_scatter(input.raw(), output.raw(), count, DType::f32, ReduceOp::sum, Stream::inline_(), options);
      expect_elements(output, expected, where);
      const Tensor own = input.view(world.rank() * count, {count});
      world.reduce_scatter(input.raw(), own.raw(), count, DType::f32, ReduceOp::sum, Stream::inline_(), options);
      expect_elements(own, expected, where + ", in place");
    }
  });
}

TEST(AllGather, EqualsTheOracle) {
  for_every_algorithm(
      Collective::all_gather, [](const Communicator& world, const OperationOptions& options, const std::string& where) {
        for (const std::int64_t count : {0, 1, 3, 250}) {
          const Tensor input = input_of(world.rank(), count, DType::bf16);
          const Tensor output({count * world.size()}, DType::bf16);
          const auto expected = [&](std::int64_t i) { return value_of(static_cast<int>(i / count), i % count); };
          world.all_gather(input.raw(), output.raw(), count, DType::bf16, Stream::inline_(), options);
          expect_elements(output, expected, where);
          output.zero();
          const Tensor own = output.view(world.rank() * count, {count});
          own.copy_from(input);
          world.all_gather(own.raw(), output.raw(), count, DType::bf16, Stream::inline_(), options);
          expect_elements(output, expected, where + ", in place");
        }
      });
}

TEST(BroadcastAndReduce, EqualTheOracleAtEveryRoot) {
  for_every_algorithm(
      Collective::broadcast, [](const Communicator& world, const OperationOptions& options, const std::string& where) {
        for (int root = 0; root < world.size(); ++root) {
          for (const std::int64_t count : {0, 1, 100}) {
            const Tensor data = input_of(world.rank(), count, DType::f64);
            world.broadcast(data, root, Stream::inline_(), options);
            expect_elements(
                data, [&](std::int64_t i) { return value_of(root, i); }, where);
            const Tensor input = input_of(world.rank(), count, DType::f64);
            const Tensor output = Tensor::zeros({count}, DType::f64);
            world.reduce(input.raw(), output.raw(), count, DType::f64, ReduceOp::max, root, Stream::inline_());
            expect_elements(
                output, [&](std::int64_t i) { return world.rank() == root ? reduced(ReduceOp::max, world.size(), i) : 0; },
                where);
          }
        }
      });
}

TEST(Barrier, NobodyPassesBeforeEverybodyCame) {
  std::atomic<int> came = 0;
  run_threads(7, [&](const Communicator& world) {
    for (int round = 1; round <= 50; ++round) {
      ++came;
      world.barrier(Stream::inline_());
      EXPECT_GE(came, 7 * round);
    }
  });
}

TEST(SendRecv, KeepsOrderAndAnySize) {
  run_threads(4, [](const Communicator& world) {
    const int next = (world.rank() + 1) % world.size();
    const int before = (world.rank() + 3) % world.size();
    const Stream sending("sending");
    for (const std::int64_t count : {0, 1, 5, 1000, 300000}) {
      const Tensor out = input_of(world.rank(), count, DType::f32);
      const Tensor in({count}, DType::f32);
      // Around the ring: even ranks send first, as one communicator does one thing at a time.
      if (world.rank() % 2 == 0) world.send(out.raw(), count, DType::f32, next, sending).wait();
      world.recv(in.raw(), count, DType::f32, before, Stream::inline_());
      if (world.rank() % 2 == 1) world.send(out.raw(), count, DType::f32, next, sending).wait();
      expect_elements(
          in, [&](std::int64_t i) { return value_of(before, i); }, "send/recv");
    }
  });
}

TEST(Communicator, SplitsByColorAndOrdersByKey) {
  run_threads(8, [](const Communicator& world) {
    const Communicator rows = world.split(world.rank() / 4, -world.rank(), "rows");
    EXPECT_EQ(rows.size(), 4);
    EXPECT_EQ(rows.rank(), 3 - world.rank() % 4);
    EXPECT_EQ(rows.name(), "rows");
    const Communicator none = world.split(world.rank() == 5 ? -1 : 0, 0, "all but 5");
    EXPECT_EQ(static_cast<bool>(none), world.rank() != 5);
    if (world.rank() == 5) {
      EXPECT_THROW(none.rank(), Error);
    } else {
      EXPECT_EQ(none.size(), 7);
    }
    const Communicator pair = rows.split(rows.rank() % 2, 0, "pairs");  // a split of a split
    const Tensor x = Tensor::zeros({3}, DType::f32);
    x.set(1, world.rank());
    pair.all_reduce(x, ReduceOp::sum, Stream::inline_());
    const int other = world.rank() ^ 2;
    EXPECT_EQ(x.at(1), world.rank() + other);
  });
}

TEST(Communicator, ManySplitsDoNotUseUpAnything) {
  run_threads(2, [](const Communicator& world) {
    for (int i = 0; i < 1000; ++i) {
      const Communicator copy = world.split(0, world.rank(), "copy");
      if (i % 100 == 0) copy.barrier(Stream::inline_());
    }
  });
}

// Three groups of one rank on streams of their own, at the same time, beside inline operations on a fourth.
TEST(Communicator, OverlappingGroupsRunAtTheSameTime) {
  run_threads(8, [](const Communicator& world) {
    const Communicator rows = world.split(world.rank() / 2, 0, "rows");
    const Communicator columns = world.split(world.rank() % 2, 0, "columns");
    const Communicator copy = world.split(0, world.rank(), "copy");
    const Stream a("a");
    const Stream b("b");
    const Stream c("c");
    for (int round = 0; round < 20; ++round) {
      const Tensor x = input_of(world.rank(), 5000, DType::f32);
      const Tensor y = x.clone();
      const Tensor z = x.clone();
      const Tensor w = x.clone();
      const Work one = rows.all_reduce(x, ReduceOp::sum, a);
      const Work two = columns.all_reduce(y, ReduceOp::sum, b);
      const Work three = copy.all_reduce(z, ReduceOp::sum, c);
      world.all_reduce(w, ReduceOp::max, Stream::inline_());
      one.wait();
      two.wait();
      three.wait();
      const int pair = world.rank() / 2 * 2;
      for (const std::int64_t i : {0, 17, 4999}) {
        EXPECT_EQ(x.at(i), value_of(pair, i) + value_of(pair + 1, i));
        double column = 0;
        for (int r = world.rank() % 2; r < 8; r += 2) column += value_of(r, i);
        EXPECT_EQ(y.at(i), column);
        EXPECT_EQ(z.at(i), reduced(ReduceOp::sum, 8, i));
        EXPECT_EQ(w.at(i), reduced(ReduceOp::max, 8, i));
      }
    }
  });
}

// One communicator used from two streams: its operations run in the order of the calls.
TEST(Communicator, OrdersItsOperationsAcrossStreams) {
  run_threads(4, [](const Communicator& world) {
    const Stream a("a");
    const Stream b("b");
    const Tensor x = Tensor::zeros({2000}, DType::f64);
    x.set(0, 1);
    for (int round = 0; round < 10; ++round) world.all_reduce(x, ReduceOp::sum, round % 2 == 0 ? a : b);
    a.synchronize();
    b.synchronize();
    EXPECT_EQ(x.at(0), 1048576);  // 4^10
  });
}

TEST(Ledger, RecordsEveryOperationWithTheBytesOfItsFormula) {
  for (const int size : {1, 2, 3, 4, 6, 8}) {
    run_threads(size, [&](const Communicator& world) {
      const std::int64_t count = 24L * size;
      const Tensor x = Tensor::zeros({count}, DType::f32);
      const std::uint64_t since = world.ledger().next_sequence();
      const Stream stream("comm");
      const Work work = world.all_reduce(x, ReduceOp::sum, stream, {.method = Algorithm::ring, .tag = "gradients"});
      work.wait();
      world.all_gather(x.raw(), Tensor({count * size}, DType::f32).raw(), count, DType::f32, Stream::inline_(),
                       {.method = Algorithm::recursive_halving_doubling});
      const auto records = world.ledger().records(since);
      ASSERT_EQ(records.size(), 2U);
      EXPECT_EQ(records[0].bytes_sent, 2U * (size - 1) * count * 4 / size);
      EXPECT_EQ(records[0].stream, "comm");
      EXPECT_EQ(records[0].tag, "gradients");
      EXPECT_EQ(records[0].algorithm, Algorithm::ring);
      EXPECT_EQ(records[0].group, "world");
      EXPECT_GT(records[0].times.done, 0);
      EXPECT_GE(records[0].times.started, records[0].times.enqueued);
      EXPECT_EQ(records[1].bytes_sent, 4U * (size - 1) * count);
      EXPECT_DOUBLE_EQ(records[1].times.waited, records[1].times.done - records[1].times.started);  // inline hides nothing
      const Traffic sum = world.ledger().traffic(since);
      EXPECT_EQ(sum.operations, 2U);
      EXPECT_EQ(sum.bytes_sent, records[0].bytes_sent + records[1].bytes_sent);
    });
  }
}

TEST(Errors, WrongArgumentsThrowAtTheCallAndHarmNothing) {
  run_threads(2, [](const Communicator& world) {
    const Stream stream("s");
    const Tensor x = Tensor::zeros({4}, DType::f32);
    EXPECT_THROW(world.all_reduce(nullptr, nullptr, 4, DType::f32, ReduceOp::sum, stream), Error);
    EXPECT_THROW(world.all_reduce(x.raw(), x.raw(), -4, DType::f32, ReduceOp::sum, stream), Error);
    EXPECT_THROW(world.broadcast(x, 2, stream), Error);
    EXPECT_THROW(world.broadcast(x, 0, stream, {.method = Algorithm::ring}), Error);
    EXPECT_THROW(world.send(x.raw(), 4, DType::f32, world.rank(), stream), Error);
    world.all_reduce(x, ReduceOp::sum, stream).wait();
  });
}

TEST(Errors, ARankThatGivesUpIsHeardByAllWithItsReason) {
  std::atomic<int> heard = 0;
  try {
    run_threads(4, [&](const Communicator& world) {
      if (world.rank() == 2) throw std::runtime_error("the disk is full.");
      try {
        const Tensor x = Tensor::zeros({100000}, DType::f32);
        const Stream stream("s");
        if (world.rank() == 1) world.all_reduce(x, ReduceOp::sum, stream).wait();
        while (true) world.all_reduce(x, ReduceOp::sum, Stream::inline_());
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::peer_gave_up);
        EXPECT_THAT(error.what(), testing::HasSubstr("Rank 2 gave up: the disk is full."));
        ++heard;
        throw;
      }
    });
    FAIL() << "the error was lost";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "the disk is full.");
  }
  EXPECT_EQ(heard, 3);
}

TEST(Errors, ATimeoutNamesTheRankThatIsMissing) {
  setenv("STRETTO_TIMEOUT", "0.2", 1);
  try {
    run_threads(3, [](const Communicator& world) {
      if (world.rank() == 1) return std::this_thread::sleep_for(std::chrono::milliseconds(500));
      const Tensor x = Tensor::zeros({1}, DType::f32);
      world.reduce(x.raw(), x.raw(), 1, DType::f32, ReduceOp::sum, 0, Stream::inline_(), {.tag = "late"});
      world.barrier(Stream::inline_());
    });
    FAIL() << "nobody noticed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::timeout);
    EXPECT_THAT(error.what(), testing::ContainsRegex("waited 0.2 s for rank [12]"));
    EXPECT_THAT(error.what(), testing::HasSubstr("late"));
  }
  unsetenv("STRETTO_TIMEOUT");
}

}  // namespace
}  // namespace stretto
