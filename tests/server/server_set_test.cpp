#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <latch>
#include <limits>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "server/served_training.hpp"
#include "stretto/launch.hpp"
#include "stretto/server.hpp"
#include "support/error.hpp"
#include "support/jobs.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

// The weights after so many steps, which every worker has pulled; they must agree.
Tensor trained(const Kind& kind, int workers, int servers, Consistency consistency, int steps,
               const std::function<void(int worker, int step)>& before_push = {}) {
  std::vector<Tensor> of(static_cast<std::size_t>(workers));
  run_threads(workers + servers, [&](const Communicator& world) {
    ServerSet set(world, {{"weights", elements, DType::f32, initial, kind.function(workers)}},
                  {.servers = servers, .consistency = consistency, .part_elements = 300});
    if (set.is_server()) return set.serve();
    const Tensor weights({elements}, DType::f32);
    for (int step = 0; step < steps; ++step) {
      set.wait(set.pull(0, weights));
      if (before_push) before_push(world.rank(), step);
      set.wait(set.push(0, gradient_of(weights, world.rank(), step)));
    }
    set.wait(set.pull(0, weights));
    of[static_cast<std::size_t>(world.rank())] = weights;
    set.leave();
  });
  return of.front();
}

TEST(ServerSet, SequentialIsDataParallelBitForBit) {
  for (const Kind& kind : kinds) {
    for (int workers = 1; workers <= 4; ++workers) {
      const Tensor expected = reference(kind, workers, 0, 8);
      for (int servers = 1; servers <= 4; ++servers) {
        EXPECT_THAT(trained(kind, workers, servers, Consistency::sequential(), 8), has_the_bits_of(expected))
            << kind.name << ", " << workers << " workers, " << servers << " servers";
      }
      if (workers > 1) {
        EXPECT_THAT(expected, testing::Not(has_the_bits_of(reference(kind, workers, 1, 8)))) << "the control";
      }
    }
  }
}

