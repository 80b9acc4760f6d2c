// A wrong length of a row, and other requests that only a server can judge: the worker learns why, and nobody else is held
// up.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/split_mix.hpp"
#include "server/dying_servers.hpp"
#include "stretto/launch.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using Keys = std::vector<std::uint64_t>;
using Lengths = std::vector<std::int64_t>;
using testing::HasSubstr;

constexpr std::uint64_t wrong_key = 7;  // of 3 elements

ServedTable lengthy() {
  return {.name = "counts", .dtype = DType::i64, .update = server_functions::sum(), .width = ServedTable::any_length};
}

// The first key above `above` that is, or is not, in the part of wrong_key. A sparse table has 4 parts a server.
std::uint64_t key_above(std::uint64_t above, bool same_part, int servers) {
  const auto part = [&](std::uint64_t key) { return split_mixed(key) % (4U * static_cast<unsigned>(servers)); };
  std::uint64_t key = above + 1;
  while ((part(key) == part(wrong_key)) != same_part) ++key;
  return key;
}

Tensor all_ones(std::int64_t count) {
  Tensor tensor({count}, DType::i64);
  std::fill_n(tensor.data<std::int64_t>(), count, 1);
  return tensor;
}

void push_ones(ServerSet& set, const Keys& keys, const Lengths& lengths) {
  std::int64_t elements = 0;
  for (const std::int64_t length : lengths) elements += length;
  set.wait(set.push(0, keys, all_ones(elements), lengths));
}

// The row of a key, whose elements are equal.
std::int64_t row_of(ServerSet& set, std::uint64_t key, std::int64_t length) {
  const Tensor row = all_ones(length);
  set.wait(set.pull(0, {key}, row, {length}));
  for (std::int64_t i = 1; i < length; ++i) EXPECT_EQ(row.at(i), row.at(0)) << key;
  return row.data<std::int64_t>()[0];
}

// Worker 0 makes 3 pushes, the second of them with `length` elements for a key of 3; worker 1 makes 3 of its own.
void push_three_times(const Communicator& world, const ServerSet::Options& options, std::int64_t length) {
  const std::uint64_t same = key_above(wrong_key, true, options.servers), other = key_above(same, false, options.servers);
  ServerSet set(world, {lengthy()}, options);
  if (set.is_server()) {
    if (options.spares > 0 && world.rank() == world.size() - 1) set.join();
    return set.serve();
  }
  const bool is_first = world.rank() == 0, is_wrong = length != 3;
  for (int step = 0; step < 3; ++step) {
    if (!is_first) {
      push_ones(set, {other}, {1});
    } else if (step != 1) {
      push_ones(set, {wrong_key}, {3});
    } else if (!is_wrong) {
      push_ones(set, {wrong_key, same, other}, {3, 2, 1});
    } else {
      EXPECT_EQ(sentence_of(ErrorCode::invalid_argument,
                            [&] {
                              push_ones(set, {wrong_key, same, other}, {length, 2, 1});
                            }),
                fmt::format("Worker 0 pushes or pulls key 7 of table counts with {} elements, and it has 3: a key keeps its "
                            "first length; give that one. Keys of the same part that are refused with it: 1.",
                            length));
    }
  }
  // At the clock behind 3 pushes of each.
  const auto settled = [&](std::uint64_t key, std::int64_t its_length, std::int64_t expected) {
    std::int64_t found = row_of(set, key, its_length);
    const bool may_be_old = options.consistency.kind == Consistency::Kind::eventual || options.consistency.delay > 0;
    while (may_be_old && found < expected) found = row_of(set, key, its_length);
    return found;
  };
  EXPECT_EQ(settled(wrong_key, 3, is_wrong ? 2 : 3), is_wrong ? 2 : 3);
  EXPECT_EQ(settled(same, is_wrong ? 5 : 2, is_wrong ? 0 : 1), is_wrong ? 0 : 1) << "of the same part: it has no length yet";
  EXPECT_EQ(settled(other, 1, 4), 4) << "of another part: pushed by both";
  EXPECT_EQ(set.ranks().size(), world.size()) << "no server has ended";
  set.leave();
}

