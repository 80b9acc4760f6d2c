// Calls in which the last ranks have no vector.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "collectives/oracle.hpp"
#include "stretto/stretto.hpp"
#include "support/error.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

using oracle::Problem;
using testing::HasSubstr;

Problem sums_of(int ranks, int servers, std::int64_t count, DType dtype = DType::f32, ReduceOp op = ReduceOp::sum) {
  Problem problem{.size = ranks, .count = count, .dtype = dtype, .op = op};
  problem.servers = servers;
  return problem;
}

TEST(Servers, EveryTypeReductionAndNumberOfServers) {
  for (const int servers : {1, 2, 4}) {
    run_threads(3 + servers, [&](const Communicator& world) {
      for (const char* const method : {"auto", "server_set", "server_set/3", "ring", "recursive_doubling"}) {
        for (const std::int64_t count : {0, 1, 2, 7, 1000}) {
          oracle::expect_right(world, sums_of(3, servers, count), method_from_text(method));
        }
        for (const DType dtype : oracle::all_dtypes) {
          for (const ReduceOp op : oracle::all_ops) {
            oracle::expect_right(world, sums_of(3, servers, 50, dtype, op), method_from_text(method));
          }
        }
      }
    });
  }
}

TEST(Servers, InStreamsGroupsAndPreparedOperations) {
  run_threads(5, [](const Communicator& world) {
    const Problem problem = sums_of(3, 2, 1000);
    oracle::expect_right(world, problem, Algorithm::server_set, Stream("sums"));
    oracle::Buffers buffers(problem, world.rank(), true);
    const Operation operation = world.prepare(buffers.call(), {.method = Algorithm::server_set, .servers = 2});
    operation.start(Stream::inline_()).wait();
    EXPECT_EQ(buffers.fault(), "");
    const std::vector<Record> last = world.job().ledger().last(1);
    EXPECT_EQ(last.back().group_size, 5);
    oracle::Buffers of_three(problem, world.rank(), false), of_all(sums_of(5, 0, 100), world.rank(), false);
    OperationGroup group;
    std::ignore = world.start(of_three.call(), Stream::inline_(), {.servers = 2});
    std::ignore = world.start(of_all.call(), Stream::inline_());
    std::ignore = group.end();
    EXPECT_EQ(of_three.fault() + of_all.fault(), "");
    EXPECT_EQ(last.back().bytes_sent, static_cast<std::uint64_t>(operation.plan().bytes_sent(4)));
  });
}

// Between hosts the servers' links are worth it for many bytes.
TEST(Servers, TheLibraryChoosesThemWhereTheyPay) {
  const Variable nodes("STRETTO_RANKS_PER_NODE", "1"), links("STRETTO_LINKS", "intra=10GB/s,1us;inter=1Gb/s,20us");
  const auto chosen = [](const Communicator& world, std::int64_t count, int servers) {
    const bool has_vector = world.rank() < world.size() - servers;
    const Tensor vector = has_vector ? Tensor::zeros({count}, DType::f32) : Tensor();
    Call call{.count = count, .dtype = DType::f32};
    if (has_vector) call.input = call.output = vector.raw();
    return world.prepare(call, {.servers = servers}).method();
  };
  run_threads(6, [&](const Communicator& world) {
    EXPECT_EQ(chosen(world, 4 << 20, 2).algorithm, Algorithm::server_set);
    EXPECT_EQ(chosen(world, 4 << 20, 2).pieces, 41) << "messages of less than 60 KiB";
    EXPECT_NE(chosen(world, 10, 2).algorithm, Algorithm::server_set);
    EXPECT_NE(chosen(world, 4 << 20, 4).algorithm, Algorithm::server_set) << "two ranks";
    EXPECT_NE(chosen(world, 4 << 20, 0).algorithm, Algorithm::server_set);
    const auto seconds = [&](int servers) {
      return world.estimate({.count = 4 << 20, .dtype = DType::f32}, {.servers = servers}).seconds;
    };
    EXPECT_LT(seconds(2), 0.9 * seconds(0));
  });
  const Variable two("STRETTO_RANKS_PER_NODE", "4,2");
  run_threads(6, [&](const Communicator& world) {
    EXPECT_NE(chosen(world, 4 << 20, 2).algorithm, Algorithm::server_set) << "the servers share a link";
  });
}

TEST(Servers, PlansOfOnesOwn) {
  run_threads(5, [](const Communicator& world) {
    const bool is_server = world.rank() >= 3;
    PlanRequest request{Collective::all_reduce, Algorithm::server_set, world.rank(), 3, 10};
    request.servers = 2;
    const Plan plan = make_plan(request);
    const Tensor vector = is_server ? Tensor({0}, DType::f64) : Tensor({10}, DType::f64);
    if (!is_server)
      for (int i = 0; i < 10; ++i) vector.set(i, world.rank());
    const Operation operation = world.prepare(plan, vector, vector);
    operation.start(Stream::inline_()).wait();
    if (!is_server) {
      EXPECT_EQ(vector.at(9), 3);
    }
    EXPECT_THAT(sentence_of([&] { world.prepare(plan, vector, vector, ReduceOp::sum, {.servers = 1}); }),
                HasSubstr("with 2 servers; leave out"));
    EXPECT_THAT(sentence_of([&] { world.all_reduce(Tensor(), ReduceOp::sum, Stream::inline_(), {.servers = 1}).wait(); }),
                HasSubstr("got no tensor on rank"));
  });
}

TEST(Servers, RefusalsNameThem) {
  run_threads(3, [](const Communicator& world) {
    float value = 1;
    const auto sentence = [&](Collective collective, int servers, QuantizedFormat format = QuantizedFormat::none) {
      Call call{.collective = collective, .input = &value, .output = &value, .count = 1, .dtype = DType::f32};
      return sentence_of([&] { world.prepare(call, {.quantization = {.format = format}, .servers = servers}); });
    };
    EXPECT_THAT(sentence(Collective::all_reduce, 3), HasSubstr("got 3 servers, and 3 ranks; leave at least one"));
    EXPECT_THAT(sentence(Collective::all_reduce, -1), HasSubstr("got -1 servers"));
    EXPECT_THAT(sentence(Collective::broadcast, 1), HasSubstr("broadcast with 1 servers; all_reduce takes"));
    EXPECT_THAT(sentence(Collective::all_reduce, 1, QuantizedFormat::int8), HasSubstr("cannot be quantized"));
  });
}

TEST(Servers, RanksThatDisagreeAreNamed) {
  const Variable check("STRETTO_CHECK", "1"), timeout("STRETTO_TIMEOUT", "60");
  const auto body = [](const Communicator& world) {
    float value = 1;
    world.all_reduce(&value, &value, 1, DType::f32, ReduceOp::sum, Stream::inline_(), {.servers = world.rank() == 0 ? 0 : 1})
        .wait();
  };
  const std::string sentence = sentence_of([&] { run_threads(2, body); });
  EXPECT_THAT(sentence, HasSubstr("with 1 servers"));
  EXPECT_THAT(sentence, HasSubstr("all its ranks must make the same calls"));
}

}  // namespace
}  // namespace stretto