// exact(d): the last pull is at clock `steps`, and gets the version of steps - d updates.
TEST(ServerSet, ExactDelaysAreTheReferenceLoop) {
  constexpr int steps = 9;
  for (const Kind& kind : kinds) {
    for (const int delay : {1, 2, 5}) {
      const auto disturb = [](int worker, int step) {
        if ((worker + step) % 3 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      };
      EXPECT_THAT(trained(kind, 3, 2, Consistency::exact(delay), steps, disturb),
                  has_the_bits_of(reference(kind, 3, delay, steps - delay)))
          << kind.name << ", delay " << delay;
    }
  }
}

#ifdef STRETTO_HAVE_UCX
TEST(ServerSet, HasTheSameBitsBetweenHosts) {
  const Variable transport("STRETTO_TRANSPORT", "ucx");
  for (const Kind& kind : kinds) {
    EXPECT_THAT(trained(kind, 3, 2, Consistency::sequential(), 8), has_the_bits_of(reference(kind, 3, 0, 8)));
    EXPECT_THAT(trained(kind, 2, 3, Consistency::exact(1), 8), has_the_bits_of(reference(kind, 2, 1, 7)));
  }
}
#endif

TEST(ServerSet, EventualWithOneWorkerIsTheSequentialLoop) {
  for (const Kind& kind : kinds) {
    EXPECT_THAT(trained(kind, 1, 2, Consistency::eventual(), 8), has_the_bits_of(reference(kind, 1, 0, 8)));
  }
}

// Each element of the table counts pushes by worker: 1000^worker. A pull at clock t must have every push of clocks below t -
// delay of every worker, as the counts say and not the code that waits.
int violations(Consistency consistency, int allowed) {
  constexpr int workers = 3, steps = 30;
  std::atomic<int> found = 0;
  run_threads(workers + 2, [&](const Communicator& world) {
    ServerSet set(world, {{"counts", 10, DType::i64, {}, server_functions::sum()}},
                  {.servers = 2, .consistency = consistency, .part_elements = 4});
    if (set.is_server()) return set.serve();
    const Tensor counts({10}, DType::i64), one({10}, DType::i64);
    std::int64_t unit = 1;
    for (int i = 0; i < world.rank(); ++i) unit *= 1000;
    for (std::int64_t i = 0; i < 10; ++i) one.data<std::int64_t>()[i] = unit;
    for (int step = 0; step < steps; ++step) {
      set.wait(set.pull(0, counts));
      for (std::int64_t i = 0; i < 10; ++i) {
        std::int64_t rest = counts.data<std::int64_t>()[i];
        for (int worker = 0; worker < workers; ++worker, rest /= 1000) {
          if (rest % 1000 < step - allowed) ++found;
        }
      }
      if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // ten times as slow as others
      set.wait(set.push(0, one));
    }
    set.leave();
  });
  return found;
}

TEST(ServerSet, NoPullIsStalerThanTheDelay) {
  for (const int delay : {0, 1, 2, 8}) EXPECT_EQ(violations(Consistency::bounded(delay), delay), 0) << delay;
  EXPECT_GT(violations(Consistency::eventual(), 0), 0) << "the control: nobody waits";
}

TEST(ServerSet, CountsExactly) {
  constexpr int workers = 3, pushes = 50;
  for (const Consistency consistency : {Consistency::sequential(), Consistency::bounded(4), Consistency::eventual()}) {
    run_threads(workers + 2, [&](const Communicator& world) {
      ServerSet set(
          world, {{"a", 7, DType::i64, {}, server_functions::sum()}, {"b", 3000, DType::i64, {}, server_functions::sum()}},
          {.servers = 2, .consistency = consistency, .part_elements = 100});
      if (set.is_server()) return set.serve();
      for (const auto& [table, size] : {std::pair(0, 7), {1, 3000}}) {
        const Tensor ones({size}, DType::i64), found({size}, DType::i64);
        std::fill_n(ones.data<std::int64_t>(), size, 1);
        for (int i = 0; i < pushes; ++i) set.push(table, ones);
        for (std::int64_t most = 0; most < workers * pushes;) {  // until the others' have come, too
          set.wait(set.pull(table, found));
          most = *std::min_element(found.data<std::int64_t>(), found.data<std::int64_t>() + size);
          ASSERT_LE(*std::max_element(found.data<std::int64_t>(), found.data<std::int64_t>() + size), workers * pushes);
        }
      }
      set.leave();
    });
  }
}

// A worker sends a step's values once up, a server once down to each worker; and 40 bytes before each part.
TEST(ServerSet, SendsTheBytesOfItsFormula) {
  constexpr int workers = 3, servers = 2, steps = 5;
  std::atomic<std::uint64_t> down = 0;
  run_threads(workers + servers, [&](const Communicator& world) {
    ServerSet set(world, {{"weights", elements, DType::f32, {}, server_functions::sum()}},
                  {.servers = servers, .part_elements = 90});
    const int parts = 12;
    if (set.is_server()) {
      set.serve();
      down += set.traffic().payload;
      return;
    }
    const Tensor values = Tensor::zeros({elements}, DType::f32), found({elements}, DType::f32);
    for (int step = 0; step < steps; ++step) set.wait(set.push_pull(0, values, found));
    EXPECT_EQ(set.traffic().payload, steps * elements * 4U);
    EXPECT_EQ(set.traffic().messages, 1U * steps * parts);
    EXPECT_LE(set.traffic().heads, 64 * set.traffic().messages);
    set.leave();
  });
  EXPECT_EQ(down, workers * steps * elements * 4U);
}

// Every worker counts its visits of random keys; in the end the counts are those of one process.
TEST(ServerSet, SparseRowsCountExactly) {
  constexpr int workers = 3, steps = 20;
  const auto keys_of = [](int worker, int step) {
    std::mt19937_64 draw(static_cast<std::uint64_t>(worker * 1000 + step));
    std::set<std::uint64_t> keys;
    for (unsigned i = 0; i < draw() % 50; ++i) keys.insert(draw() % 3 == 0 ? draw() : draw() % 64);
    return std::vector<std::uint64_t>(keys.begin(), keys.end());
  };
  std::map<std::uint64_t, std::int64_t> expected;
  for (int worker = 0; worker < workers; ++worker) {
    for (int step = 0; step < steps; ++step) {
      for (const std::uint64_t key : keys_of(worker, step)) ++expected[key];
    }
  }
  for (const Consistency consistency : {Consistency::sequential(), Consistency::bounded(2), Consistency::eventual()}) {
    run_threads(workers + 2, [&](const Communicator& world) {
      ServerSet set(world,
                    {{"dense", 5, DType::i64, {}, server_functions::sum()},
                     {.name = "visits", .dtype = DType::i64, .update = server_functions::sum(), .width = 1}},
                    {.servers = 2, .consistency = consistency});
      if (set.is_server()) return set.serve();
      for (int step = 0; step < steps; ++step) {
        const std::vector<std::uint64_t> keys = keys_of(world.rank(), step);
        const Tensor ones({std::ssize(keys), 1}, DType::i64), found({std::ssize(keys), 1}, DType::i64);
        for (std::int64_t i = 0; i < ones.size(); ++i) ones.data<std::int64_t>()[i] = 1;
        set.wait(set.pull(1, keys, found));
        set.wait(set.push(1, keys, ones));
      }
      std::vector<std::uint64_t> all;
      for (const auto& [key, count] : expected) all.push_back(key);
      const Tensor found({std::ssize(all), 1}, DType::i64);
      for (bool same = false; !same;) {  // until the others' have come, too
        set.wait(set.pull(1, all, found));
        same = true;
        for (std::size_t i = 0; i < all.size(); ++i) {
          const std::int64_t count = found.data<std::int64_t>()[i];
          ASSERT_LE(count, expected.at(all[i])) << "counted twice";
          same = same && count == expected.at(all[i]);
        }
      }
      EXPECT_THAT(sentence_of([&] {
                    set.push(1, {3, 2}, Tensor({2, 1}, DType::i64));
                  }),
                  testing::HasSubstr("Key 2 at place 1"));
      EXPECT_THAT(sentence_of([&] {
                    set.pull(1, {3}, Tensor({2, 1}, DType::i64));
                  }),
                  testing::HasSubstr("1 keys of table visits have 1 elements"));
      EXPECT_THAT(sentence_of([&] { set.pull(0, {3}, Tensor({1, 1}, DType::i64)); }), testing::HasSubstr("is dense"));
      EXPECT_THAT(sentence_of([&] { set.pull(1, found); }), testing::HasSubstr("is sparse"));
      set.leave();
    });
  }
}

TEST(ServerSet, IdleServersSleep) {
  run_threads(2, [](const Communicator& world) {
    ServerSet set(world, {{"a", 1, DType::f32, {}, server_functions::sum()}}, {});
    if (set.is_server()) {
      timespec before{}, behind{};
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
      set.serve();
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &behind);
      const double busy =
          static_cast<double>(behind.tv_sec - before.tv_sec) + 1e-9 * static_cast<double>(behind.tv_nsec - before.tv_nsec);
      EXPECT_LT(busy, 0.02) << "a hundredth of two seconds";
      return;
    }
    std::this_thread::sleep_for(std::chrono::seconds(2));
    set.leave();
  });
}