TEST(Refusals, AWrongLengthIsToldToItsWorkerOnly) {
  const ServerSet::Options without{.servers = 2}, copied{.servers = 3, .copies = 2}, joined{.servers = 3, .spares = 1},
      eventual{.servers = 2, .consistency = Consistency::eventual(), .copies = 1},
      bounded{.servers = 2, .consistency = Consistency::bounded(1), .copies = 1};
  for (const ServerSet::Options& options : {without, copied, joined, eventual, bounded}) {
    for (const std::int64_t length : {2, 4, 3}) {  // the last one as a control
      run_threads(2 + options.servers, [&](const Communicator& world) { push_three_times(world, options, length); });
    }
  }
}

TEST(Refusals, OfSeveralPartsComeTogether) {
  run_threads(3, [](const Communicator& world) {
    ServerSet set(world, {lengthy()}, {.servers = 2});
    if (set.is_server()) return set.serve();
    const std::uint64_t other = key_above(wrong_key, false, 2);
    push_ones(set, {wrong_key, other}, {3, 1});
    const std::string both = sentence_of(ErrorCode::invalid_argument, [&] { push_ones(set, {wrong_key, other}, {2, 4}); });
    EXPECT_THAT(both, HasSubstr("key 7 of table counts with 2 elements, and it has 3"));
    EXPECT_THAT(both, HasSubstr(fmt::format("key {} of table counts with 4 elements, and it has 1", other)));
    EXPECT_EQ(std::ranges::count(both, '\n'), 1);
    const std::string one = sentence_of([&] { push_ones(set, {wrong_key, other}, {2, 1}); });
    EXPECT_EQ(std::ranges::count(one, '\n'), 0) << "the control";
    EXPECT_EQ(row_of(set, wrong_key, 3), 1);
    EXPECT_EQ(row_of(set, other, 1), 2) << "its part of the last push was right";
    set.leave();
  });
}

TEST(Refusals, APullOfAWrongLengthLeavesNone) {
  run_threads(2, [](const Communicator& world) {
    ServerSet set(world, {lengthy()}, {});
    if (set.is_server()) return set.serve();
    const std::uint64_t same = key_above(wrong_key, true, 1);
    push_ones(set, {wrong_key}, {3});
    const ServerSet::Pending refused = set.pull(0, {wrong_key, same}, all_ones(6), {2, 4});
    const ServerSet::Pending right = set.pull(0, {wrong_key}, all_ones(3), {3});
    expect_refusal([&] { set.wait(refused); }, "key 7 of table counts with 2 elements, and it has 3");
    EXPECT_NO_THROW(set.wait(refused)) << "once";
    set.wait(right);
    EXPECT_EQ(row_of(set, same, 5), 0);
    set.leave();
  });
}

TEST(Refusals, OfAPushThatNobodyHasWaitedForComeWhenTheWorkerLeaves) {
  for (const int copies : {0, 1}) {
    run_threads(3, [&](const Communicator& world) {
      ServerSet set(world, {lengthy()}, {.servers = 2, .copies = copies});
      if (set.is_server()) return set.serve();
      set.push(0, {wrong_key}, all_ones(3), {3});
      set.push(0, {wrong_key}, all_ones(2), {2});
      set.push(0, {wrong_key}, all_ones(4), {4});
      const std::string both = sentence_of(ErrorCode::invalid_argument, [&] { set.leave(); });
      EXPECT_THAT(both, HasSubstr("with 2 elements, and it has 3"));
      EXPECT_THAT(both, HasSubstr("with 4 elements, and it has 3"));
      EXPECT_EQ(row_of(set, wrong_key, 3), 1);
      EXPECT_NO_THROW(set.leave()) << "once";
    });
  }
}

// A server that is lost when it is asked, if it is the one that dies.
void serve_until_question(ServerSet& set, bool dies) {
  serve_until_death(set, [&](const ServerSet::Question&) -> std::string {
    if (dies) throw Killed();
    return {};
  });
}

