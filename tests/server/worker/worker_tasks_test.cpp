#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <latch>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "server/dying_servers.hpp"
#include "stretto/launch.hpp"
#include "stretto/push_filters.hpp"
#include "stretto/server.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using testing::Each;
using testing::HasSubstr;

constexpr int dense = 0, sparse = 1, other = 2, table_count = 3;
const std::vector<std::uint64_t> task_keys = {2, 3, 5, 7, 11, 13};

std::vector<ServedTable> task_tables(const ServerFunction& sum = server_functions::sum()) {
  const auto size = std::ssize(task_keys);
  return {{"dense", size, DType::i64, {}, sum},
          {.name = "sparse", .dtype = DType::i64, .update = sum, .width = 1},
          {"other", size, DType::i64, {}, sum}};
}

Tensor task_filled(std::int64_t value) {
  Tensor tensor({std::ssize(task_keys), 1}, DType::i64);
  std::fill_n(tensor.data<std::int64_t>(), tensor.size(), value);
  return tensor;
}

std::vector<std::int64_t> in(const Tensor& tensor) {
  return {tensor.data<std::int64_t>(), tensor.data<std::int64_t>() + tensor.size()};
}

ServerSet::Pending push_to(ServerSet& set, int table, const Tensor& pushed, const ServerSet::Task& task = {}) {
  return table == sparse ? set.push(table, task_keys, pushed, {}, task) : set.push(table, pushed, task);
}

ServerSet::Pending pull_from(ServerSet& set, int table, const Tensor& values, const ServerSet::Task& task = {}) {
  return table == sparse ? set.pull(table, task_keys, values, {}, task) : set.pull(table, values, task);
}

// Worker 0 makes all of its calls before worker 1 pushes, so that none of its pulls can be done.
TEST(Tasks, PushWhatAPullBrings) {
  for (const bool waits : {true, false}) {
    std::latch called(1);
    run_threads(3, [&](const Communicator& world) {
      ServerSet set(world, task_tables(), {.servers = 1});
      if (set.is_server()) return set.serve();
      const Tensor ones = task_filled(1), first = task_filled(0), second = task_filled(0), third = task_filled(0);
      if (world.rank() == 1) called.wait();
      const auto behind = [&](const ServerSet::Pending& pending) {
        return waits ? ServerSet::Task{.after = {pending}} : ServerSet::Task{};
      };
      push_to(set, dense, ones);
      const ServerSet::Pending of_dense = pull_from(set, dense, first);
      const std::uint64_t sent = set.traffic().messages;
      push_to(set, sparse, first, behind(of_dense));
      const ServerSet::Pending of_sparse = pull_from(set, sparse, second);
      const ServerSet::Pending last = set.push_pull(other, second, third, behind(of_sparse));
      if (world.rank() == 0) {
        EXPECT_EQ(set.traffic().messages == sent, waits) << "what waits is not sent";
        called.count_down();
      }
      set.wait(last);
      if (waits) {
        EXPECT_THAT(in(first), Each(2));
        EXPECT_THAT(in(second), Each(4)) << "the pull waits behind the push";
        EXPECT_THAT(in(third), Each(8));
      } else {
        EXPECT_THAT(in(third), Each(testing::Ne(8))) << "the control: the old values of the tensors";
      }
      set.leave();
    });
  }
}

// A program of pushes and pulls with the values that each pull must bring, as if each call were done before the next one.
struct RandomProgram {
  struct Step {
    int table = 0;
    bool pushes = false, pulls = false;
    int from = -1;  // the pull that brings what is pushed; else each worker pushes its number from 1 on
    std::vector<std::size_t> after = {};
    std::int64_t expected = 0;  // of a pull
  };
  std::vector<Step> steps;