TEST(ServerSet, ALostServerEndsTheOthers) {
  std::atomic<int> told = 0;
  try {
    run_threads(3, [&](const Communicator& world) {
      ServerSet set(world, {{"a", 100, DType::f32, {}, server_functions::sum()}}, {.servers = 1});
      if (set.is_server()) throw std::runtime_error("the disk is gone");
      const Tensor values = Tensor::zeros({100}, DType::f32);
      try {
        for (;;) set.wait(set.push_pull(0, values, values.clone()));
      } catch (const Error&) {
        ++told;
        throw;
      }
    });
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("the disk is gone"));
  }
  EXPECT_EQ(told, 2);
}

// What servers hold is all of a table, once, and with copies once more; workers find what their answer has put in its place.
TEST(ServerSet, ServersAnswerByWhatTheyHold) {
  for (const int copies : {0, 1}) {
    std::mutex mutex;
    std::map<std::int64_t, std::int64_t> held;  // by first element: how many elements
    std::size_t copied = 0;
    std::latch met(2), asked(1);
    run_threads(5, [&](const Communicator& world) {
      ServerSet set(world, {{"weights", elements, DType::f32, initial, kinds[1].function(2)}},
                    {.servers = 3, .part_elements = 100, .copies = copies});
      const auto answer = [&](const ServerSet::Question& question) {
        const std::lock_guard lock(mutex);
        for (const ServerSet::HeldPart& part : question.parts) {
          EXPECT_EQ(part.updates, 2);
          EXPECT_EQ(part.state.size(), 2U);
          for (std::int64_t i = 0; i < part.values.size(); ++i) part.values.set(i, static_cast<double>(part.first + i));
          copied += part.is_copy ? 1 : 0;
          if (!part.is_copy) held[part.first] = part.values.size();
        }
        return question.text + std::to_string(question.server);
      };
      if (set.is_server()) return set.serve(answer);
      const Tensor weights({elements}, DType::f32);
      for (int step = 0; step < 2; ++step) {
        set.wait(set.pull(0, weights));
        set.wait(set.push(0, gradient_of(weights, world.rank(), step)));
      }
      set.wait(set.pull(0, weights, {.consistency = Consistency::sequential()}));
      met.arrive_and_wait();
      if (world.rank() == 0) {
        EXPECT_THAT(set.ask("who? "), testing::ElementsAre("who? 0", "who? 1", "who? 2"));
        EXPECT_THAT(set.ask(""), testing::ElementsAre("0", "1", "2")) << "of no characters, and again";
        asked.count_down();
      }
      asked.wait();
      set.wait(set.pull(0, weights));
      for (std::int64_t i = 0; i < elements; ++i) ASSERT_EQ(weights.at(i), static_cast<double>(i));
      set.leave();
    });
    std::int64_t next = 0;
    for (const auto& [first, count] : held) {
      EXPECT_EQ(first, next);
      next = first + count;
    }
    EXPECT_EQ(next, elements);
    EXPECT_EQ(copied, static_cast<std::size_t>(copies) * 2 * held.size()) << "asked twice";
  }
}

