#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <random>
#include <thread>
#include <utility>

#include "program/random_program.hpp"
#include "program/run_programs.hpp"
#include "stretto/ledger.hpp"
#include "stretto/program.hpp"
#include "support/error.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::uint64_t control_messages(const Communicator& world) {
  std::uint64_t sent = 0;
  for (const Record& record : world.job().ledger().records()) {
    sent += record.tag == "program" && record.collective == Collective::send ? 1 : 0;
  }
  return sent;
}

void expect_random_programs(int executors, Dispatch dispatch) {
  with_clients(executors, 1, [&](ProgramRuntime& runtime, int) {
    std::mt19937 draw(static_cast<unsigned>(31 + executors));
    for (int i = 0; i < 12; ++i) {
      const Program program = random_program(draw, executors, 8);
      if (program.steps().empty()) continue;
      const CompiledProgram compiled = runtime.compile(program, dispatch);
      std::vector<ProgramRun> runs;
      for (int r = 0; r < 3; ++r) runs.push_back(compiled.run(1 + r, numbered_inputs(program, r)));
      for (int r = 0; r < 3; ++r) {
        const auto found = runs[static_cast<std::size_t>(r)].wait();
        ASSERT_NO_FATAL_FAILURE(expect_equal(found, reference(program, numbered_inputs(program, r))))
            << compiled.plan().to_string(program);
      }
    }
  });
}

TEST(ProgramRuntime, RandomProgramsAreThoseOfAnOracle) {
  for (int executors = 1; executors <= 4; ++executors) {
    for (const Dispatch dispatch : {Dispatch::parallel, Dispatch::sequential, Dispatch::op_by_op}) {
      expect_random_programs(executors, dispatch);
    }
  }
}

#ifdef STRETTO_HAVE_UCX
TEST(ProgramRuntime, RandomProgramsBetweenHosts) {
  const Variable transport("STRETTO_TRANSPORT", "ucx");
  expect_random_programs(3, Dispatch::parallel);
}
#endif

TEST(ProgramRuntime, ARunIsOneMessageToEachExecutor) {
  constexpr int runs = 10;
  const auto messages_of_scheduler = [](Dispatch dispatch) {
    std::atomic<std::uint64_t> sent = 0;
    run_threads(5, [&](const Communicator& world) {
      ProgramRuntime runtime(world, program_functions(), {});
      if (runtime.is_executor()) {
        runtime.serve();
        if (world.rank() == 0) sent = control_messages(world);
        return;
      }
      const CompiledProgram compiled = runtime.compile(two_stages_of(2), dispatch);
      compiled.run(runs, numbered_inputs(two_stages_of(2), 1)).wait();
      runtime.leave();
    });
    return sent.load();
  };
  // Rank 0 is an executor itself, and sends the others the program, their places, each run, its end, and goodbye; the
  // client: compiled, finished, executor 0's goodbye.
  const std::uint64_t parallel = messages_of_scheduler(Dispatch::parallel);
  EXPECT_EQ(parallel, 3u * (2 + runs + 2) + 3);
  // Steps: call on 0 and 1, move on 0 to 3, call on 2 and 3. The first step comes with the run itself.
  EXPECT_EQ(messages_of_scheduler(Dispatch::op_by_op), parallel + runs * (3 + 2));
  EXPECT_EQ(messages_of_scheduler(Dispatch::sequential), parallel + runs * (3 + 2));
}