  RandomProgram(unsigned seed, int workers) {
    constexpr std::size_t count = 40;
    constexpr std::int64_t most = std::int64_t{1} << 50;
    std::mt19937 draw(seed);
    std::vector<std::int64_t> sums(table_count);
    while (steps.size() < count) {
      Step step{.table = static_cast<int>(draw() % table_count), .pushes = draw() % 2 == 0};
      step.pulls = !step.pushes || (step.table != sparse && draw() % 2 == 0);
      for (std::size_t i = 0; i < draw() % 3 && !steps.empty(); ++i) step.after.push_back(draw() % steps.size());
      std::int64_t& sum = sums[static_cast<std::size_t>(step.table)];
      if (step.pushes) {
        const std::size_t from = steps.empty() ? 0 : draw() % steps.size();
        const bool repeats = !steps.empty() && steps[from].pulls && sum < most && steps[from].expected < most;
        if (repeats) step.from = static_cast<int>(from);
        if (repeats) step.after.push_back(from);
        sum += repeats ? workers * steps[from].expected : workers * (workers + 1) / 2;
      }
      step.expected = sum;
      steps.push_back(step);
    }
  }
};

// Which pushes and pulls a worker waits for, and which have functions, is another draw for each.
void run_program(ServerSet& set, const RandomProgram& program, unsigned seed, int worker) {
  std::mt19937 draw(seed * 100 + static_cast<unsigned>(worker));
  const std::size_t count = program.steps.size();
  const Tensor own = task_filled(worker + 1);
  std::vector<Tensor> brought;
  std::vector<ServerSet::Pending> pending;
  std::vector<int> called(count), wanted(count);
  for (std::size_t i = 0; i < count; ++i) {
    const RandomProgram::Step& step = program.steps[i];
    brought.push_back(task_filled(-1));
    ServerSet::Task task;
    for (const std::size_t earlier : step.after) task.after.push_back(pending[earlier]);
    const Tensor pushed = step.from < 0 ? own : brought[static_cast<std::size_t>(step.from)];
    if (step.pushes && step.pulls) {
      pending.push_back(set.push_pull(step.table, pushed, brought[i], task));
    } else if (step.pushes) {
      pending.push_back(push_to(set, step.table, pushed, task));
    } else {
      pending.push_back(pull_from(set, step.table, brought[i], task));
    }
    const auto check = [&program, &brought](std::size_t at) {
      if (program.steps[at].pulls) {
        EXPECT_THAT(in(brought[at]), Each(program.steps[at].expected)) << at;
      }
    };
    if (draw() % 2 == 0) {
      wanted[i] = 1;
      set.when_done(pending[i], [&, check, i](const std::exception_ptr& refused) {
        EXPECT_FALSE(refused);
        ++called[i];
        check(i);
      });
    }
    if (draw() % 4 == 0) set.poll();
    if (draw() % 4 == 0) {
      const std::size_t any = draw() % pending.size();
      set.wait(pending[any]);
      check(any);
    }
  }
  set.leave();
  EXPECT_EQ(called, wanted);
  for (std::size_t i = 0; i < count; ++i) {
    if (program.steps[i].pulls) {
      EXPECT_THAT(in(brought[i]), Each(program.steps[i].expected)) << i;
    }
  }
}

TEST(Tasks, BringWhatCallsOneByOneWould) {
  constexpr int workers = 3;
  for (unsigned seed = 0; seed < 12; ++seed) {
    const RandomProgram program(seed, workers);
    run_threads(workers + 2, [&](const Communicator& world) {
      ServerSet set(world, task_tables(), {.servers = 2, .part_elements = 2});
      if (set.is_server()) return set.serve();
      run_program(set, program, seed, world.rank());
    });
  }
}

TEST(Tasks, BringTheSameBehindLosses) {
  constexpr int workers = 3;
  for (unsigned seed = 0; seed < 8; ++seed) {
    const RandomProgram program(seed, workers);
    run_threads(workers + 3, [&](const Communicator& world) {
      const std::vector<Death> deaths = {{workers + 1, 2 + static_cast<int>(seed) * 2}};
      ServerSet set(world, task_tables(deadly(server_functions::sum(), world, deaths)),
                    {.servers = 3, .part_elements = 2, .copies = 1});
      if (set.is_server()) return serve_until_death(set);
      run_program(set, program, seed, world.rank());
      EXPECT_EQ(set.ranks().size(), workers + 2) << "the control: there was a loss";
    });
  }
}