// A server's function throws what a loss of another rank would be, too: it is none, and the others go on without the server.
TEST(ServerSet, WhatAFunctionThrowsEndsTheSetOnItsRank) {
  run_threads(3, [](const Communicator& world) {
    ServerFunction sum = server_functions::sum();
    sum.update = [inner = sum.update, rank = world.rank()](const ServerUpdate& update) {
      if (rank == 2 && update.updates == 1) throw Error(ErrorCode::peer_lost, "Rank 0 is what I say.");
      inner(update);
    };
    ServerSet set(world, {{"counts", 8, DType::i64, {}, sum}}, {.servers = 2, .part_elements = 1, .copies = 1});
    if (world.rank() == 2) {
      for (int call = 0; call < 2; ++call) {
        EXPECT_EQ(sentence_of(ErrorCode::peer_lost, [&] { set.serve(); }), "Rank 0 is what I say.");
      }
      return world.job().abort("its function threw.");
    }
    if (set.is_server()) return set.serve();
    const Tensor ones({8}, DType::i64), found({8}, DType::i64);
    std::fill_n(ones.data<std::int64_t>(), 8, 1);
    for (int push = 1; push <= 3; ++push) {
      set.wait(set.push_pull(0, ones, found));
      EXPECT_THAT(std::vector<std::int64_t>(found.data<std::int64_t>(), found.data<std::int64_t>() + 8),
                  testing::Each(push));
    }
    set.leave();
    EXPECT_EQ(set.ranks().size(), 2);
  });
}

// A set of some ranks of the job, in another order: sentences have the set's numbers.
TEST(ServerSet, ALostServerIsNamedByItsNumberInTheSet) {
  run_threads(4, [](const Communicator& world) {
    const Communicator three = world.split(world.rank() == 0 ? 1 : 0, -world.rank(), "some");  // 3, 2, 1
    if (world.rank() == 0) return wait_until_others_fail(world);
    ServerSet set(three, {{"counts", 8, DType::i64, {}, server_functions::sum()}}, {.servers = 1});
    if (world.rank() == 1) return world.job().abort("it is killed.");
    const Tensor found({8}, DType::i64);
    EXPECT_THAT(sentence_of(ErrorCode::peer_gave_up, [&] { set.wait(set.pull(0, found)); }),
                testing::HasSubstr("Rank 2 gave up: it is killed. Lost with this server: elements 0 to 7 of table counts"));
  });
}

