// Calls over shared memory as a user makes them: with any memory on each rank, repeatedly, inline or in a stream.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <tuple>

#include "../tuning_by_memory.hpp"
#include "collectives/communicator/group.hpp"
#include "collectives/communicator/inline_fast_path.hpp"
#include "collectives/ledger/fast_path_log.hpp"
#include "core/fail.hpp"
#include "stretto/stretto.hpp"
#include "support/error.hpp"
#include "support/temporary_directory.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

const Stream here = Stream::inline_();

// A symmetric or an ordinary buffer that is filled with one value.
struct Buffer {
  std::shared_ptr<std::byte> symmetric;
  std::vector<float> ordinary;
  Buffer(std::int64_t count, bool is_symmetric, float value) : ordinary(is_symmetric ? 0 : count, value) {
    if (!is_symmetric) return;
    symmetric = allocate(static_cast<std::size_t>(count) * sizeof(float));
    std::fill_n(data(), count, value);
  }
  float* data() { return symmetric ? reinterpret_cast<float*>(symmetric.get()) : ordinary.data(); }
};

void require_all(const float* data, std::int64_t count, float value, const char* what) {
  for (std::int64_t i = 0; i < count; ++i) {
    require(data[i] == value, "Element {} of {} {} is {}, not {}.", i, count, what, data[i], value);
  }
}

// The algorithm of the last operation; requires that all ranks used the same one.
Algorithm last_algorithm(const Communicator& world) {
  const auto mine = static_cast<std::int32_t>(world.job().ledger().records().back().method.algorithm);
  std::vector<std::int32_t> all(world.size());
  std::ignore = world.all_gather(&mine, all.data(), 1, DType::i32, here);
  for (const std::int32_t other : all)
    require(other == mine, "Rank {} did it by {}, another by {}.", world.rank(), mine, other);
  return static_cast<Algorithm>(mine);
}

void sum(const Communicator& world, std::int64_t count, bool symmetric_input, bool symmetric_output) {
  Buffer input(count, symmetric_input, static_cast<float>(world.rank() + 1));
  Buffer output(count, symmetric_output, 0);
  std::ignore = world.all_reduce(input.data(), output.data(), count, DType::f32, ReduceOp::sum, here);
  require_all(output.data(), count, static_cast<float>(world.size() * (world.size() + 1)) / 2, "sums");
  require_all(input.data(), count, static_cast<float>(world.rank() + 1), "inputs");
}

// The ranks are processes, which cannot reach each other's ordinary memory.
TEST(AnyMemory, GivesTheSameSumsWhateverEachRankBrings) {
  EXPECT_EQ(launch(3,
                   [](const Communicator& world) {
                     const auto is = [&](int bit, int pattern) { return (pattern >> bit & 1) != 0; };
                     for (const std::int64_t count : {1, 100, 5000, 70000, 600000}) {
                       for (int pattern = 0; pattern < 8; ++pattern) {
                         sum(world, count, is(world.rank(), pattern), true);
                         require(pattern == 7 || last_algorithm(world) != Algorithm::push,
                                 "push of {} with ordinary memory.", count);
                         sum(world, count, true, is(world.rank(), pattern));
                         last_algorithm(world);
                       }
                     }
                   }),
            0);
}

class Blocks : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(AnyMemory, Blocks,
                         testing::Values("all_to_all:staged;reduce_scatter:staged;all_gather:staged;reduce:staged;"
                                         "broadcast:staged;scatter:staged;gather:staged",
                                         "all_to_all:packet;reduce_scatter:packet;all_gather:packet;reduce:packet;"
                                         "broadcast:packet;scatter:packet;gather:packet",
                                         "all_to_all:pairwise;reduce_scatter:ring;all_gather:ring;reduce:chain;"
                                         "broadcast:binomial;scatter:binomial;gather:direct"));