// The server that has refused a push is lost before others have pushed. The next one does not know the key's length, and
// applies nothing of the push either.
TEST(Refusals, OutliveTheServer) {
  int forgotten = 0;
  for (const int dead : {2, 3}) {
    std::latch lost(1);
    run_threads(4, [&](const Communicator& world) {
      ServerSet set(world, {lengthy()}, {.servers = 2, .copies = 1});
      if (set.is_server()) return serve_until_question(set, world.rank() == dead);
      if (world.rank() == 0) {
        EXPECT_EQ(row_of(set, wrong_key, 3), 0);
        expect_refusal([&] { push_ones(set, {wrong_key}, {2}); }, "with 2 elements, and it has 3");
        set.ask("which one dies?");
        EXPECT_EQ(set.ranks().size(), 3) << "the control: there was a loss";
        lost.count_down();
      } else {
        set.attend();
        lost.wait();
        push_ones(set, {key_above(wrong_key, false, 2)}, {1});
      }
      if (world.rank() == 0) {
        const std::string refusal = sentence_of([&] { EXPECT_EQ(row_of(set, wrong_key, 2), 0); });
        if (!refusal.empty()) {
          EXPECT_THAT(refusal, HasSubstr("with 2 elements, and it has 3"));
        }
        EXPECT_EQ(row_of(set, wrong_key, refusal.empty() ? 2 : 3), 0);
        forgotten += refusal.empty() ? 1 : 0;
      }
      set.leave();
    });
  }
  EXPECT_EQ(forgotten, 1) << "the control: of one server the key was, and it was lost once";
}