// Worker 0 waits in a table of which worker 1 has pushed nothing, while a server is lost. The other table is eventual, so
// that its updates are the pushes which have been sent.
TEST(Tasks, ThatWaitAreNotSentBehindALoss) {
  std::latch asked(1), begun(1);
  run_threads(5, [&](const Communicator& world) {
    std::vector<ServedTable> tables = task_tables();
    tables[other].consistency = Consistency::eventual();
    ServerSet set(world, tables, {.servers = 3, .copies = 1});
    const auto answer = [&](const ServerSet::Question& question) {
      std::int64_t updates = 0;
      for (const ServerSet::HeldPart& part : question.parts) updates += part.table == other ? part.updates : 0;
      return std::to_string(updates);
    };
    if (world.rank() == 4) {
      begun.wait();
      return world.job().abort("it is killed.");
    }
    if (set.is_server()) return set.serve(answer);
    const Tensor ones = task_filled(1), found = task_filled(0), last = task_filled(0);
    set.attend();
    if (world.rank() == 1) asked.wait();
    push_to(set, dense, ones);
    const ServerSet::Pending pull = pull_from(set, dense, found);
    const ServerSet::Pending push = push_to(set, other, found, {.after = {pull}});
    if (world.rank() == 0) {
      begun.count_down();
      while (set.ranks().size() == 5) set.poll();
      EXPECT_THAT(set.ask("updates?"), Each("0"));
      EXPECT_THAT(in(found), Each(0));
      asked.count_down();
    }
    set.wait(push);
    EXPECT_THAT(in(found), Each(2));
    set.wait(pull_from(set, other, last, {.consistency = Consistency::sequential()}));
    EXPECT_THAT(in(last), Each(4)) << "each push was applied once";
    set.leave();
  });
}

TEST(Tasks, LeaveRefusalsToThoseWhoWaitForThem) {
  run_threads(2, [](const Communicator& world) {
    std::vector<ServedTable> tables = task_tables();
    tables[sparse].width = ServedTable::any_length;
    ServerSet set(world, tables, {.servers = 1});
    if (set.is_server()) return set.serve();
    const Tensor three = Tensor::of<std::int64_t>({1, 1, 1}), two = Tensor::of<std::int64_t>({1, 1});
    const Tensor ones = task_filled(1), found = task_filled(0);
    set.wait(set.push(sparse, {7}, three, {3}));
    const ServerSet::Pending wrong = set.push(sparse, {7}, two, {2});
    const ServerSet::Pending behind = set.push_pull(dense, ones, found, {.after = {wrong}});
    int called = 0;
    set.when_done(behind, [&](const std::exception_ptr& refused) { called += refused ? 100 : 1; });
    EXPECT_NO_THROW(set.wait(behind)) << "what is refused is done";
    EXPECT_EQ(called, 1);
    EXPECT_THAT(in(found), Each(1));
    EXPECT_THAT(sentence_of([&] { set.wait(wrong); }), HasSubstr("with 2 elements, and it has 3"));
    set.leave();
  });
}

// Notes what it gets, and refuses a gradient above 100.
class NotingFilter : public PushFilter {
 public:
  explicit NotingFilter(std::shared_ptr<std::vector<std::string>> notes) : notes_(std::move(notes)) {}
  void encode(PushedMessage& message) override {
    notes_->push_back("push " + std::to_string(static_cast<int>(message.rows.at(0))));
    if (message.rows.at(0) > 100) throw std::runtime_error("It is too large.");
  }
  void see_pulled(const std::vector<std::uint64_t>& /*keys*/, const Tensor& rows) override {
    notes_->push_back("pull " + std::to_string(static_cast<int>(rows.at(0))));
  }

