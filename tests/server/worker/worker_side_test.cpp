#include "server/worker/worker_side.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "server/live_ranks.hpp"
#include "server/message_kinds.hpp"
#include "server/parts/tensor_bytes.hpp"
#include "server/served_layout.hpp"
#include "stretto/launch.hpp"
#include "stretto/server.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

constexpr std::int64_t wide_part = 1 << 16, wide_parts = 12, wide_count = wide_part * wide_parts;  // 512 KiB of i64

Tensor wide_filled(std::int64_t value) {
  Tensor tensor({wide_count}, DType::i64);
  std::fill_n(tensor.data<std::int64_t>(), wide_count, value);
  return tensor;
}

bool wide_all_are(const Tensor& tensor, std::int64_t value) {
  return std::all_of(tensor.data<std::int64_t>(), tensor.data<std::int64_t>() + wide_count,
                     [&](std::int64_t each) { return each == value; });
}

ServerSet wide_counts(const Communicator& world, const ServerSet::Options& options) {
  return {world, {{"counts", wide_count, DType::i64, {}, server_functions::sum()}}, options};
}

// Worker 0 gets no answer before worker 1 pushes, and has then sent two parts to each server; of a push alone, all.
TEST(WorkerSide, SendsAFewPartsAheadOfTheAnswers) {
  for (const bool pulls : {true, false}) {
    std::latch counted(1);
    run_threads(4, [&](const Communicator& world) {
      ServerSet set = wide_counts(world, {.servers = 2, .part_elements = wide_part});
      if (set.is_server()) return set.serve();
      const Tensor found = wide_filled(0);
      if (world.rank() == 1) counted.wait();
      const ServerSet::Pending pending = pulls ? set.push_pull(0, wide_filled(1), found) : set.push(0, wide_filled(1));
      if (world.rank() == 0) {
        EXPECT_EQ(set.traffic().messages, pulls ? 4U : static_cast<unsigned>(wide_parts));
        counted.count_down();
      }
      set.wait(pending);
      if (pulls) {
        EXPECT_TRUE(wide_all_are(found, 2));
      }
      set.leave();
    });
  }
}

// Parts that have not left come before the next push of their table, all of which leaves at once, and before a question.
TEST(WorkerSide, KeepsTheOrderOfCalls) {
  for (const int copies : {0, 1}) {
    std::atomic<std::int64_t> updates = 0;
    run_threads(3, [&](const Communicator& world) {
      ServerSet set = wide_counts(world, {.servers = 2, .part_elements = wide_part, .copies = copies});
      const auto answer = [&](const ServerSet::Question& question) {
        for (const ServerSet::HeldPart& each : question.parts) updates += each.is_copy ? 0 : each.updates;
        return std::string();
      };
      if (set.is_server()) return set.serve(answer);
      const Tensor first = wide_filled(0), second = wide_filled(0), third = wide_filled(0), ones = wide_filled(1),
                   tens = wide_filled(10);
      const ServerSet::Pending one = set.push_pull(0, ones, first);
      const ServerSet::Pending two = set.push(0, tens), three = set.pull(0, second), four = set.push_pull(0, ones, third);
      set.ask("");
      for (const ServerSet::Pending& each : {four, three, two, one}) set.wait(each);
      EXPECT_TRUE(wide_all_are(first, 1));
      EXPECT_TRUE(wide_all_are(second, 11));
      EXPECT_TRUE(wide_all_are(third, 12));
      set.leave();
    });
    if (copies == 0) {
      EXPECT_EQ(updates, 3 * wide_parts) << "all parts had the three pushes when the servers were asked";
    }
  }
}

// A server is lost when a few parts have left, and the parts that have not go to the next server.
TEST(WorkerSide, PartsThatHaveNotLeftSurviveALoss) {
  std::latch begun(2);
  run_threads(4, [&](const Communicator& world) {
    ServerSet set = wide_counts(world, {.servers = 2, .part_elements = wide_part, .copies = 1});
    if (world.rank() == 3) {
      begun.wait();
      return world.job().abort("it is killed.");
    }
    if (set.is_server()) return set.serve();
    const Tensor found = wide_filled(0), ones = wide_filled(1);
    for (int step = 1; step <= 2; ++step) {
      const ServerSet::Pending pending = set.push_pull(0, ones, found);
      if (step == 1) begun.count_down();
      set.wait(pending);
      EXPECT_TRUE(wide_all_are(found, 2 * step));
    }
    EXPECT_EQ(set.ranks().size(), 3) << "the control: there was a loss";
    set.leave();
  });
}

