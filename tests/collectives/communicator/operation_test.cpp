// Groups of operations, prepared operations, and calls that do not fit together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <thread>
#include <tuple>

#include "collectives/oracle.hpp"
#include "stretto/stretto.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

TEST(OperationGroup, SendsAndReceivesInAnyOrder) {
  run_threads(5, [](const Communicator& world) {
    const int size = world.size();
    const Tensor out({size * 40000L}, DType::i32);
    const Tensor in = Tensor::zeros({size * 40000L}, DType::i32);
    for (std::int64_t i = 0; i < out.size(); ++i) out.set(i, world.rank() * 1000 + static_cast<double>(i / 40000));
    const Stream stream("messages");
    OperationGroup group;
    // All sends, also to the rank itself, come before all receives: without the group every rank would deadlock.
    for (int peer = 0; peer < size; ++peer) {
      std::ignore = world.send(out.view(peer * 40000L, {40000}).raw(), 40000, DType::i32, peer, stream);
    }
    for (int peer = size - 1; peer >= 0; --peer) {
      std::ignore = world.recv(in.view(peer * 40000L, {40000}).raw(), 40000, DType::i32, peer, stream);
    }
    group.end().wait();
    for (int peer = 0; peer < size; ++peer) {
      EXPECT_EQ(in.at(peer * 40000L), peer * 1000 + world.rank());
      EXPECT_EQ(in.at(peer * 40000L + 39999), peer * 1000 + world.rank());
    }
  });
}

// Ranks call the collectives of two communicators in opposite orders, beside messages: they end only if they progress
// together.
TEST(OperationGroup, CollectivesOfSeveralCommunicatorsProgressTogether) {
  run_threads(4, [](const Communicator& world) {
    const Communicator copy = world.duplicate("copy");
    const Tensor x = Tensor::zeros({20000}, DType::f32);
    const Tensor y = Tensor::zeros({20000}, DType::f32);
    const Tensor token = Tensor::zeros({1}, DType::f32);
    x.set(19999, 1);
    y.set(0, 2);
    const Stream stream("one");
    const Stream other("two");
    OperationGroup group;
    if (world.rank() % 2 == 0) {
      std::ignore = world.all_reduce(x, ReduceOp::sum, stream);
      std::ignore = copy.all_reduce(y, ReduceOp::sum, other);
      std::ignore = world.send(token.raw(), 1, DType::f32, world.rank() + 1, stream);
    } else {
      std::ignore = world.recv(token.raw(), 1, DType::f32, world.rank() - 1, other);
      std::ignore = copy.all_reduce(y, ReduceOp::sum, stream);
      std::ignore = world.all_reduce(x, ReduceOp::sum, stream);
    }
    const Work work = group.end();
    stream.synchronize();
    other.synchronize();
    EXPECT_TRUE(work.done());
    EXPECT_EQ(x.at(19999), 4);
    EXPECT_EQ(y.at(0), 8);
  });
}

TEST(OperationGroup, NestsAndStartsNothingWhenAbandoned) {
  run_threads(2, [](const Communicator& world) {
    const Tensor x = Tensor::zeros({3}, DType::f64);
    x.set(0, 1);
    try {
      OperationGroup group;
      std::ignore = world.all_reduce(x, ReduceOp::sum, Stream::inline_());
      std::ignore = world.all_reduce(x.raw(), nullptr, 3, DType::f64, ReduceOp::sum, Stream::inline_());
      FAIL() << "a null buffer was taken";
    } catch (const Error&) {
    }
    EXPECT_EQ(x.at(0), 1);
    OperationGroup outer;
    {
      OperationGroup inner;
      const Work work = world.all_reduce(x, ReduceOp::sum, Stream::inline_());
      EXPECT_THROW(work.wait(), Error);  // the operation has not started
      std::ignore = inner.end();
    }
    EXPECT_EQ(x.at(0), 1);
    std::ignore = outer.end();
    EXPECT_EQ(x.at(0), 2);
    OperationGroup().end().wait();  // an empty group
    // An abandoned inner group drops only its own calls.
    OperationGroup again;
    std::ignore = world.all_reduce(x, ReduceOp::sum, Stream::inline_());
    try {
      OperationGroup inner;
      std::ignore = world.all_reduce(x, ReduceOp::sum, Stream::inline_());
      throw std::runtime_error("given up");
    } catch (const std::runtime_error&) {
    }
    EXPECT_THROW(world.duplicate("inside"), Error);
    std::ignore = again.end();
    EXPECT_EQ(x.at(0), 4);
  });
}

