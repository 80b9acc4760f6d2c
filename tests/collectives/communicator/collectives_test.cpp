// Every collective by every algorithm against a single-threaded oracle. The data are small integers, so that sums are exact
// in every type and order, and results can be compared for equality.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <tuple>

#include "collectives/communicator/group.hpp"
#include "collectives/oracle.hpp"
#include "stretto/stretto.hpp"
#include "support/error.hpp"
#include "support/jobs.hpp"
#include "support/tiers.hpp"
#include "support/transports.hpp"

namespace stretto {
namespace {

using oracle::expect_right;
using oracle::methods_of;
using oracle::Problem;

double value_of(int rank, std::int64_t i) { return static_cast<double>((rank * 7 + i * 3) % 11) - 4; }

Tensor input_of(int rank, std::int64_t count, DType dtype) {
  Tensor tensor({count}, dtype);
  for (std::int64_t i = 0; i < count; ++i) tensor.set(i, value_of(rank, i));
  return tensor;
}

template <class Expected>
void expect_elements(const Tensor& tensor, Expected expected, const std::string& where) {
  for (std::int64_t i = 0; i < tensor.size(); ++i) ASSERT_EQ(tensor.at(i), expected(i)) << where << ", element " << i;
}

std::vector<Collective> every_collective() {
  std::vector<Collective> list;
  for (int i = 0; i < static_cast<int>(Collective::barrier); ++i) list.push_back(static_cast<Collective>(i));
  return list;
}

class EveryCollective : public testing::TestWithParam<Collective> {};
INSTANTIATE_TEST_SUITE_P(All, EveryCollective, testing::ValuesIn(every_collective()),
                         [](const auto& parameter) { return std::string(name(parameter.param)); });

TEST_P(EveryCollective, EqualsTheOracleByEveryAlgorithmAtEveryRoot) {
  for (const int size : of_today({1, 3, 2, 4, 5, 6, 8, 7})) {
    run_threads(size, [&](const Communicator& world) {
      for (const Method& method : methods_of(GetParam(), false)) {
        for (const std::int64_t count : {0, 1, 3, 250}) {
          Problem problem{GetParam(), size, count};
          const int roots = has_root(GetParam()) ? size : 1;
          for (problem.root = 0; problem.root < roots; ++problem.root) expect_right(world, problem, method);
        }
      }
    });
  }
}

TEST_P(EveryCollective, KnowsEveryTypeAndOperation) {
  run_threads(3, [&](const Communicator& world) {
    for (const Method& method : methods_of(GetParam(), false)) {
      for (const DType dtype : oracle::all_dtypes) {
        for (const ReduceOp op : reduces(GetParam()) ? oracle::all_ops : std::vector{ReduceOp::sum}) {
          expect_right(world, {GetParam(), 3, 37, dtype, op}, method);
        }
      }
    }
  });
}

TEST_P(EveryCollective, TakesUnevenSharesAndEmptyOnes) {
  if (!counts_shares(GetParam())) {  // such a collective has one count for all ranks and must refuse several
    Call call{GetParam()};
    call.counts = {1, 2};
    run_threads(2, [&](const Communicator& world) { EXPECT_THROW(world.start(call, Stream::inline_()), Error); });
    return;
  }
  for (const int size : {1, 2, 3, 5, 8}) {
    run_threads(size, [&](const Communicator& world) {
      for (const Method& method : methods_of(GetParam(), false)) {
        if (GetParam() == Collective::all_to_all && !takes_uneven_exchange(method.algorithm)) continue;
        Problem problem{GetParam(), size};
        problem.root = size - 1;
        for (int rank = 0; rank < size; ++rank) problem.counts.push_back(rank * 5 % 7 * 3);
        if (GetParam() == Collective::all_to_all) {
          problem.counts.clear();
          for (int from = 0; from < size; ++from) {
            problem.matrix.emplace_back();
            for (int to = 0; to < size; ++to) problem.matrix.back().push_back((from * 3 + to) % 4);
          }
        }
        expect_right(world, problem, method);
      }
    });
  }
}

TEST_P(EveryCollective, RunsOnVirtualNodes) {
  for (const char* nodes : {"2", "3,1,2,2"}) {
    const bool alike = std::string(nodes) == "2";
    const Variable ranks_per_node("STRETTO_RANKS_PER_NODE", nodes);
    const Variable nodes_per_pod("STRETTO_NODES_PER_POD", "2");
    run_threads(8, [&](const Communicator& world) {
      for (Method method : methods_of(GetParam(), true)) {
        if (!alike && counts_shares(GetParam()) && needs_nodes(method.algorithm)) {  // blocks go directly to their owners
          if (method.algorithm == Algorithm::three_level) continue;
          method.between = Algorithm::direct;
          if (GetParam() == Collective::all_to_all) method.inside = Algorithm::direct;
        }
        for (const std::int64_t count : {1, 50, 4000}) {
          if (count > 50 && !needs_nodes(method.algorithm)) continue;  // 4000 elements do not fit a packet
          Problem problem{GetParam(), 8, count, DType::f64};
          problem.root = 3;
          expect_right(world, problem, method);
        }
      }
    });
  }
}

// 256 + 1 + 1 + 1 in bf16: with rounding after each addition the result depends on the order; rounded once it is 260.
TEST(NarrowFloats, AreRoundedOnceByEveryAlgorithm) {
  run_threads(4, [](const Communicator& world) {
    for (const Method& method : methods_of(Collective::all_reduce, false)) {
      const Tensor x({9}, DType::bf16);
      for (int i = 0; i < 9; ++i) x.set(i, world.rank() == 0 ? 256 : 1.0);
      world.all_reduce(x, ReduceOp::sum, Stream::inline_(), {.method = method}).wait();
      expect_elements(
          x, [](std::int64_t) { return 260; }, to_string(method));  // 259 rounded; 256 + 1 is 256 in bf16
    }
  });
}

TEST(Deterministic, TheSameBitsWhateverTheSizeAndTheRun) {
  setenv("STRETTO_DETERMINISTIC", "1", 1);
  std::vector<float> first_elements;
  for (const std::int64_t count : {1, 100, 5000, 300000}) {
    run_threads(5, [&](const Communicator& world) {
      const Tensor x({count}, DType::f32);
      for (std::int64_t i = 0; i < count; ++i) x.set(i, 1.0 / (3 + world.rank() * 1.7));
      world.all_reduce(x, ReduceOp::sum, Stream::inline_()).wait();
      for (std::int64_t i = 1; i < count; ++i) ASSERT_EQ(x.at(i), x.at(0));
      if (world.rank() == 0) first_elements.push_back(static_cast<float>(x.at(0)));
      const Tensor shares({count * 5}, DType::f32);
      for (std::int64_t i = 0; i < count * 5; ++i) shares.set(i, 1.0 / (3 + world.rank() * 1.7));
      const Tensor share({count}, DType::f32);
      world.reduce_scatter(shares.raw(), share.raw(), count, DType::f32, ReduceOp::sum, Stream::inline_()).wait();
      ASSERT_EQ(share.at(count - 1), x.at(0));
      EXPECT_THROW(world.all_reduce(x, ReduceOp::sum, Stream::inline_(), {.method = Algorithm::ring}), Error);
    });
  }
  unsetenv("STRETTO_DETERMINISTIC");
  for (const float element : first_elements) EXPECT_EQ(element, first_elements[0]);
}

TEST(Barrier, NobodyPassesBeforeEverybodyCame) {
  std::atomic<int> came = 0;
  run_threads(7, [&](const Communicator& world) {
    for (int round = 1; round <= 50; ++round) {
      ++came;
      world.barrier(Stream::inline_()).wait();
      EXPECT_GE(came, 7 * round);
    }
  });
}

TEST(SendRecv, KeepsOrderAndAnySize) {
  run_threads(4, [](const Communicator& world) {
    const int next = (world.rank() + 1) % world.size();
    const int before = (world.rank() + 3) % world.size();
    for (const std::int64_t count : {0, 1, 5, 1000, 300000}) {
      const Tensor out = input_of(world.rank(), count, DType::f32);
      const Tensor in({count}, DType::f32);
      world.send_recv(out.raw(), count, next, in.raw(), count, before, DType::f32, Stream::inline_()).wait();
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
    pair.all_reduce(x, ReduceOp::sum, Stream::inline_()).wait();
    const int other = world.rank() ^ 2;
    EXPECT_EQ(x.at(1), world.rank() + other);
  });
}

TEST(Communicator, ManySplitsDoNotUseUpAnything) {
  run_threads(2, [](const Communicator& world) {
    for (int i = 0; i < 1000; ++i) {
      const Communicator copy = world.split(0, world.rank(), "copy");
      if (i % 100 == 0) copy.barrier(Stream::inline_()).wait();
    }
  });
}

// As after four billion splits: a number of 32 bits would be the world's again, and with it the tags of messages.
TEST(Communicator, TellsApartAnyNumberOfSplits) {
  for (const char* transport : transports_here()) {
    const Variable chosen("STRETTO_TRANSPORT", transport);
    run_threads(2, [](const Communicator& world) {
      auto& next = Communicator::Group::of(world).context().next_group;
      next = std::uint64_t{1} << 31;
      const Communicator copy = world.duplicate("copy");
      EXPECT_NE(copy.id(), world.id());
      std::int64_t of_world = 1, of_copy = 10;
      const Work first = world.all_reduce(&of_world, &of_world, 1, DType::i64, ReduceOp::sum, Stream("first"));
      copy.all_reduce(&of_copy, &of_copy, 1, DType::i64, ReduceOp::sum, Stream::inline_()).wait();
      first.wait();
      EXPECT_EQ(of_world, 2);
      EXPECT_EQ(of_copy, 20);
      next = Links::most_ids;
      EXPECT_THROW(world.duplicate("one too many"), Error);
    });
  }
}

std::ptrdiff_t entries_of(const char* directory) {
  const std::filesystem::directory_iterator all(directory);
  return std::distance(begin(all), end(all));
}

int mappings_of(const char* file) {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find(file) != std::string::npos ? 1 : 0;
  return count;
}

std::int64_t resident_bytes() {
  std::int64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * 4096;
}

TEST(Communicator, TakesLittleMemoryUntilItIsUsed) {
  run_threads(2, [](const Communicator& world) {
    const auto make = [&] {
      std::vector<Communicator> all;
      for (int i = 0; i < 500; ++i) all.push_back(world.duplicate("copy"));
      return all;
    };
    for (const Communicator& copy : make()) copy.barrier(Stream::inline_()).wait();  // leaves memory that has been used
    world.barrier(Stream::inline_()).wait();
    const std::int64_t before = resident_bytes();
    const std::vector<Communicator> all = make();
    world.barrier(Stream::inline_()).wait();
    EXPECT_LT(resident_bytes() - before, 1000 * 16384);  // of both ranks
    world.barrier(Stream::inline_()).wait();
  });
}

// A thousand communicators at a time, some of them used, leave neither files nor mappings behind.
TEST(Communicator, AThousandLeaveNothingBehind) {
  run_threads(2, [](const Communicator& world) {
    world.duplicate("warm").barrier(Stream::inline_()).wait();
    world.barrier(Stream::inline_()).wait();
    const auto files_before = entries_of("/proc/self/fd");
    const auto mappings_before = mappings_of("memfd:");
    {
      std::vector<Communicator> all;
      for (int i = 0; i < 1000; ++i) {
        all.push_back(world.duplicate("copy"));
        if (i % 10 == 0) all.back().barrier(Stream::inline_()).wait();
      }
      EXPECT_EQ(all.back().size(), 2);
    }
    // Memory that the other rank might still have been reading is freed when the next communicator is destroyed.
    world.barrier(Stream::inline_()).wait();
    world.duplicate("next");
    world.barrier(Stream::inline_()).wait();
    EXPECT_LE(entries_of("/proc/self/fd"), files_before + 1);  // the listing itself holds one open
    EXPECT_LE(mappings_of("memfd:"), mappings_before + 20);    // the heap may have grown
  });
}

// Communicators that ranks destroy at different times, in any order, leave nothing behind either.
TEST(Communicator, LeftAtDifferentTimesLeavesNothingBehind) {
  run_threads(2, [](const Communicator& world) {
    const auto settled_mappings = [&] {
      for (int i = 0; i < 2; ++i) {
        world.barrier(Stream::inline_()).wait();
        world.duplicate("next");
      }
      world.barrier(Stream::inline_()).wait();
      const int count = mappings_of("memfd:stretto");
      world.barrier(Stream::inline_()).wait();
      return count;
    };
    const int before = settled_mappings();
    for (int i = 0; i < 100; ++i) {
      const Communicator copy = world.duplicate("copy");
      double sum = 1;
      copy.all_reduce(&sum, &sum, 1, DType::f64, ReduceOp::sum, Stream::inline_()).wait();
      EXPECT_EQ(sum, 2);
      if (world.rank() == i % 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_LE(settled_mappings(), before + 10);
  });
}

TEST(Communicator, MakesSubgroupsOfAListAndOfNodes) {
  setenv("STRETTO_RANKS_PER_NODE", "3", 1);
  run_threads(6, [](const Communicator& world) {
    EXPECT_EQ(world.nodes(), (std::vector<int>{0, 0, 0, 1, 1, 1}));
    const Communicator listed = world.subgroup({5, 1, 3}, "listed");
    EXPECT_EQ(static_cast<bool>(listed), world.rank() % 2 == 1);
    EXPECT_TRUE(!listed || listed.rank() == (world.rank() == 5 ? 0 : world.rank() == 1 ? 1 : 2));
    EXPECT_THROW(world.subgroup({1, 1}, "twice"), Error);
    EXPECT_THROW(world.subgroup({6}, "outside"), Error);
    const Communicator node = world.node();
    EXPECT_EQ(node.size(), 3);
    EXPECT_EQ(node.rank(), world.rank() % 3);
    const Communicator leaders = world.node_leaders();
    EXPECT_EQ(static_cast<bool>(leaders), world.rank() % 3 == 0);
    const Communicator again = world.duplicate("again");
    const Tensor x = Tensor::zeros({1}, DType::i64);
    x.set(0, 1);
    again.all_reduce(x, ReduceOp::sum, Stream::inline_()).wait();
    EXPECT_EQ(x.at(0), 6);
  });
  unsetenv("STRETTO_RANKS_PER_NODE");
}

// Each rank uses three groups on separate streams at the same time, and a fourth one inline.
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
      world.all_reduce(w, ReduceOp::max, Stream::inline_()).wait();
      one.wait();
      two.wait();
      three.wait();
      const int pair = world.rank() / 2 * 2;
      for (const std::int64_t i : {0, 17, 4999}) {
        EXPECT_EQ(x.at(i), value_of(pair, i) + value_of(pair + 1, i));
        double column = 0;
        for (int r = world.rank() % 2; r < 8; r += 2) column += value_of(r, i);
        EXPECT_EQ(y.at(i), column);
        double sum = 0;
        double most = -10;
        for (int r = 0; r < 8; ++r) {
          sum += value_of(r, i);
          most = std::max(most, value_of(r, i));
        }
        EXPECT_EQ(z.at(i), sum);
        EXPECT_EQ(w.at(i), most);
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
    for (int round = 0; round < 10; ++round) std::ignore = world.all_reduce(x, ReduceOp::sum, round % 2 == 0 ? a : b);
    a.synchronize();
    b.synchronize();
    EXPECT_EQ(x.at(0), 1048576);  // 4^10
  });
}

TEST(Errors, ARankThatGivesUpIsHeardByAllWithItsReason) {
  std::atomic<int> heard = 0;
  const std::string thrown = sentence_of([&] {
    run_threads(4, [&](const Communicator& world) {
      if (world.rank() == 2) throw std::runtime_error("the disk is full.");
      try {
        const Tensor x = Tensor::zeros({100000}, DType::f32);
        const Stream stream("s");
        if (world.rank() == 1) world.all_reduce(x, ReduceOp::sum, stream).wait();
        while (true) world.all_reduce(x, ReduceOp::sum, Stream::inline_()).wait();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::peer_gave_up);
        EXPECT_THAT(error.what(), testing::HasSubstr("Rank 2 gave up: the disk is full."));
        ++heard;
        throw;
      }
    });
  });
  EXPECT_EQ(thrown, "the disk is full.");
  EXPECT_EQ(heard, 3);
}

TEST(Errors, ATimeoutNamesTheRankThatIsMissing) {
  const std::string said = sentence_of(ErrorCode::timeout, [] {
    run_threads(3, [](const Communicator& world) {
      world.barrier(Stream::inline_()).wait();
      world.job().set_timeout(world.rank() == 1 ? 600 : 0.2);
      if (world.rank() == 1) return wait_until_others_fail(world);
      const Tensor x = Tensor::zeros({1}, DType::f32);
      world.reduce(x.raw(), x.raw(), 1, DType::f32, ReduceOp::sum, 0, Stream::inline_(), {.tag = "late"}).wait();
      world.barrier(Stream::inline_()).wait();
    });
  });
  EXPECT_THAT(said, testing::ContainsRegex("for rank (0, )?[12]"));
  EXPECT_THAT(said, testing::HasSubstr("late"));
}

}  // namespace
}  // namespace stretto