// Without a call that could learn of the loss first.
void attend_until_lost(ServerSet& set, int ranks) {
  set.attend();
  while (set.ranks().size() == ranks) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// The worker makes no call until the server is lost, and with it its answer. The next one has counted the push as refused.
TEST(Refusals, ComeFromTheNextServerIfTheirsIsLostFirst) {
  for (const int dead : {2, 3}) {
    std::latch pushed(1);
    run_threads(4, [&](const Communicator& world) {
      ServerSet set(world, {lengthy()}, {.servers = 2, .copies = 1});
      if (set.is_server()) return serve_until_question(set, world.rank() == dead);
      push_ones(set, {wrong_key}, {3});
      EXPECT_EQ(row_of(set, wrong_key, 3), 2) << "all copies know the length";
      if (world.rank() == 0) {
        const ServerSet::Pending wrong = set.push(0, {wrong_key}, all_ones(2), {2});
        pushed.count_down();
        attend_until_lost(set, 4);
        expect_refusal([&] { set.wait(wrong); }, "with 2 elements, and it has 3");
      } else {
        pushed.wait();
        push_ones(set, {wrong_key}, {3});
        EXPECT_EQ(row_of(set, wrong_key, 3), 3) << "behind both workers' pushes";
        set.ask("which one dies?");
      }
      EXPECT_EQ(row_of(set, wrong_key, 3), 3);
      set.leave();
    });
  }
}

// Likewise through two losses: the third server had no copy when the push was refused, and the second one may be lost before
// it says so. Each two servers are lost in turn, so that they are once those of the key.
TEST(Refusals, ComeFromTheThirdServerIfBothBeforeAreLost) {
  for (const int first : {2, 3, 4}) {
    for (const int second : {2, 3, 4}) {
      if (second == first) continue;
      std::latch pushed(1);
      std::atomic<bool> third_has_copies = false;
      run_threads(5, [&](const Communicator& world) {
        ServerSet set(world, {lengthy()}, {.servers = 3, .copies = 1});
        if (set.is_server()) {
          return serve_until_death(set, [&](const ServerSet::Question&) -> std::string {
            const int left = set.ranks().size();
            if (left == 5 && world.rank() == first) throw Killed();
            if (left != 4) return {};
            if (world.rank() == second) {
              third_has_copies.wait(false);
              throw Killed();
            }
            third_has_copies = true;  // an answer waits until they have come
            third_has_copies.notify_all();
            return {};
          });
        }
        push_ones(set, {wrong_key}, {3});
        EXPECT_EQ(row_of(set, wrong_key, 3), 2) << "all copies know the length";
        if (world.rank() == 1) {
          const ServerSet::Pending wrong = set.push(0, {wrong_key}, all_ones(2), {2});
          pushed.count_down();
          attend_until_lost(set, 5);
          attend_until_lost(set, 4);
          expect_refusal([&] { set.wait(wrong); }, "with 2 elements, and it has 3");
        } else {
          pushed.wait();
          push_ones(set, {wrong_key}, {3});
          EXPECT_EQ(row_of(set, wrong_key, 3), 3) << "behind both workers' pushes";
          set.ask("which ones die?");
        }
        EXPECT_EQ(set.ranks().size(), 3) << "the control: there were two losses";
        EXPECT_EQ(row_of(set, wrong_key, 3), 3);
        set.leave();
      });
    }
  }
}

// Only a pull has made the length known, at the server that is then lost; the next server does not know it.
TEST(Refusals, OfALengthFromAPullComeFromTheNextServer) {
  for (const int dead : {2, 3}) {
    std::latch pushed(1);
    run_threads(4, [&](const Communicator& world) {
      ServerSet set(world, {lengthy()}, {.servers = 2, .copies = 1});
      if (set.is_server()) return serve_until_question(set, world.rank() == dead);
      const std::uint64_t same = key_above(wrong_key, true, 2);
      if (world.rank() == 0) {
        EXPECT_EQ(row_of(set, wrong_key, 3), 0);
        const ServerSet::Pending wrong = set.push(0, {wrong_key, same}, all_ones(3), {2, 1});
        pushed.count_down();
        attend_until_lost(set, 4);
        expect_refusal([&] { set.wait(wrong); }, "with 2 elements, and it has 3");
        EXPECT_NO_THROW(push_ones(set, {wrong_key}, {3})) << "the control: it is refused no longer";
      } else {
        pushed.wait();
        push_ones(set, {same}, {1});
        EXPECT_EQ(row_of(set, same, 1), 1) << "behind both workers' pushes";
        set.ask("which one dies?");
        push_ones(set, {same}, {1});
      }
      EXPECT_EQ(row_of(set, same, 1), 2);
      EXPECT_EQ(row_of(set, wrong_key, 3), 1);
      set.leave();
    });
  }
}

// Worker 0's last push is accepted and waits for worker 1's, which are first at the next server when theirs is lost: it
// stops at worker 0's first push until they are on their way. A pull is done although wait() tells of the refusal.
TEST(Refusals, OfAPushThatWasAcceptedComeWithTheNextWait) {
  constexpr int before = 20;  // pushes that worker 0 makes before that one; servers take messages of workers in turn
  std::atomic<int> late = 0, at_once = 0;
  for (const int dead : {2, 3}) {
    std::latch on_its_way(1);
    std::atomic<bool> is_ending = false;
    const std::uint64_t same = key_above(wrong_key, true, 2);
    run_threads(4, [&](const Communicator& world) {
      ServedTable table = lengthy();
      table.initial_row = [&, rank = world.rank()](const Tensor&, std::uint64_t key) {
        if (rank != dead && key == same && is_ending) on_its_way.wait();
      };
      ServerSet set(world, {table}, {.servers = 2, .copies = 1});
      if (set.is_server()) return serve_until_question(set, world.rank() == dead);
      if (world.rank() == 0) {
        for (int i = 0; i < before; ++i) push_ones(set, {same}, {1});
        EXPECT_NO_THROW(push_ones(set, {wrong_key}, {2})) << "it is accepted";
        is_ending = true;
        set.ask("which one dies?");
        const Tensor row = all_ones(1);
        const ServerSet::Pending pull = set.pull(0, {same}, row, {1});
        const std::string refusal = sentence_of([&] { set.wait(pull); });
        EXPECT_EQ(row.data<std::int64_t>()[0], 2 * before) << "the pull is done";
        if (!refusal.empty()) {
          EXPECT_THAT(refusal, HasSubstr("Worker 0 pushes or pulls key 7 of table counts with 2 elements, and it has 3"));
          ++late;
        }
        EXPECT_EQ(row_of(set, wrong_key, refusal.empty() ? 2 : 3), 1) << "one of both was pushed, once";
      } else {
        attend_until_lost(set, 4);
        const ServerSet::Pending other = set.push(0, {wrong_key}, all_ones(3), {3});
        on_its_way.count_down();
        at_once += sentence_of([&] { set.wait(other); }).empty() ? 0 : 1;
        for (int i = 0; i < before; ++i) push_ones(set, {same}, {1});
      }
      EXPECT_NO_THROW(set.leave());
    });
  }
  EXPECT_EQ(late, 1) << "of one server the key was, which is lost once";
  EXPECT_EQ(at_once, 1) << "the control: the other one goes on, and has accepted the first push";
}

TEST(Refusals, OfAQuestionThatAServerHasNoAnswerFor) {
  run_threads(4, [](const Communicator& world) {
    ServerSet set(world, {lengthy()}, {.servers = 2});
    const bool answers = world.rank() == 2;
    if (answers) return set.serve([](const ServerSet::Question& question) { return question.text; });
    if (set.is_server()) return set.serve();
    EXPECT_EQ(
        sentence_of(ErrorCode::invalid_argument, [&] { set.ask("what"); }),
        fmt::format("Worker {} asks server 3, whose serve() was given no answer; give all servers one.", world.rank()));
    push_ones(set, {wrong_key}, {3});
    EXPECT_EQ(row_of(set, wrong_key, 3), 2);
    set.leave();
  });
}

// Its memory has no place for the rows that a worker asks for; the worker's is not touched. A memory checker gives addresses
// for any length.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Refusals, OfAPullThatFindsNoMemory) {
  run_threads(3, [](const Communicator& world) {
    ServerSet set(world, {lengthy()}, {});
    if (set.is_server()) return set.serve();
    push_ones(set, {wrong_key}, {3});
    std::int64_t element = 0;
    constexpr std::int64_t much = std::int64_t{1} << 50;
    const Tensor rows = Tensor::wrap(&element, {much}, DType::i64);
    expect_refusal([&] { set.wait(set.pull(0, {key_above(wrong_key, true, 1)}, rows, {much})); },
                   fmt::format("Worker {} pushes or pulls 1 keys of table counts, and their server has no memory for {}",
                               world.rank(), much));
    EXPECT_EQ(row_of(set, wrong_key, 3), 2) << "it serves on";
    set.leave();
  });
}
#endif

class UndecodableFilter final : public PushFilter {
  void encode(PushedMessage& /*message*/) override {}
  void decode(PushedMessage& /*message*/) const override { throw Error(ErrorCode::internal, "It cannot be decoded."); }
};

// A server that throws has taken a message in part.
TEST(Refusals, AServerThatThrowsDoesNotServeOn) {
  const FilterKind undecodable{.name = "undecodable",
                               .make = [](const FilteredPart&) { return std::make_unique<UndecodableFilter>(); }};
  std::string first, again;
  sentence_of([&] {
    run_threads(3, [&](const Communicator& world) {
      ServerSet set(world, {{.name = "a", .elements = 4, .update = server_functions::sum(), .filters = {undecodable}}}, {});
      if (set.is_server()) {
        first = sentence_of([&] { set.serve(); });
        again = sentence_of([&] { set.serve(); });
        return world.job().abort("it is lost.");
      }
      const Tensor four = Tensor::zeros({4}, DType::f32);
      set.wait(set.push_pull(0, four, four.clone()));
    });
  });
  EXPECT_EQ(first, "It cannot be decoded.");
  EXPECT_EQ(again, first) << "it does not serve on";
}

}  // namespace
}  // namespace stretto