TEST(OperationGroup, RefusesBuffersThatMeet) {
  run_threads(2, [](const Communicator& world) {
    const Tensor x = Tensor::zeros({10}, DType::f32);
    const int other = 1 - world.rank();
    EXPECT_THROW(world.send_recv(x.raw(), 5, other, x.view(4, {5}).raw(), 5, other, DType::f32, Stream::inline_()), Error);
    world.send_recv(x.raw(), 5, other, x.view(5, {5}).raw(), 5, other, DType::f32, Stream::inline_()).wait();
  });
}

TEST(OperationGroup, CountsItsTimeOnce) {
  run_threads(2, [](const Communicator& world) {
    const Tensor x = Tensor::zeros({1 << 16}, DType::f32);
    const Tensor y = Tensor::zeros({1 << 16}, DType::f32);
    const std::uint64_t since = world.job().ledger().next_sequence();
    world.send_recv(x.raw(), x.size(), 1 - world.rank(), y.raw(), y.size(), 1 - world.rank(), DType::f32, Stream::inline_())
        .wait();
    const auto records = world.job().ledger().records(since);
    ASSERT_EQ(records.size(), 2U);
    const Traffic traffic = world.job().ledger().traffic(since);
    EXPECT_DOUBLE_EQ(traffic.busy_seconds, records[0].times.done - records[0].times.started);
    EXPECT_EQ(traffic.bytes_sent, 4U << 16);
  });
}

TEST(OperationGroup, MessagesToItselfMustCorrespond) {
  run_threads(1, [](const Communicator& world) {
    const Tensor x = Tensor::zeros({3}, DType::f64);
    OperationGroup group;
    std::ignore = world.send(x.raw(), 3, DType::f64, 0, Stream::inline_());
    EXPECT_THROW(group.end(), Error);
  });
}

TEST(Operation, StartsManyTimes) {
  run_threads(3, [](const Communicator& world) {
    const Tensor x({1000}, DType::f32);
    const Operation sum = world.prepare({.input = x.raw(), .output = x.raw(), .count = 1000, .keep_alive = {x}});
    EXPECT_NE(sum.method().algorithm, Algorithm::automatic);
    const Stream stream("s");
    for (int round = 1; round <= 20; ++round) {
      for (std::int64_t i = 0; i < 1000; ++i) x.set(i, round);
      sum.start(round % 2 == 0 ? stream : Stream::inline_()).wait();
      EXPECT_EQ(x.at(0), 3 * round);
      EXPECT_EQ(x.at(999), 3 * round);
    }
    EXPECT_THROW(Operation().start(stream), Error);
  });
}

TEST(Operation, ABarrierAsDataIsABarrier) {
  std::atomic<int> came = 0;
  run_threads(4, [&](const Communicator& world) {
    const Operation barrier = world.prepare({Collective::barrier});
    for (int round = 1; round <= 20; ++round) {
      ++came;
      barrier.start(Stream::inline_()).wait();
      EXPECT_GE(came, 4 * round);
    }
  });
}