 private:
  std::shared_ptr<std::vector<std::string>> notes_;
};

TEST(Tasks, ShowFiltersWhatTheyWaitFor) {
  run_threads(2, [](const Communicator& world) {
    const auto notes = std::make_shared<std::vector<std::string>>();
    const FilterKind filter{.name = "noting",
                            .make = [notes](const FilteredPart&) { return std::make_unique<NotingFilter>(notes); }};
    ServerSet set(
        world, {{.name = "weights", .elements = 1, .initial = {}, .update = server_functions::sum(), .filters = {filter}}},
        {.servers = 1});
    if (set.is_server()) return set.serve();
    const Tensor ones = Tensor::of<float>({1}), found = Tensor::of<float>({0}), large = Tensor::of<float>({101});
    set.wait(set.push(0, ones));
    notes->clear();
    const ServerSet::Pending pull = set.pull(0, found);
    const ServerSet::Pending push = set.push(0, ones, {.after = {pull}});
    set.wait(push);
    set.wait(pull);
    EXPECT_THAT(*notes, testing::ElementsAre("pull 1", "push 1"));
    notes->clear();
    const ServerSet::Pending again = set.pull(0, found);
    set.push(0, ones);
    set.wait(again);
    EXPECT_THAT(*notes, testing::ElementsAre("push 1", "pull 2")) << "the control";

    EXPECT_THROW(set.push(0, large), std::runtime_error);
    const ServerSet::Pending before = set.pull(0, found);
    const ServerSet::Pending late = set.push(0, large, {.after = {before}});
    const ServerSet::Pending last = set.push_pull(0, ones, found);
    EXPECT_NO_THROW(set.wait(last));
    EXPECT_EQ(found.at(0), 4) << "neither was a push";
    EXPECT_EQ(sentence_of([&] { set.wait(late); }), "It is too large.");
    set.leave();
  });
}

struct Throws {
  std::function<void()> at_push, at_pull;
};

class ThrowingFilter : public PushFilter {
 public:
  explicit ThrowingFilter(std::shared_ptr<Throws> throws) : throws_(std::move(throws)) {}
  void encode(PushedMessage& /*message*/) override {
    if (throws_->at_push) throws_->at_push();
  }
  void see_pulled(const std::vector<std::uint64_t>& /*keys*/, const Tensor& /*rows*/) override {
    if (throws_->at_pull) throws_->at_pull();
  }

 private:
  std::shared_ptr<Throws> throws_;
};

std::string thrown_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code() == ErrorCode::peer_lost ? "loss: " + std::string(error.what()) : error.what();
  } catch (const std::exception& error) {
    return "exception: " + std::string(error.what());
  } catch (int number) {
    return std::to_string(number);
  }
  return "nothing";
}