// Some ranks know from their own buffers that not all can be mapped, others hear it from them.
TEST_P(Blocks, AreTheSameWhateverEachRankBrings) {
  const std::string table = GetParam();
  const TemporaryDirectory directory;
  const Variable tuning("STRETTO_TUNING", directory.write("tuning.json", tuning_by_memory(table, 3)));
  const std::int64_t step = table.find("packet") == std::string::npos ? 3000 : 600;  // a packet holds 16 KiB
  EXPECT_EQ(launch(3,
                   [&](const Communicator& world) {
                     const int size = world.size();
                     const auto value = [](int from, int to) { return static_cast<float>(10 * from + to + 1); };
                     for (int pattern = 0; pattern < 16; ++pattern) {
                       const std::int64_t count = 100 + step * (pattern % 3);
                       const bool symmetric = (pattern % 8 >> world.rank() & 1) != 0;
                       Buffer input(count * size, pattern >= 8 || symmetric, 0);
                       Buffer output(count * size, pattern < 8 || symmetric, -1);
                       const bool all = pattern % 8 == 7;
                       const bool root_has = (pattern & 2) != 0;                // rank 1
                       const bool to_root = all || (pattern >= 8 && root_has);  // its output alone is ordinary, or none
                       const bool from_root = all || (pattern < 8 && root_has);
                       for (int to = 0; to < size; ++to) {
                         std::fill_n(input.data() + to * count, count, value(world.rank(), to));
                       }
                       const auto check = [&](bool mappable, Algorithm mapped, int blocks, auto expected) {
                         const Algorithm by = last_algorithm(world);
                         require(mappable ? by == mapped : table.find(fmt::format(":{}", name(by))) != std::string::npos,
                                 "Pattern {} went by {}.", pattern, name(by));
                         for (int i = 0; i < blocks; ++i)
                           require_all(output.data() + i * count, count, expected(i), "elements");
                       };
                       float sum = 0;  // of the blocks for this rank
                       for (int from = 0; from < size; ++from) sum += value(from, world.rank());
                       std::ignore = world.all_to_all(input.data(), output.data(), count, DType::f32, here);
                       check(all, Algorithm::pull, size, [&](int i) { return value(i, world.rank()); });
                       std::ignore =
                           world.reduce_scatter(input.data(), output.data(), count, DType::f32, ReduceOp::sum, here);
                       check(all, Algorithm::pull, 1, [&](int) { return sum; });
                       std::ignore = world.all_gather(input.data(), output.data(), count, DType::f32, here);
                       check(all, Algorithm::pull, size, [&](int i) { return value(i, 0); });
                       std::ignore = world.reduce(input.data(), output.data(), count, DType::f32, ReduceOp::max, 1, here);
                       check(to_root, Algorithm::push, world.rank() == 1 ? 1 : 0, [&](int) { return value(size - 1, 0); });
                       std::ignore = world.gather(input.data(), output.data(), count, DType::f32, 1, here);
                       check(to_root, Algorithm::pull, world.rank() == 1 ? size : 0, [&](int i) { return value(i, 0); });
                       for (int again = 0; again < 3; ++again) {  // the root may be ahead
                         std::ignore = world.broadcast(input.data(), output.data(), count, DType::f32, 1, here);
                         std::ignore = world.scatter(input.data(), output.data() + count, count, DType::f32, 1, here);
                       }
                       check(from_root, Algorithm::pull, 2, [&](int i) { return value(1, i * world.rank()); });
                     }
                   }),
            0);
}

TEST(AnyMemory, IsPulledThroughTheKernel) {
  EXPECT_EQ(launch(3,
                   [](const Communicator& world) {
                     constexpr std::int64_t count = 100003;  // not a multiple of the pieces
                     Buffer input(count, false, static_cast<float>(world.rank() + 1));
                     Buffer output(3 * count, false, 0);
                     std::ignore = world.all_reduce(input.data(), output.data(), count, DType::f32, ReduceOp::avg, here,
                                                    {.method = Algorithm::pull});
                     require_all(output.data(), count, 2, "averages");
                     std::ignore =
                         world.all_gather(input.data(), output.data(), count, DType::f32, here, {.method = Algorithm::pull});
                     for (int rank = 0; rank < 3; ++rank) {
                       require_all(output.data() + rank * count, count, static_cast<float>(rank + 1), "gathered");
                     }
                   }),
            0);
}

// Every rank gets the error, also those with symmetric memory, and the communicator stays usable.
TEST(AnyMemory, PushNamesTheRankWhoseMemoryIsOrdinary) {
  EXPECT_EQ(launch(2,
                   [](const Communicator& world) {
                     for (const std::int64_t count : {1, 100}) {
                       Buffer buffer(count, world.rank() == 0, 1);
                       const std::string sentence = sentence_of([&] {
                         std::ignore = world.all_reduce(buffer.data(), buffer.data(), count, DType::f32, ReduceOp::sum, here,
                                                        {.method = Algorithm::push});
                       });
                       require(sentence.find("rank 1's") != std::string::npos &&
                                   sentence.find("stretto::allocate") != std::string::npos,
                               "Push of ordinary memory said '{}'.", sentence);
                       sum(world, count, true, true);
                     }
                   }),
            0);
}