TEST(Operation, RefusesAFactorThatTheTypeDoesNotHold) {
  run_threads(2, [](const Communicator& world) {
    const Tensor x = Tensor::zeros({4}, DType::i8);
    const auto start = [&](double factor) {
      world.all_reduce(x.raw(), x.raw(), 4, DType::i8, ReduceOp::premul_sum, Stream::inline_(), {.factor = factor}).wait();
    };
    EXPECT_THROW(start(1000), Error);
    EXPECT_THROW(start(0.3), Error);
    EXPECT_THROW(start(128), Error);
    start(-128);
  });
}

// A Work may be dropped, and so may a tensor that a call was given; the stream's last handle waits.
TEST(DroppedWorks, EndWithTheirStream) {
  run_threads(2, [](const Communicator& world) {
    const Tensor sum = Tensor::zeros({1 << 20}, DType::i64);
    sum.set(7, world.rank() + 1);
    std::weak_ptr<std::vector<std::int64_t>> owned;
    {
      const Stream stream("s");
      auto owner = std::make_shared<std::vector<std::int64_t>>(1 << 20);
      owned = owner;
      std::ignore = world.all_reduce(Tensor::wrap(owner->data(), {1 << 20}, DType::i64, owner), ReduceOp::sum, stream);
      owner.reset();
      std::ignore = world.all_reduce(sum, ReduceOp::sum, stream);
    }
    EXPECT_EQ(sum.at(7), 3);
    EXPECT_TRUE(owned.expired());
  });
}

// ---- STRETTO_CHECK=1. Each body makes calls that do not match; every rank must report them and name both sides.

struct Mismatch {
  const char* name;
  void (*body)(const Communicator&);
  std::vector<std::string> said;  // patterns that every rank's message contains
};