TEST(ProgramRuntime, DevicesAreTheLeastUsedExecutors) {
  with_clients(4, 1, [](ProgramRuntime& runtime, int) {
    EXPECT_THAT(runtime.compile(two_stages_of(2)).plan().groups, ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
    Program one("one");
    const Program::Group single = one.group(1);
    one.call("scale", single, {one.input(single, four)}, {four});
    const CompiledProgram first = runtime.compile(one), second = runtime.compile(one);
    EXPECT_THAT(first.plan().groups, ElementsAre(ElementsAre(0)));
    EXPECT_THAT(second.plan().groups, ElementsAre(ElementsAre(1)));
    for (int i = 0; i < 3; ++i)
      EXPECT_THAT(runtime.compile(one).plan().groups, ElementsAre(ElementsAre(2))) << "dropped at once";
  });
}

TEST(ProgramRuntime, SaysWhatCannotBeCompiledOrRun) {
  with_clients(2, 1, [](ProgramRuntime& runtime, int) {
    Program large("large");
    large.group(3);
    EXPECT_THAT(sentence_of([&] { runtime.compile(large); }), HasSubstr("has 3 devices; there are 2 executors"));
    Program empty("empty");
    EXPECT_THAT(sentence_of([&] { runtime.compile(empty); }), HasSubstr("has no steps"));
    Program unknown("unknown");
    unknown.call("nothing", unknown.group(2), {}, {});
    EXPECT_THAT(sentence_of([&] { runtime.compile(unknown); }),
                AllOf(HasSubstr("'nothing', which rank "), HasSubstr("'scale', 'sum'")));
    Program good("good");
    const Program::Group pair = good.group(2);
    good.output(good.call("scale", pair, {good.input(pair, four)}, {four}, 3).front());
    Program foreign("\xff");
    foreign.call("scale", foreign.group(1), {}, {});
    expect_refusal([&] { runtime.compile(foreign); }, "must be UTF-8");
    const CompiledProgram compiled = runtime.compile(good);
    EXPECT_THAT(sentence_of([&] { compiled.run(1); }), HasSubstr("has 1 inputs and 0 kept ones, and run() got 0 and 0"));
    EXPECT_THAT(sentence_of([&] { compiled.run(0, {Tensor({4}, DType::f64)}); }), HasSubstr("to run 0 times"));
    EXPECT_THAT(sentence_of([&] { compiled.run(1, {Tensor({3}, DType::f64)}); }), HasSubstr("4 elements of f64"));
    expect_equal(compiled.run(1, numbered_inputs(good, 0)).wait(), reference(good, numbered_inputs(good, 0)));
  });
  for (const double weight : {0.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    run_threads(3, [&](const Communicator& world) {
      ProgramRuntime::Options options;
      if (world.rank() == 2) options.weight = weight;
      EXPECT_THAT(sentence_of(ErrorCode::invalid_argument, [&] { const ProgramRuntime runtime(world, {}, options); }),
                  HasSubstr(world.rank() == 2 ? "give a weight from" : "Rank 2 has options of a client that cannot be"));
    });
  }
  run_threads(2, [](const Communicator& world) {
    EXPECT_THAT(sentence_of([&] { const ProgramRuntime runtime(world, {}, {.clients = 2}); }),
                HasSubstr("2 clients of 2 ranks leave no executor"));
  });
}

// The client has outputs that are inputs itself, also where executors that do nothing have them.
TEST(ProgramRuntime, AnInputOfExecutorsThatDoNothingIsAnOutput) {
  with_clients(3, 1, [](ProgramRuntime& runtime, int) {
    Program program("idle");
    const Program::Group busy = program.group(1), idle = program.group(2);
    const Program::Value x = program.input(idle, four), y = program.input(busy, four);
    program.output(x);
    program.output(program.call("scale", busy, {y}, {four}, 2).front());
    program.output(y);
    const CompiledProgram compiled = runtime.compile(program);
    for (int i = 0; i < 3; ++i) {
      const std::vector<Tensor> inputs = numbered_inputs(program, i);
      expect_equal(compiled.run(2, inputs).wait(), reference(program, inputs));
    }
    Program kept("kept");
    const Program::Group used = kept.group(1), unused = kept.group(1);
    kept.call("scale", used, {kept.input(used, four)}, {four});
    kept.output(kept.kept_input(unused, four));
    expect_refusal([&] { runtime.compile(kept); }, "outputs a value on a group that does nothing");
  });
}

// What a thread does while it waits, such as progress of another library, it also does in functions.
TEST(ProgramRuntime, ThreadsGoOnWithWhatTheyDoInWaits) {
  static std::atomic<int> looks = 0;
  std::atomic<int> in_function = 0;
  FunctionTable table;
  table["meet"] = [&](const FunctionCall& call) {
    const int before = looks;
    if (call.group.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    double one = 1;
    call.group.all_reduce(&one, &one, 1, DType::f64, ReduceOp::sum, Stream::inline_()).wait();
    if (call.group.rank() == 0) in_function = looks - before;
  };
  run_threads(3, [&](const Communicator& world) {
    ProgramRuntime runtime(world, table, {});
    if (runtime.is_executor()) {
      const Meanwhile before = world.rank() == 0 ? while_waiting({[] { ++looks; }, 1e-3}) : Meanwhile();
      runtime.serve();
      if (world.rank() == 0) while_waiting(before);
      return;
    }
    Program program("p");
    program.call("meet", program.group(2), {}, {});
    runtime.compile(program).run().wait();
    runtime.leave();
  });
  EXPECT_GT(in_function, 0);
}

// What executors hold at a time is what the plan says, and at most so many runs are in flight.
TEST(ProgramRuntime, MemoryIsAsPlannedAndRunsAreBounded) {
  std::atomic<std::size_t> most = 0, before = 0;
  std::atomic<int> first = 0, second = 0, ahead = 0;
  FunctionTable table;
  const auto look = [&](const FunctionCall& call) {
    const std::size_t bytes = memory_use().bytes;
    if (call.inputs.empty()) before = bytes - (call.outputs.empty() ? 0 : call.outputs[0].bytes()), most = 0;
    most = std::max(most.load(), bytes);
    for (const Tensor& output : call.outputs) output.zero();
  };
  table["first"] = [&](const FunctionCall& call) {
    look(call);
    ahead = std::max(ahead.load(), ++first - second);
  };
  table["second"] = [&](const FunctionCall& call) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    look(call);
    ++second;
  };
  with_clients(
      1, 1,
      [&](ProgramRuntime& runtime, int) {
        const ValueType mib{DType::u8, {1 << 20}};
        Program program("p");
        const Program::Group one = program.group(1);
        Program::Value x = program.call("first", one, {}, {mib}).front();
        for (int i = 0; i < 4; ++i) x = program.call("first", one, {x}, {mib}).front();
        const CompiledProgram compiled = runtime.compile(program);
        EXPECT_EQ(compiled.plan().peak_bytes[0], 2 << 20);
        compiled.run(10).wait();
        EXPECT_EQ(most - before, 2u << 20) << "in the last run";
      },
      table);
  first = second = ahead = 0;
  with_clients(
      2, 1,
      [&](ProgramRuntime& runtime, int) {
        Program program("p");
        program.call("first", program.group(1), {}, {});
        program.call("second", program.group(1), {}, {});
        runtime.compile(program).run(50).wait();
        EXPECT_EQ(second, 50);
        EXPECT_LE(ahead, 2) << "the first executor is two runs ahead at most";
      },
      table);
}

// A value stays on its devices from run to run and from program to program, until its last handle and its last run are gone.
TEST(ProgramRuntime, ValuesAreKeptWhileTheyHaveHandles) {
  with_clients(3, 1, [](ProgramRuntime& runtime, int) {
    const ValueType mib{DType::f64, {3 << 17}, ValuePlacement::along(0)};
    Program make("make"), grow("grow"), look("look");
    const Program::Group makers = make.group(3), growers = grow.group(3), lookers = look.group(3);
    make.keep(make.call("scale", makers, {make.input(makers, mib)}, {mib}, 1).front());
    grow.keep(grow.call("scale", growers, {grow.kept_input(growers, mib)}, {mib}, 2).front());
    const Program::Value sums =
        look.call("sum", lookers, {look.kept_input(lookers, mib)}, {{DType::f64, {3, 3}, ValuePlacement::along(0)}}).front();
    look.output(look.reduce(sums, ReduceOp::max, ValuePlacement::replicated()));
    const CompiledProgram making = runtime.compile(make), growing = runtime.compile(grow), looking = runtime.compile(look);
    const std::size_t before = memory_use().bytes;
    const auto settles_at = [&](std::size_t bytes) {  // messages of a few bytes come and go
      for (int look_again = 0; look_again < 5000; ++look_again) {
        if (memory_use().bytes < before + bytes + 10'000 && memory_use().bytes + 10'000 > before + bytes) return true;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      return false;
    };
    const std::size_t bytes = std::size_t{3} << 20;
    Tensor ones({3 << 17}, DType::f64);
    for (std::int64_t i = 0; i < ones.size(); ++i) ones.set(i, 1);
    KeptValue value = making.run(1, {ones}).kept().front();
    ones = {};
    EXPECT_TRUE(settles_at(bytes));
    for (int i = 0; i < 5; ++i) value = growing.run(1, {}, {value}).kept().front();
    EXPECT_TRUE(settles_at(bytes)) << "of 6 values, one has a handle";
    const ProgramRun first = looking.run(1, {}, {value}), again = looking.run(3, {}, {value});
    value = {};  // these runs have it
    EXPECT_EQ(first.wait().front().at(0), 32.0 * (1 << 17));
    EXPECT_EQ(again.wait().front().at(0), 32.0 * (1 << 17));
    EXPECT_TRUE(settles_at(0));

    EXPECT_THAT(sentence_of([&] { looking.run(1, {}, {KeptValue()}); }), HasSubstr("is not of this client"));
    EXPECT_THAT(sentence_of([&] { looking.run(); }), HasSubstr("and 1 kept ones, and run() got 0 and 0"));
    Program small("small");
    const Program::Group pair = small.group(2);
    small.keep(small.call("scale", pair, {small.input(pair, four)}, {four}, 1).front());
    const KeptValue other = runtime.compile(small).run(1, {Tensor::zeros({4}, DType::f64)}).kept().front();
    EXPECT_THAT(sentence_of([&] { looking.run(1, {}, {other}); }),
                AllOf(HasSubstr("of shape [393216] on executors 0, 1, 2"), HasSubstr("of shape [4] on executors 0, 1;")));
    Program idle("idle");
    const Program::Group used = idle.group(1), unused = idle.group(1);
    idle.call("scale", used, {idle.input(used, four)}, {four});
    idle.keep(idle.input(unused, four));
    EXPECT_THAT(sentence_of([&] { runtime.compile(idle); }), HasSubstr("on a group that does nothing"));
  });
}

// Runs hold the last handles of what they were given, and end while the client sends large inputs and rank 0 large outputs.
TEST(ProgramRuntime, ValuesThatRunsAloneHoldAreFreedBetweenLargeMessages) {
  FunctionTable table;
  table["copy"] = [](const FunctionCall& call) { call.outputs[0].copy_from(call.inputs[0]); };
  with_clients(
      2, 1,
      [](ProgramRuntime& runtime, int) {
        const ValueType large{DType::f64, {1 << 18}, ValuePlacement::along(0)};
        Program make("make"), look("look");
        const Program::Group makers = make.group(2), lookers = look.group(2);
        make.keep(make.call("copy", makers, {make.input(makers, large)}, {large}).front());
        const Program::Value kept = look.kept_input(lookers, large), given = look.input(lookers, large);
        look.output(look.call("copy", lookers, {kept}, {large}).front());
        look.output(look.call("copy", lookers, {given}, {large}).front());
        const CompiledProgram making = runtime.compile(make);
        const std::vector<Tensor> inputs = numbered_inputs(make, 0);
        std::vector<ProgramRun> before;
        for (int i = 0; i < 20; ++i) {
          const CompiledProgram looking = runtime.compile(look);  // its last run of these outlives it
          std::vector<ProgramRun> runs;
          for (int j = 0; j < 3; ++j) runs.push_back(looking.run(1, inputs, making.run(1, inputs).kept()));
          for (const ProgramRun& run : std::exchange(before, std::move(runs))) {
            for (const Tensor& found : run.wait()) EXPECT_EQ(found.at((1 << 18) - 1), (1 << 18) - 1);
          }
        }
      },
      table);
}

}  // namespace
}  // namespace stretto