// A root does not wait for the other ranks, which are sometimes late; they must still find each of its packets.
TEST(Broadcast, OfARootThatIsAheadLosesNothing) {
  for (const int size : {2, 3}) {
    EXPECT_EQ(launch(size,
                     [](const Communicator& world) {
                       for (const std::int64_t count : {1, 14, 15, 500, 600, 4096}) {
                         for (int i = 0; i < 200; ++i) {
                           const float value = static_cast<float>(i);
                           Buffer buffer(count, false, world.rank() == 1 ? value : -1);
                           if (world.rank() == 0 && i % 64 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
                           std::ignore = world.broadcast(buffer.data(), buffer.data(), count, DType::f32, 1, here,
                                                         {.method = Algorithm::packet});
                           require_all(buffer.data(), count, value, "elements");
                         }
                       }
                     }),
              0);
  }
}

// All ranks write into all others. Out of place, the root's own output must be written, too.
TEST(Broadcast, ByPushReachesEverybody) {
  for (const int size : {1, 2, 3, 4}) {
    EXPECT_EQ(launch(size,
                     [](const Communicator& world) {
                       for (const std::int64_t count : {1, 3, 1000, 100003}) {
                         for (int root = 0; root < world.size(); ++root) {
                           const bool is_root = world.rank() == root;
                           const float value = static_cast<float>(10 * root + 1);
                           Buffer input(count, true, is_root ? value : -1);
                           Buffer output(count, true, -2);
                           std::ignore = world.broadcast(input.data(), output.data(), count, DType::f32, root, here,
                                                         {.method = Algorithm::push});
                           require_all(output.data(), count, value, "elements");
                           require_all(input.data(), count, is_root ? value : -1, "inputs");
                           std::ignore = world.broadcast(input.data(), input.data(), count, DType::f32, root, here,
                                                         {.method = Algorithm::push});
                           require_all(input.data(), count, value, "elements in place");
                         }
                       }
                     }),
              0);
  }
}

// Each thread's vectors are destroyed when the error reaches it; other ranks must not touch them after that.
TEST(AnyMemory, IsNotTouchedAfterARankHasGivenUp) {
  constexpr std::int64_t count = 4 << 20;
  EXPECT_THROW(run_threads(3,
                           [&](const Communicator& world) {
                             std::thread trouble([&] {
                               if (world.rank() != 0) return;
                               std::this_thread::sleep_for(std::chrono::milliseconds(30));
                               world.job().abort("enough");
                             });
                             try {
                               while (true) {
                                 const std::vector<float> input(count, 1);
                                 std::vector<float> output(count);
                                 std::ignore = world.all_reduce(input.data(), output.data(), count, DType::f32,
                                                                ReduceOp::sum, here, {.method = Algorithm::push});
                               }
                             } catch (...) {
                               trouble.join();
                               throw;
                             }
                           }),
               Error);
}

// bf16 elements are multiplied and sent as f32, so the packet is twice as long as the call's data.
TEST(AnyMemory, APacketOfWidenedElementsMustFit) {
  run_threads(2, [](const Communicator& world) {
    const OperationOptions packet{Algorithm::packet, "", 2};
    const Tensor fits = Tensor::zeros({4096}, DType::bf16);
    fits.set(4095, 3);
    std::ignore = world.all_reduce(fits, ReduceOp::premul_sum, here, packet);
    EXPECT_EQ(fits.at(4095), 12);
    const Tensor too_long = Tensor::zeros({4097}, DType::bf16);
    EXPECT_THROW(world.all_reduce(too_long, ReduceOp::premul_sum, here, packet), Error);
  });
}

TEST(InlineFastPath, ABarrierGoesByTheMethodThatIsAskedFor) {
  run_threads(2, [](const Communicator& world) {
    for (const Algorithm algorithm : {Algorithm::packet, Algorithm::recursive_doubling, Algorithm::packet}) {
      std::ignore = world.start({Collective::barrier}, here, {.method = algorithm});
      EXPECT_EQ(world.job().ledger().records().back().method.algorithm, algorithm);
    }
  });
}

TEST(InlineFastPath, RepeatsEveryShapeWithOtherBuffers) {
  run_threads(4, [](const Communicator& world) {
    for (int round = 0; round < 5; ++round) {
      for (const std::int64_t count : {1, 33, 3000, 40000}) {
        sum(world, count, round % 2 == 0, true);
        Buffer all(4 * count, true, -1);
        float* const mine = all.data() + world.rank() * count;
        std::fill_n(mine, count, static_cast<float>(world.rank() + round));
        std::ignore = world.all_gather(mine, all.data(), count, DType::f32, here);  // in place
        for (int rank = 0; rank < 4; ++rank) {
          require_all(all.data() + rank * count, count, static_cast<float>(rank + round), "gathered");
        }
        std::ignore = world.reduce_scatter(all.data(), mine, count, DType::f32, ReduceOp::sum, here);  // in place
        require_all(mine, count, static_cast<float>(4 * (world.rank() + round)), "scattered sums");
        std::ignore = world.barrier(here);
      }
    }
  });
}

// Shapes of equal hashes must not displace each other: a call whose shape is unknown is planned anew.
TEST(InlineFastPath, ServesAllOfManyShapes) {
  constexpr std::int64_t shapes = 200;
  run_threads(2, [&](const Communicator& world) {
    std::vector<float> x(shapes, 1);
    const auto call_of = [&](std::int64_t count) {
      return Call{.input = x.data(), .output = x.data(), .count = count, .op = ReduceOp::max};
    };
    for (std::int64_t count = 1; count <= shapes; ++count) std::ignore = world.start(call_of(count), here);
    InlineFastPath& fast_path = *Communicator::Group::of(world).fast_path(here);
    for (std::int64_t count = 1; count <= shapes; ++count) {
      Work work;
      ASSERT_TRUE(fast_path.run(call_of(count), {}, {}, work)) << count;
    }
    Work work;
    EXPECT_FALSE(fast_path.run(call_of(shapes - 1), {.method = Algorithm::staged}, {}, work)) << "another shape";
  });
}

// More shapes than are kept.
TEST(InlineFastPath, ForgetsShapesAtLast) {
  const auto planned = std::make_shared<const PlannedCall>();
  CallShapes shapes;
  for (std::int64_t count = 0; count < 5000; ++count) {
    shapes.add({.planned = planned, .call = {.count = count}});
    ASSERT_NE(shapes.find({.count = count}, Algorithm::automatic), nullptr);
  }
  EXPECT_LT(planned.use_count(), 1000);
}

TEST(InlineFastPath, StillRefusesWrongBuffersWhenItKnowsTheShape) {
  run_threads(2, [](const Communicator& world) {
    std::vector<float> x(20, 1);
    for (int i = 0; i < 3; ++i) std::ignore = world.all_reduce(x.data(), x.data() + 10, 10, DType::f32, ReduceOp::sum, here);
    EXPECT_THROW(world.all_reduce(x.data(), x.data() + 5, 10, DType::f32, ReduceOp::sum, here), Error);
    EXPECT_THROW(world.all_reduce(nullptr, x.data(), 10, DType::f32, ReduceOp::sum, here), Error);
    EXPECT_THROW(world.all_reduce(x.data(), nullptr, 10, DType::f32, ReduceOp::sum, here), Error);
    std::ignore =
        world.all_reduce(x.data(), x.data() + 10, 10, DType::f32, ReduceOp::sum, here);  // the refusals have changed nothing
    EXPECT_EQ(x[19], 2);
  });
}

TEST(InlineFastPath, TakesItsTurnBehindWhatIsInAStream) {
  run_threads(3, [](const Communicator& world) {
    const Stream stream("behind");
    for (int i = 0; i < 200; ++i) {
      std::vector<float> a(5, 1);
      std::vector<float> b(5, 2);
      const Work work = world.all_reduce(a.data(), a.data(), 5, DType::f32, ReduceOp::sum, stream);
      std::ignore = world.all_reduce(b.data(), b.data(), 5, DType::f32, ReduceOp::sum, here);
      EXPECT_EQ(b[4], 6);
      work.wait();
      EXPECT_EQ(a[4], 3);
    }
  });
}

// A root may run ahead of the other ranks, but must not overwrite packets that they have not read.
TEST(InlineFastPath, PacketsWaitForSlowReaders) {
  run_threads(4, [](const Communicator& world) {
    for (int i = 0; i < 100; ++i) {
      if (world.rank() == 1 + i / 10 % 3 && i % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      std::vector<std::int32_t> data(300, world.rank() == 0 ? i : -1);
      std::ignore = world.broadcast(data.data(), data.data(), 300, DType::i32, 0, here, {.method = Algorithm::packet});
      EXPECT_EQ(data[299], i);
    }
  });
}

TEST(InlineFastPath, CommunicatorsMayGoWhileOthersStillReadTheirLastPosts) {
  run_threads(4, [](const Communicator& world) {
    for (int i = 0; i < 50; ++i) {
      const Communicator other = world.duplicate("other");
      std::int32_t one = 1;
      if (world.rank() == i % 4) std::this_thread::sleep_for(std::chrono::microseconds(200));
      std::ignore = other.all_reduce(&one, &one, 1, DType::i32, ReduceOp::sum, here);
      EXPECT_EQ(one, 4);
    }
  });
}

TEST(InlineFastPath, IsInTheLedgerWithItsTimes) {
  run_threads(2, [](const Communicator& world) {
    float x = 1;
    const double before = now_seconds();
    const std::uint64_t since = world.job().ledger().next_sequence();
    Work work;
    for (int i = 0; i < 10; ++i) work = world.all_reduce(&x, &x, 1, DType::f32, ReduceOp::sum, here);
    const double after = now_seconds();
    const std::vector<Record> records = world.job().ledger().records(since);
    ASSERT_EQ(records.size(), 10U);
    for (std::size_t i = 0; i < records.size(); ++i) {
      EXPECT_EQ(records[i].sequence, since + i);
      EXPECT_EQ(records[i].collective, Collective::all_reduce);
      EXPECT_EQ(records[i].group, "world");
      EXPECT_EQ(records[i].stream, "inline");
      EXPECT_EQ(records[i].count, 1);
      EXPECT_EQ(records[i].bytes_sent, 4U);
      EXPECT_GT(records[i].times.started, before - 1e-4);
      EXPECT_LE(records[i].times.started, records[i].times.done);
      EXPECT_LT(records[i].times.done, after + 1e-4);
      EXPECT_NEAR(records[i].times.waited, records[i].times.done - records[i].times.started, 1e-12);
    }
    EXPECT_NEAR(work.times().done, records.back().times.done, 1e-6);
    EXPECT_TRUE(work.done());
    work.wait();
  });
}

TEST(InlineFastPath, KeepsTheOrderOfTheLedger) {
  run_threads(2, [](const Communicator& world) {
    const Communicator other = world.duplicate("other");
    const std::uint64_t since = world.job().ledger().next_sequence();
    float x = 1;
    for (int i = 0; i < 5; ++i) {
      std::ignore = world.all_reduce(&x, &x, 1, DType::f32, ReduceOp::max, here);
      std::ignore = other.all_reduce(&x, &x, 1, DType::f32, ReduceOp::max, here);
      std::ignore = world.all_reduce(&x, &x, 1, DType::f32, ReduceOp::max, here, {.tag = "named"});
    }
    std::string order;
    for (const Record& record : world.job().ledger().records(since)) {
      order += record.group == "other" ? 'o' : record.tag == "named" ? 'n' : 'w';
    }
    EXPECT_EQ(order, "wonwonwonwonwon");
  });
}

TEST(FastPathLog, KeepsTheLastAndCountsWhatIsLost) {
  FastPathLog log(8);
  Record record;
  record.count = 7;
  const auto kept = log.keep(record);
  for (std::uint64_t i = 1; i <= 20; ++i) log.write(kept.get(), {}, i, i + 1);
  std::uint64_t lost = 0;
  const std::vector<Record> taken = log.take(lost);
  EXPECT_EQ(taken.size() + lost, 20U);
  EXPECT_EQ(taken.size(), 8U);
  EXPECT_EQ(taken.back().count, 7);
  log.write(kept.get(), {}, 30, 31);
  EXPECT_EQ(log.take(lost).size(), 1U);
  EXPECT_EQ(lost, 0U);
}

TEST(FastPathLog, ForgetsRecordsThatNobodyUses) {
  FastPathLog log(8);
  std::weak_ptr<const Record> unused = log.keep({});
  const auto held = log.keep({});
  const auto written = log.keep({});
  log.write(written.get(), {}, 1, 2);
  for (int i = 0; i < 5000; ++i) log.keep({});
  EXPECT_TRUE(unused.expired());
  EXPECT_GE(held.use_count(), 2);
  std::uint64_t lost = 0;
  EXPECT_EQ(log.take(lost).size(), 1U);
}

}  // namespace
}  // namespace stretto