const std::vector<Mismatch>& mismatches() {
  static const Tensor data = Tensor::zeros({64}, DType::f64);
  static const auto stream = [] { return Stream::inline_(); };
  static const std::vector<Mismatch> list = {
      {"counts",
       [](const Communicator& world) {
         std::ignore = world.all_reduce(data.clone().raw(), data.clone().raw(), world.rank() == 1 ? 5 : 4, DType::f32,
                                        ReduceOp::sum, stream());
       },
       {"all_reduce of 4 f32", "all_reduce of 5 f32", "ank 1", "ank 0|ank 2"}},
      {"operations",
       [](const Communicator& world) {
         const Tensor x = data.clone();
         if (world.rank() == 1) {
           std::ignore = world.broadcast(x, 0, stream());
         } else {
           std::ignore = world.all_reduce(x, ReduceOp::sum, stream());
         }
       },
       {"all_reduce of 64 f64", "broadcast of 64 f64"}},
      {"roots",
       [](const Communicator& world) { std::ignore = world.broadcast(data.clone(), world.rank() == 1 ? 2 : 0, stream()); },
       {"with root 0", "with root 2"}},
      {"reductions",
       [](const Communicator& world) {
         std::ignore = world.all_reduce(data.clone(), world.rank() == 1 ? ReduceOp::max : ReduceOp::sum, stream());
       },
       {"\\(sum\\)", "\\(max\\)"}},
      {"types",
       [](const Communicator& world) {
         const Tensor x = data.clone();
         std::ignore =
             world.all_gather(x.raw(), data.clone().raw(), 4, world.rank() == 1 ? DType::i32 : DType::f32, stream());
       },
       {"all_gather of 4 f32", "all_gather of 4 i32"}},
      {"a_message_in_place_of_a_collective",
       [](const Communicator& world) {
         const Tensor x = data.clone();
         if (world.rank() == 1) {
           std::ignore = world.send(x.raw(), 7, DType::f64, 0, stream());
         } else {
           std::ignore = world.all_reduce(x, ReduceOp::sum, stream());
         }
       },
       {"all_reduce of 64 f64", "send of 7 f64 to rank 0"}},
      {"message_lengths",
       [](const Communicator& world) {
         const Tensor x = data.clone();
         if (world.rank() == 0) std::ignore = world.send(x.raw(), 7, DType::f64, 1, stream());
         if (world.rank() == 1) std::ignore = world.recv(x.raw(), 8, DType::f64, 0, stream());
         std::ignore = world.barrier(stream());
       },
       {"send of 7 f64 to rank 1", "recv of 8 f64 from rank 0"}},
      {"uneven_counts",
       [](const Communicator& world) {
         const Tensor x = data.clone();
         std::ignore =
             world.all_gather_v(x.raw(), data.clone().raw(), {1, world.rank() == 1 ? 2 : 3, 1}, DType::f64, stream());
       },
       {"counts .1, 3, 1. f64", "counts .1, 2, 1. f64"}},
      {"uneven_counts_of_the_same_sum",
       [](const Communicator& world) {
         const Tensor x = data.clone();
         const std::vector<std::int64_t> counts =
             world.rank() == 1 ? std::vector<std::int64_t>{2, 1, 1} : std::vector<std::int64_t>{1, 1, 2};
         std::ignore = world.all_gather_v(x.raw(), data.clone().raw(), counts, DType::f64, stream());
       },
       {"counts .1, 1, 2. f64", "counts .2, 1, 1. f64"}},
      {"parameters_of_a_method",
       [](const Communicator& world) {
         Method ring(Algorithm::ring);
         ring.lanes = world.rank() == 1 ? 2 : 4;
         std::ignore = world.all_reduce(data.clone(), ReduceOp::sum, stream(), {.method = ring});
       },
       {"by ring.2", "by ring.4"}},
      {"a_null_pointer_on_one_rank",
       [](const Communicator& world) {
         const Tensor x = data.clone();
         std::ignore =
             world.all_reduce(x.raw(), world.rank() == 1 ? nullptr : x.raw(), 4, DType::f64, ReduceOp::sum, stream());
       },
       {"all_reduce of 4 f64", "refused"}},
      {"a_root_outside_on_one_rank",
       [](const Communicator& world) { std::ignore = world.broadcast(data.clone(), world.rank() == 1 ? 9 : 0, stream()); },
       {"with root 9", "refused"}},
      {"exchanged_counts",
       [](const Communicator& world) {
         const Tensor x = data.clone();
         const std::vector<std::int64_t> ones{1, 1, 1};
         std::ignore = world.all_to_all_v(x.raw(), world.rank() == 1 ? std::vector<std::int64_t>{2, 1, 1} : ones,
                                          data.clone().raw(), ones, DType::f64, stream());
       },
       {"counts .1, 1, 1. f64 for .1, 1, 1.", "counts .2, 1, 1. f64 for .1, 1, 1."}},
  };
  return list;
}

