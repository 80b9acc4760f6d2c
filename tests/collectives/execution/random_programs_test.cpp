// Programs of random operations over random groups, types, counts, streams and delays, against the oracle. All ranks draw a
// program from the same seed, so that they make the same calls in the same order, as the library requires.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <deque>
#include <random>
#include <thread>
#include <tuple>

#include "collectives/oracle.hpp"
#include "support/random_interruptions.hpp"
#include "support/tiers.hpp"

namespace stretto {
namespace {

using oracle::Buffers;
using oracle::Problem;

#ifdef STRETTO_SANITIZE
const int programs_a_shard = 50;
#else
const int programs_a_shard = all_tests() ? 120 : 30;
#endif
constexpr int shards = 8;
constexpr int operations_a_program = 20;
// Other programs every day: --gtest_random_seed is the number of a program over 1,000,000.
std::uint64_t first_program() { return std::uint64_t{1'000'000} * seed_of_the_day(); }

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : engine_(seed) {}
  int below(int n) { return static_cast<int>(engine_() % static_cast<std::uint64_t>(n)); }
  bool chance(int percent) { return below(100) < percent; }
  template <class T>
  const T& from(const std::vector<T>& list) {
    return list[below(static_cast<int>(list.size()))];
  }

 private:
  std::mt19937_64 engine_;
};

std::int64_t draw_count(Draw& draw) {
  static const std::vector<std::int64_t> counts{0, 1, 2, 3, 7, 16, 65, 257, 1000, 4099};
  return draw.from(counts);
}

Problem draw_problem(Draw& draw, int size) {
  static const std::vector<Collective> kinds{Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
                                             Collective::all_to_all, Collective::broadcast,      Collective::reduce,
                                             Collective::gather,     Collective::scatter};
  Problem problem;
  problem.collective = draw.from(kinds);
  problem.size = size;
  problem.dtype = draw.from(oracle::all_dtypes);
  problem.op = draw.from(oracle::all_ops);
  problem.root = draw.below(size);
  problem.count = draw_count(draw);
  problem.salt = draw.below(11);
  if (!counts_shares(problem.collective) || !draw.chance(50)) return problem;
  problem.count = 0;
  if (problem.collective == Collective::all_to_all) {
    problem.matrix.assign(size, std::vector<std::int64_t>(size));
    for (auto& row : problem.matrix) {
      for (std::int64_t& count : row) count = draw_count(draw) % 300;
    }
  } else {
    for (int rank = 0; rank < size; ++rank) problem.counts.push_back(draw_count(draw));
  }
  return problem;
}

// True if every rank's part is sure to fit a packet.
bool fits_packet(const Problem& problem) {
  std::int64_t elements = problem.count * problem.size;
  for (const std::int64_t count : problem.counts) elements += count;
  // Narrow sums may travel as f32.
  const std::int64_t width = std::max<std::int64_t>(size_of(DType::f32), size_of(problem.dtype));
  return elements * width <= most_packet_bytes;
}

// A random algorithm that can do the problem, or the library's choice.
Method draw_method(Draw& draw, const Problem& problem) {
  if (draw.chance(30)) return Algorithm::automatic;
  Method method(draw.from(algorithms_for(problem.collective)));
  if (needs_nodes(method.algorithm)) return Algorithm::automatic;
  const bool uneven_exchange = problem.collective == Collective::all_to_all && !problem.matrix.empty();
  if (uneven_exchange && !takes_uneven_exchange(method.algorithm)) return Algorithm::pairwise;
  if (method.algorithm == Algorithm::packet && !fits_packet(problem)) return Algorithm::staged;
  if (method.algorithm == Algorithm::ring) method.lanes = 1 + draw.below(3);
  if (method.algorithm == Algorithm::chain || method.algorithm == Algorithm::double_binary_tree)
    method.pieces = 1 + draw.below(5);
  return method;
}

// An operation that this rank has started; its result is checked at the end.
struct Pending {
  std::unique_ptr<Buffers> buffers;
  std::string what;
};
struct PendingMessage {
  Tensor data;
  int from;
  std::int64_t salt;
};

double message_value(int from, std::int64_t i, std::int64_t salt) { return static_cast<double>((from * 5 + i + salt) % 13); }

// Messages between random pairs of ranks, all in one group of operations, in a different order on each rank.
void exchange_messages(Draw& shared, Draw& own, const Communicator& group, const Stream& stream,
                       std::deque<PendingMessage>& pending) {
  struct Message {
    int from, to;
    std::int64_t count, salt;
  };
  std::vector<Message> messages(1 + shared.below(6));
  for (Message& message : messages) {
    message = {shared.below(group.size()), shared.below(group.size()), draw_count(shared), shared.below(13)};
  }
  std::vector<std::pair<int, bool>> order;  // index of the message, true for its send
  for (int m = 0; m < static_cast<int>(messages.size()); ++m) {
    if (messages[m].from == group.rank()) order.emplace_back(m, true);
    if (messages[m].to == group.rank()) order.emplace_back(m, false);
  }
  // Messages between the same two ranks keep their order; the others are shuffled.
  for (std::size_t i = 1; i < order.size(); ++i) {
    const auto same_way = [&](const auto& a, const auto& b) {
      return a.second == b.second && messages[a.first].from == messages[b.first].from &&
             messages[a.first].to == messages[b.first].to;
    };
    if (!same_way(order[i - 1], order[i]) && own.chance(50)) std::swap(order[i - 1], order[i]);
  }
  OperationGroup together;
  std::vector<Tensor> outgoing;
  for (const auto& [m, sends] : order) {
    const Message& message = messages[m];
    const Tensor data({message.count}, DType::i32);
    for (std::int64_t i = 0; i < message.count; ++i) data.set(i, message_value(message.from, i, message.salt));
    Call call;
    call.dtype = DType::i32;
    call.count = message.count;
    call.keep_alive = {data};
    call.collective = sends ? Collective::send : Collective::recv;
    call.root = sends ? message.to : message.from;
    if (sends) {
      call.input = data.raw();
    } else {
      data.zero();
      call.output = data.raw();
      pending.push_back({data, message.from, message.salt});
    }
    std::ignore = group.start(call, stream);
  }
  std::ignore = together.end();
}

void run_program(std::uint64_t seed) {
  Draw setup(seed);
  const int ranks = 2 + setup.below(5);
  run_threads(ranks, [&](const Communicator& world) {
    Draw shared(seed + 1);                                           // draws the same on every rank
    Draw own(seed * 31 + static_cast<std::uint64_t>(world.rank()));  // delays and streams
    std::vector<Communicator> groups{world};
    for (int g = 0; g < 3; ++g) {
      const int colors = 1 + shared.below(3);
      std::vector<int> color(ranks);
      for (int& c : color) c = shared.below(colors);
      groups.push_back(world.split(color[world.rank()], own.below(100), "group " + std::to_string(g)));
    }
    const std::vector<Stream> streams{Stream::inline_(), Stream("a"), Stream("b"), Stream("c")};
    std::deque<Pending> pending;
    std::deque<PendingMessage> messages;
    for (int i = 0; i < operations_a_program; ++i) {
      const int which = shared.below(static_cast<int>(groups.size()));
      const std::uint64_t operation_seed = seed * 1000 + static_cast<std::uint64_t>(i);
      const Communicator& group = groups[which];
      // Members of one group must draw alike; groups of different sizes draw differently.
      Draw drawn(operation_seed * 7 + static_cast<std::uint64_t>(group.size()));
      const Stream& stream = own.from(streams);
      if (own.chance(20)) std::this_thread::sleep_for(std::chrono::microseconds(own.below(300)));
      if (drawn.chance(15)) {
        exchange_messages(drawn, own, group, stream, messages);
        continue;
      }
      const Problem problem = draw_problem(drawn, group.size());
      const Method method = draw_method(drawn, problem);
      const bool in_place = can_be_in_place(problem.collective) && drawn.chance(40);
      Pending started{std::make_unique<Buffers>(problem, group.rank(), in_place, own.below(2) * (1 + own.below(7))),
                      std::string(name(problem.collective)) + " by " + to_string(method) + " of " + name(problem.dtype) +
                          " (" + name(problem.op) + ") over " + std::to_string(group.size()) + ", operation " +
                          std::to_string(i)};
      OperationOptions options;
      options.method = method;
      options.factor = problem.factor(group.rank());
      if (own.chance(30)) {
        std::ignore = group.prepare(started.buffers->call(), options).start(stream);
      } else {
        std::ignore = group.start(started.buffers->call(), stream, options);
      }
      pending.push_back(std::move(started));
    }
    for (const Stream& stream : streams) stream.synchronize();
    for (const Pending& done : pending) EXPECT_EQ(done.buffers->fault(), "") << done.what << " of program " << seed;
    for (const PendingMessage& message : messages) {
      for (std::int64_t i = 0; i < message.data.size(); ++i) {
        ASSERT_EQ(message.data.at(i), message_value(message.from, i, message.salt)) << "a message of program " << seed;
      }
    }
  });
}

class EveryRandomProgram : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Seeds, EveryRandomProgram, testing::Range(0, shards));