// Whatever it is, the job has lost no rank, and what has thrown is no push.
TEST(Tasks, EndWithWhatFiltersThrow) {
  const std::vector<std::function<void()>> throwers = {
      [] { throw Error(ErrorCode::peer_lost, "The filter lost its file."); }, [] { throw std::runtime_error(""); },
      [] { throw 7; }};
  run_threads(2, [&](const Communicator& world) {
    const auto throws = std::make_shared<Throws>();
    const FilterKind filter{.name = "throwing",
                            .make = [throws](const FilteredPart&) { return std::make_unique<ThrowingFilter>(throws); }};
    ServerSet set(
        world, {{.name = "weights", .elements = 1, .initial = {}, .update = server_functions::sum(), .filters = {filter}}},
        {.servers = 1, .survivors_go_on = true});
    if (set.is_server()) return set.serve();
    const Tensor ones = Tensor::of<float>({1}), found = Tensor::of<float>({0});
    const auto push_behind_pull = [&] { return set.push(0, ones, {.after = {set.pull(0, found)}}); };
    for (const std::function<void()>& thrower : throwers) {
      const std::string its = thrown_by(thrower);
      throws->at_push = thrower;
      EXPECT_EQ(thrown_by([&] { set.push(0, ones); }), its);
      const ServerSet::Pending push = push_behind_pull();
      std::string told;
      set.when_done(push,
                    [&](const std::exception_ptr& failure) { told = thrown_by([&] { std::rethrow_exception(failure); }); });
      EXPECT_EQ(thrown_by([&] { set.wait(push); }), its);
      EXPECT_EQ(told, its);
      EXPECT_EQ(thrown_by([&] { set.wait(push); }), "nothing") << "once";
      throws->at_push = {};
      throws->at_pull = thrower;
      EXPECT_EQ(thrown_by([&] { set.wait(push_behind_pull()); }), its);
      const ServerSet::Pending pull = set.pull(0, found);
      EXPECT_EQ(thrown_by([&] { set.wait(pull); }), its);
      EXPECT_EQ(thrown_by([&] { set.wait(pull); }), "nothing") << "once";
      throws->at_pull = {};
    }
    set.wait(set.push(0, ones));
    set.wait(set.pull(0, found));
    EXPECT_EQ(found.at(0), 1) << "the control: of one that has not thrown";
    throws->at_push = throwers.back();
    push_behind_pull();
    EXPECT_THAT(sentence_of(ErrorCode::invalid_argument, [&] { set.leave(); }), HasSubstr("A filter of a push has thrown"));
    set.leave();
  });
}

// What version() and filters have seen gets no older.
TEST(Tasks, ShowTheNewestPull) {
  run_threads(2, [](const Communicator& world) {
    ServerSet set(world, task_tables(), {.servers = 1});
    if (set.is_server()) return set.serve();
    const Tensor ones = task_filled(1), found = task_filled(0), later = task_filled(0);
    push_to(set, sparse, ones);
    const ServerSet::Pending first = pull_from(set, sparse, found);
    push_to(set, sparse, ones);
    const ServerSet::Pending second = pull_from(set, sparse, later);
    set.wait(second);
    EXPECT_EQ(set.version(sparse), 2);
    set.wait(first);
    EXPECT_THAT(in(found), Each(1));
    EXPECT_EQ(set.version(sparse), 2);
    set.wait(set.pull(sparse, std::vector<std::uint64_t>(), Tensor({1}, DType::i64).view(0, {0})));
    EXPECT_EQ(set.version(sparse), 2) << "of no keys";
    push_to(set, sparse, ones);
    set.wait(pull_from(set, sparse, found));
    EXPECT_EQ(set.version(sparse), 3) << "the control";
    set.leave();
  });
}

TEST(Tasks, RefuseWhatCannotBe) {
  run_threads(2, [](const Communicator& world) {
    ServerSet first(world, task_tables(), {.servers = 1}), second(world, task_tables(), {.servers = 1});
    if (first.is_server()) {
      first.serve();
      return second.serve();
    }
    const Tensor ones = task_filled(1), found = task_filled(0);
    const ServerSet::Pending of_first = first.push(dense, ones);
    EXPECT_THAT(sentence_of([&] { second.push(dense, ones, {.after = {of_first}}); }), HasSubstr("of another server set"));
    EXPECT_THAT(sentence_of([&] { second.wait(of_first); }), HasSubstr("of another server set"));
    EXPECT_THAT(sentence_of([&] { first.push(dense, ones, {.consistency = Consistency::eventual()}); }),
                HasSubstr("which only pulls have"));
    EXPECT_THAT(sentence_of([&] { first.push_pull(dense, ones, found, {.consistency = Consistency::sequential()}); }),
                HasSubstr("which only pulls have"));
    EXPECT_THAT(sentence_of([&] { first.push(dense, Tensor({9}, DType::i64), {.after = {of_first}}); }),
                HasSubstr("9 of i64"));
    first.wait(first.pull(dense, found, {.after = {ServerSet::Pending(), of_first}}));
    EXPECT_THAT(in(found), Each(1)) << "a default Pending is done, and what was refused was no push";
    first.leave();
    second.leave();
  });
}

}  // namespace
}  // namespace stretto