// A server whose table 0 has rows of any length, which says what the test makes it say about the part of a key.
class ScriptedServer {
 public:
  ScriptedServer(const ServedLayout& layout, LiveRanks& live, std::uint64_t key)
      : live_(live), parts_(layout.all_parts()), part_(layout.table(0).part_of(key)) {}

  // The worker's next message about the part, or its goodbye.
  ReceivedMessage next() {
    while (true) {
      ReceivedMessage message = live_.receive();
      if (message.head.kind == goodbye || (message.head.table == 0 && message.head.part == part_)) return message;
    }
  }
  void say(MessageKind kind, std::uint64_t request, const Tensor& bytes) {
    live_.send(0, {.kind = kind, .part = part_, .request = request}, bytes);
  }
  void say_all_are_applied_below(std::int64_t clock) {
    for (std::int64_t part = 0; part < parts_; ++part) {
      live_.send(0, {.kind = applied_pushes, .part = part, .clock = clock});
    }
  }
  void answer_pull() {
    const ReceivedMessage pull = next();
    EXPECT_EQ(pull.head.kind, pull_part);
    say(values_of_part, pull.head.request, Tensor::of<std::int64_t>({1, 2, 3}));
  }
  void end() {
    EXPECT_EQ(next().head.kind, goodbye);
    live_.send(0, {.kind = goodbye});
    live_.send_all();
  }

 private:
  LiveRanks& live_;
  std::int64_t parts_, part_;
};

// Behind a loss a server may say that a push is applied before it says whether the push was refused: if it is lost between,
// the next one must get the push again.
TEST(WorkerSide, KeepsAPushUntilTheWordOnIt) {
  constexpr std::uint64_t key = 7;
  run_threads(2, [](const Communicator& world) {
    const ServedTable table{
        .name = "counts", .dtype = DType::i64, .update = server_functions::sum(), .width = ServedTable::any_length};
    const ServedLayout layout(world, {table}, {.survivors_go_on = true});
    LiveRanks live(world, layout);
    if (world.rank() == 1) {
      ScriptedServer server(layout, live, key);
      const ReceivedMessage push = server.next();
      server.say_all_are_applied_below(1);
      server.answer_pull();
      const ReceivedMessage again = server.next();
      EXPECT_EQ(again.head.kind, push_part);
      EXPECT_EQ(again.head.request, push.head.request);
      EXPECT_EQ(again.head.bytes, push.head.bytes);
      server.say(refused_request, push.head.request, tensor_of(std::string("It is refused.")));
      server.answer_pull();
      const ReceivedMessage learned = server.next();
      EXPECT_EQ(learned.head.kind, push_part);
      EXPECT_EQ(learned.head.clock, 0);
      EXPECT_EQ(learned.head.bytes, 0U) << "as what it counts as";
      server.answer_pull();  // and no push before it
      return server.end();
    }
    WorkerSide worker(layout, live);
    const Tensor row = Tensor::zeros({3}, DType::i64);
    const auto pull = [&] {
      const std::uint64_t id = worker.add(0, {{key}, row, {3}}, pull_part);
      worker.begin(id);
      worker.wait(id);
    };
    const std::uint64_t push = worker.add(0, {{key}, row, {3}}, push_part);
    worker.begin(push);
    pull();  // it has been told by now that the push is applied
    worker.resume();
    pull();
    EXPECT_EQ(sentence_of(ErrorCode::invalid_argument, [&] { worker.wait(push); }), "It is refused.");
    EXPECT_NO_THROW(worker.wait(push)) << "once";
    worker.resume();
    pull();
    worker.leave();
  });
}