TEST(ServerSet, RefusesWhatCannotBe) {
  run_threads(2, [](const Communicator& world) {
    using testing::HasSubstr;
    const std::vector<ServedTable> tables = {{"a", 4, DType::f32, {}, server_functions::sum()}};
    const auto sentence = [&](std::vector<ServedTable> of, ServerSet::Options options) {
      return sentence_of([&] { const ServerSet set(world, of, options); });
    };
    EXPECT_THAT(sentence(tables, {.servers = 2}), HasSubstr("2 servers of 2 ranks leave no worker"));
    EXPECT_THAT(sentence(tables, {.servers = 0}), HasSubstr("0 servers"));
    EXPECT_THAT(sentence(tables, {.consistency = Consistency::bounded(-1)}), HasSubstr("a delay of -1"));
    EXPECT_THAT(sentence({{"a", 0, DType::f32, {}, server_functions::sum()}}, {}), HasSubstr("has 0 elements"));
    EXPECT_THAT(sentence({{"a", 4, DType::f32, {}, {}}}, {}), HasSubstr("no update"));
    EXPECT_THAT(
        sentence({{.name = "a", .update = server_functions::sum(), .width = 1}}, {.consistency = Consistency::exact(1)}),
        HasSubstr("is sparse, and exact consistency"));
    EXPECT_THAT(sentence({{.name = "a", .update = server_functions::adamw({}), .width = 1}}, {}), HasSubstr("keeps state"));
    EXPECT_THAT(sentence({{.name = "a", .update = server_functions::sgd({.momentum = 0.9}), .width = 1}}, {}),
                HasSubstr("keeps state"));
    ServerSet set(world, tables, {.part_elements = std::numeric_limits<std::int64_t>::max()});
    const Tensor four = Tensor::zeros({4}, DType::f32);
    if (set.is_server()) {
      EXPECT_THAT(sentence_of([&] { set.push(0, four); }), HasSubstr("is a server"));
      return set.serve();
    }
    EXPECT_THAT(sentence_of([&] { set.push(1, four); }), HasSubstr("no table 1"));
    EXPECT_THAT(sentence_of([&] { set.pull(0, Tensor::zeros({5}, DType::f32)); }), HasSubstr("5 of f32"));
    EXPECT_THAT(sentence_of([&] { set.push(0, Tensor::zeros({4}, DType::f64)); }), HasSubstr("of f64"));
    EXPECT_THAT(sentence_of([&] { set.push_pull(0, Tensor::zeros({5}, DType::f32), four); }), HasSubstr("5 of f32"));
    EXPECT_THAT(sentence_of([&] { set.serve(); }), HasSubstr("is a worker"));
    EXPECT_EQ(set.server_of(0, 3), 1);
    set.leave();
    EXPECT_THAT(sentence_of([&] { set.push(0, four); }), HasSubstr("has left"));
  });
}

// Which messages of a second table pass those of a large first one that wait for the same link.
struct Passed {
  bool pushes = false, pulls = false;
};

// The server looks at nothing before all is pushed, and the worker at nothing before all is answered.
Passed passed(int first_priority, int second_priority) {
  constexpr int large = 0, small = 1, last = 2;
  constexpr std::int64_t parts = 16, part = 1 << 19;  // of i64: more bytes together than a link holds
  std::string updated;
  std::latch pushed(1), answered(1);
  Passed result;
  run_threads(2, [&](const Communicator& world) {
    const auto noting = [&](char letter) {
      return ServerFunction{[&updated, letter](const ServerUpdate& update) {
        update.values.copy_from(update.pushed);
        updated += letter;
      }};
    };
    const ServerFunction counting_down{[&](const ServerUpdate&) { answered.count_down(); }};
    std::vector<ServedTable> tables = {{"large", parts * part, DType::i64, {}, noting('l')},
                                       {"small", 1, DType::i64, {}, noting('s')},
                                       {"last", 1, DType::i64, {}, counting_down}};
    tables[large].priority = first_priority;
    tables[small].priority = second_priority;
    ServerSet set(world, tables, {.servers = 1, .part_elements = part});
    if (set.is_server()) {
      pushed.wait();
      return set.serve();
    }
    const Tensor one = Tensor::of<std::int64_t>({1}), found = Tensor::zeros({1}, DType::i64);
    const Tensor ones({parts * part}, DType::i64), all_found = Tensor::zeros({parts * part}, DType::i64);
    std::fill_n(ones.data<std::int64_t>(), ones.size(), 1);
    const ServerSet::Pending first_push = set.push(large, ones), second_push = set.push(small, one);
    pushed.count_down();
    for (const ServerSet::Pending& push : {first_push, second_push}) set.wait(push);
    set.wait(set.pull(last, found));
    const ServerSet::Pending first = set.pull(large, all_found), second = set.pull(small, found);
    set.push(last, one);
    answered.wait();
    set.wait(second);
    EXPECT_EQ(found.data<std::int64_t>()[0], 1);
    result.pulls = all_found.data<std::int64_t>()[all_found.size() - 1] == 0;
    set.wait(first);
    EXPECT_EQ(all_found.data<std::int64_t>()[all_found.size() - 1], 1);
    set.leave();
  });
  EXPECT_EQ(updated.size(), parts + 1U);
  result.pushes = updated.back() == 'l';
  return result;
}

TEST(ServerSet, MessagesOfHigherPriorityPassOthers) {
  const Passed higher = passed(0, 1), equal = passed(1, 1);
  EXPECT_TRUE(higher.pushes && higher.pulls) << higher.pushes << higher.pulls;
  EXPECT_FALSE(equal.pushes || equal.pulls) << "the control" << equal.pushes << equal.pulls;
}

}  // namespace
}  // namespace stretto