TEST_P(EveryRandomProgram, EqualsTheOracle) {
  const RandomInterruptions interruptions(std::random_device{}());
  for (int i = 0; i < programs_a_shard && !HasFailure(); ++i) {
    run_program(first_program() + static_cast<std::uint64_t>(GetParam()) * 10000 + static_cast<std::uint64_t>(i));
  }
}

// The same with STRETTO_CHECK=1: the comparison refuses no matching call and does not deadlock.
TEST(RandomPrograms, PassTheComparisonOfCalls) {
  setenv("STRETTO_CHECK", "1", 1);
  const RandomInterruptions interruptions(std::random_device{}());
  for (int i = 0; i < programs_a_shard / 2 && !HasFailure(); ++i)
    run_program(first_program() + 500000 + static_cast<std::uint64_t>(i));
  unsetenv("STRETTO_CHECK");
}

// The control: the oracle finds a wrong element and an overwritten guard.
TEST(Oracle, FindsAWrongElementAndATouchedGuard) {
  Problem problem;
  problem.collective = Collective::broadcast;
  problem.count = 5;
  Buffers buffers(problem, 0, true);
  EXPECT_EQ(buffers.fault(), "");
  auto* const output = static_cast<float*>(buffers.call().output);
  output[3] += 1;
  EXPECT_NE(buffers.fault(), "");
  output[3] -= 1;
  output[-1] += 1;
  EXPECT_NE(buffers.fault(), "");
}

}  // namespace
}  // namespace stretto