class EveryMismatch : public testing::TestWithParam<Mismatch> {};
INSTANTIATE_TEST_SUITE_P(All, EveryMismatch, testing::ValuesIn(mismatches()),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

TEST_P(EveryMismatch, IsNamedByEveryRank) {
  const Variable check("STRETTO_CHECK", "1"), timeout("STRETTO_TIMEOUT", "20");
  std::atomic<int> heard = 0;
  const auto job = [&] {
    run_threads(3, [&](const Communicator& world) {
      try {
        GetParam().body(world);
      } catch (const Error& error) {
        EXPECT_TRUE(error.code() == ErrorCode::invalid_argument || error.code() == ErrorCode::peer_gave_up) << error.what();
        for (const std::string& part : GetParam().said) EXPECT_THAT(error.what(), testing::ContainsRegex(part));
        ++heard;
        throw;
      }
    });
  };
  EXPECT_THROW(job(), Error);
  EXPECT_EQ(heard, 3);
}

// The check accepts matching calls. A call that is wrong on all ranks alike throws without harm.
TEST(CheckedCalls, LetRightCallsPass) {
  setenv("STRETTO_CHECK", "1", 1);
  run_threads(4, [](const Communicator& world) {
    const Communicator half = world.split(world.rank() / 2, 0, "half");
    const Stream stream("s");
    const Tensor x = Tensor::zeros({100}, DType::i64);
    const Tensor y = Tensor::zeros({100}, DType::i64);
    x.set(7, 1);
    for (int round = 0; round < 5; ++round) {
      EXPECT_THROW(world.broadcast(x, 9, stream), Error);
      std::ignore = world.all_reduce(x, ReduceOp::max, stream);
      half.all_reduce(y, ReduceOp::sum, Stream::inline_()).wait();
      OperationGroup group;
      const int next = (world.rank() + 1) % 4;
      const int before = (world.rank() + 3) % 4;
      if (world.rank() % 2 == 0) std::ignore = world.send(x.raw(), 100, DType::i64, next, stream);
      std::ignore = world.recv(y.raw(), 100, DType::i64, before, stream);
      if (world.rank() % 2 == 1) std::ignore = world.send(x.raw(), 100, DType::i64, next, stream);
      std::ignore = half.barrier(stream);
      group.end().wait();
      EXPECT_EQ(y.at(7), 1);
      y.zero();
    }
  });
  unsetenv("STRETTO_CHECK");
}

// Matching messages and collectives, in a group on one rank and as single calls on the other.
TEST(CheckedCalls, LetGroupsMeetSingleCalls) {
  setenv("STRETTO_CHECK", "1", 1);
  run_threads(2, [](const Communicator& world) {
    const bool first = world.rank() == 0;
    const Tensor x = Tensor::zeros({1 << 20}, DType::f32);
    const Tensor y = Tensor::zeros({1 << 20}, DType::f32);
    const auto send = [&](const Tensor& t) {
      std::ignore = world.send(t.raw(), t.size(), DType::f32, 1 - world.rank(), Stream::inline_());
    };
    const auto recv = [&](const Tensor& t) {
      std::ignore = world.recv(t.raw(), t.size(), DType::f32, 1 - world.rank(), Stream::inline_());
    };
    const auto sum = [&](const Tensor& t) { std::ignore = world.all_reduce(t, ReduceOp::sum, Stream::inline_()); };
    const auto grouped = [&](const std::function<void()>& calls) {
      if (!first) return;
      OperationGroup group;
      calls();
      std::ignore = group.end();
    };
    grouped([&] { send(x), send(y); });
    if (!first) recv(x), recv(y);
    grouped([&] { sum(x), send(y); });
    if (!first) sum(x), recv(y);
    grouped([&] { sum(x), sum(y); });
    if (!first) sum(x), sum(y);
    grouped([&] { send(x), recv(y); });
    if (!first) send(x), recv(y);
    OperationGroup many;
    const Tensor small = Tensor::zeros({2 * 3000}, DType::f32);
    for (int i = 0; i < 3000; ++i) {
      send(small.view(i, {1}));
      recv(small.view(3000 + i, {1}));
    }
    std::ignore = many.end();
  });
  unsetenv("STRETTO_CHECK");
}

TEST(Settings, OfAlgorithmsAreReadAndRefused) {
  setenv("STRETTO_ALGO", "all_reduce:nonsense", 1);
  EXPECT_THROW(run_threads(2, [](const Communicator&) {}), Error);
  setenv("STRETTO_ALGO", "all_reduce:0-1k:one_shot,1k-inf:ring*2", 1);
  run_threads(2, [](const Communicator& world) {
    const Tensor x = Tensor::zeros({1000}, DType::f32);
    EXPECT_EQ(world.prepare({.input = x.raw(), .output = x.raw(), .count = 10}).method(), Method(Algorithm::one_shot));
    const Method large = world.prepare({.input = x.raw(), .output = x.raw(), .count = 1000}).method();
    EXPECT_EQ(large.algorithm, Algorithm::ring);
    EXPECT_EQ(large.lanes, 2);
  });
  unsetenv("STRETTO_ALGO");
}

}  // namespace
}  // namespace stretto