// A push that was accepted, and is done, may be refused by the next server. If that one is lost before it says so, the push
// comes once more, although it is applied: as one without keys.
TEST(WorkerSide, KeepsAnAcceptedPushUntilTheNextServersWord) {
  constexpr std::uint64_t key = 7;
  run_threads(2, [](const Communicator& world) {
    const ServedTable table{
        .name = "counts", .dtype = DType::i64, .update = server_functions::sum(), .width = ServedTable::any_length};
    const ServedLayout layout(world, {table}, {.survivors_go_on = true});
    LiveRanks live(world, layout);
    if (world.rank() == 1) {
      ScriptedServer server(layout, live, key);
      const ReceivedMessage push = server.next();
      server.say(accepted_push, push.head.request, {});
      for (int loss = 0; loss < 2; ++loss) {
        EXPECT_EQ(server.next().head.request, push.head.request) << "again, behind loss " << loss;
        if (loss == 0) server.say_all_are_applied_below(1);
        if (loss == 1) server.say(refused_request, push.head.request, tensor_of(std::string("It is refused.")));
        server.answer_pull();
      }
      EXPECT_EQ(server.next().head.bytes, 0U) << "as what it counts as";
      server.say_all_are_applied_below(1);
      return server.end();
    }
    WorkerSide worker(layout, live);
    const Tensor row = Tensor::zeros({3}, DType::i64);
    const auto wait_for = [&](MessageKind kind) {
      const std::uint64_t id = worker.add(0, {{key}, row, {3}}, kind);
      worker.begin(id);
      worker.wait(id);
    };
    wait_for(push_part);
    worker.resume();
    wait_for(pull_part);
    worker.resume();
    EXPECT_EQ(sentence_of(ErrorCode::invalid_argument, [&] { wait_for(pull_part); }), "It is refused.");
    worker.leave();
  });
}

// The last word on a push may come while its parts without keys, on which servers say none, wait behind a large one.
TEST(WorkerSide, APushIsDoneWhenItsPartsWithoutKeysHaveLeft) {
  constexpr std::int64_t large = 8 << 20;  // more bytes than a link holds
  std::latch answered(1);
  std::atomic<bool> done = false;
  run_threads(3, [&](const Communicator& world) {
    const ServedTable rows{
        .name = "rows", .dtype = DType::i64, .update = server_functions::sum(), .width = ServedTable::any_length};
    const ServedLayout layout(world, {rows, {"large", large, DType::i64, {}, server_functions::sum()}},
                              {.servers = 2, .part_elements = large});
    LiveRanks live(world, layout);
    const int busy = layout.tables[1].parts.front().servers.front();
    const auto key_of = [&](bool of_busy) {
      for (std::uint64_t key = 0;; ++key) {
        const auto part = static_cast<std::size_t>(layout.table(0).part_of(key));
        if ((layout.tables[0].parts[part].servers.front() == busy) == of_busy) return key;
      }
    };
    if (world.rank() == busy) {
      answered.wait();
      ScriptedServer server(layout, live, key_of(true));
      EXPECT_EQ(server.next().head.kind, push_part);
      for (int look = 0; look < 2000 && !done; ++look) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      EXPECT_TRUE(done) << "the worker waits for a message";
      server.say(applied_pushes, 0, {});  // so that it goes on then
      return server.end();
    }
    if (layout.is_server(world.rank())) {
      ScriptedServer server(layout, live, key_of(false));
      server.say(accepted_push, server.next().head.request, {});
      server.answer_pull();
      return server.end();
    }
    WorkerSide worker(layout, live);
    const Tensor zeros = Tensor::zeros({large}, DType::i64), found = zeros.clone(), row = Tensor::zeros({3}, DType::i64);
    const auto begun = [&](std::uint64_t id) {
      worker.begin(id);
      return id;
    };
    begun(worker.add(1, &zeros, &found));  // never answered, so that nothing but the push itself can wake the worker
    const std::uint64_t push = begun(worker.add(0, {{key_of(false)}, row, {3}}, push_part));
    worker.wait(begun(worker.add(0, {{key_of(false)}, row, {3}}, pull_part)));  // the word has come before its answer
    answered.count_down();
    worker.wait(push);
    done = true;
    worker.leave();
  });
}

// In each turn a worker sends one part to each server, and no two of as many workers begin with the same one.
TEST(WorkerSide, SendsToServersInTurn) {
  run_threads(4, [](const Communicator& world) {
    const ServedLayout layout(world, {{"counts", 12, DType::i64, {}, server_functions::sum()}},
                              {.servers = 2, .part_elements = 1});
    const auto servers_of = [&](int worker) {
      std::vector<int> servers;
      for (const std::size_t p : layout.sending_order(0, worker)) {
        servers.push_back(layout.tables[0].parts[p].servers.front());
      }
      return servers;
    };
    EXPECT_THAT(servers_of(0), testing::ElementsAre(2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3));
    EXPECT_THAT(servers_of(1), testing::ElementsAre(3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2));
  });
}

}  // namespace
}  // namespace stretto
