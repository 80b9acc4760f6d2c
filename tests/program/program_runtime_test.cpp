#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "program/random_program.hpp"
#include "program/value_parts.hpp"
#include "stretto/launch.hpp"
#include "stretto/ledger.hpp"
#include "stretto/program.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Options = ProgramRuntime::Options;

const ValueType four{DType::f64, {4}, ValuePlacement::along(0)};

// "scale" multiplies by its argument; "sum" gives each device three numbers of its part: its sum, its size, and the sum over
// the group of the devices' numbers in it, for which it communicates.
FunctionTable functions() {
  return {{"scale",
           [](const FunctionCall& call) {
             for (std::int64_t i = 0; i < call.inputs[0].size(); ++i) {
               call.outputs[0].set(i, call.inputs[0].at(i) * static_cast<double>(call.argument));
             }
           }},
          {"sum",
           [](const FunctionCall& call) {
             double sum = 0;
             for (std::int64_t i = 0; i < call.inputs[0].size(); ++i) sum += call.inputs[0].at(i);
             double devices = call.group.rank();
             call.group.all_reduce(&devices, &devices, 1, DType::f64, ReduceOp::sum, Stream::inline_()).wait();
             const Tensor result = Tensor::of(std::vector{sum, static_cast<double>(call.inputs[0].size()), devices});
             for (std::int64_t i = 0; i < call.outputs[0].size(); ++i) call.outputs[0].set(i, result.at(i));
           }},
          {"fail", [](const FunctionCall& call) {
             if (call.argument == call.group.rank()) throw std::runtime_error("bad luck");
             double one = 1;
             call.group.all_reduce(&one, &one, 1, DType::f64, ReduceOp::sum, Stream::inline_()).wait();
           }}};
}

// The oracle: whole values in one process.
std::vector<Tensor> reference(const Program& program, const std::vector<Tensor>& inputs) {
  std::vector<Tensor> values(program.values().size());
  for (std::size_t i = 0; i < inputs.size(); ++i) values[static_cast<std::size_t>(program.inputs()[i])] = inputs[i];
  for (const Program::Step& step : program.steps()) {
    const Program::TypedValue& from = program.values()[static_cast<std::size_t>(step.inputs[0])];
    const auto out = static_cast<std::size_t>(step.outputs[0]);
    const Tensor& in = values[static_cast<std::size_t>(step.inputs[0])];
    const Tensor result(program.values()[out].type.shape, DType::f64);
    if (step.kind == Program::StepKind::move) {
      result.copy_from(in);
    } else if (step.kind == Program::StepKind::reduce) {
      for (std::int64_t i = 0; i < result.size(); ++i) {
        double most = in.at(i);
        for (std::int64_t r = 1; r < in.size() / result.size(); ++r) most = std::max(most, in.at(r * result.size() + i));
        result.set(i, most);
      }
    } else if (step.function == "scale") {
      for (std::int64_t i = 0; i < in.size(); ++i) result.set(i, in.at(i) * static_cast<double>(step.argument));
    } else {
      const int devices = program.groups()[static_cast<std::size_t>(step.group)];
      std::vector<int> all;
      for (int d = 0; d < devices; ++d) all.push_back(d);
      const Division division = division_of(from.type, all);
      for (int d = 0; d < devices; ++d) {
        double sum = 0;
        const Box& box =
            division.boxes[static_cast<std::size_t>(d)].empty() ? Box{} : division.boxes[static_cast<std::size_t>(d)][0];
        const std::int64_t columns = from.type.shape.size() > 1 ? from.type.shape[1] : 1;
        for (std::int64_t i = 0; i < in.size() && box.elements() > 0; ++i) {
          const bool row = box.begin[0] <= i / columns && i / columns < box.end[0];
          const bool column = columns == 1 || (box.begin[1] <= i % columns && i % columns < box.end[1]);
          if (row && column) sum += in.at(i);
        }
        result.set(std::int64_t{3} * d, sum);
        result.set(std::int64_t{3} * d + 1, static_cast<double>(division.elements(d)));
        result.set(std::int64_t{3} * d + 2, devices * (devices - 1) / 2.0);
      }
    }
    values[out] = result;
  }
  std::vector<Tensor> outputs;
  for (const int output : program.outputs()) outputs.push_back(values[static_cast<std::size_t>(output)]);
  return outputs;
}

std::vector<Tensor> numbered_inputs(const Program& program, int first) {
  std::vector<Tensor> inputs;
  for (const int input : program.inputs()) {
    const Tensor tensor(program.values()[static_cast<std::size_t>(input)].type.shape, DType::f64);
    for (std::int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, static_cast<double>(first + i));
    inputs.push_back(tensor);
  }
  return inputs;
}

void expect_equal(const std::vector<Tensor>& found, const std::vector<Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t o = 0; o < found.size(); ++o) {
    ASSERT_EQ(found[o].size(), expected[o].size());
    for (std::int64_t i = 0; i < found[o].size(); ++i) ASSERT_EQ(found[o].at(i), expected[o].at(i)) << "output " << o;
  }
}

// Runs client(runtime, number of the client) on the last ranks, and serves on the others.
void with_clients(int executors, int clients, const std::function<void(ProgramRuntime&, int)>& client,
                  const FunctionTable& table = functions(), const std::vector<double>& weights = {}) {
  run_threads(executors + clients, [&](const Communicator& world) {
    const int number = world.rank() - executors;
    Options options{.clients = clients, .client = "client " + std::to_string(number)};
    if (number >= 0 && !weights.empty()) options.weight = weights[static_cast<std::size_t>(number)];
    ProgramRuntime runtime(world, table, options);
    if (runtime.is_executor()) return runtime.serve();
    client(runtime, number);
    runtime.leave();
  });
}

std::uint64_t control_messages(const Communicator& world) {
  std::uint64_t sent = 0;
  for (const Record& record : world.job().ledger().records()) {
    sent += record.tag == "program" && record.collective == Collective::send ? 1 : 0;
  }
  return sent;
}

TEST(ProgramRuntime, RandomProgramsAreThoseOfAnOracle) {
  for (int executors = 1; executors <= 4; ++executors) {
    for (const Dispatch dispatch : {Dispatch::parallel, Dispatch::sequential, Dispatch::op_by_op}) {
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
  }
}

// "twice" on two devices, the result to two others, "twice" again, and back to the client.
Program two_stages_of(int devices) {
  Program program("two stages");
  const Program::Group a = program.group(devices), b = program.group(devices);
  const Program::Value x = program.input(a, four);
  const Program::Value y = program.call("scale", a, {x}, {four}, 2).front();
  program.output(program.call("scale", b, {program.move(y, b, ValuePlacement::along(0))}, {four}, 2).front());
  return program;
}

TEST(ProgramRuntime, ARunIsOneMessageToEachExecutor) {
  constexpr int runs = 10;
  const auto messages_of_scheduler = [](Dispatch dispatch) {
    std::atomic<std::uint64_t> sent = 0;
    run_threads(5, [&](const Communicator& world) {
      ProgramRuntime runtime(world, functions(), {});
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
  // Rank 0 is an executor itself, and sends the others the program, each run, and goodbye; the client: compiled, finished,
  // executor 0's goodbye.
  const std::uint64_t parallel = messages_of_scheduler(Dispatch::parallel);
  EXPECT_EQ(parallel, 3u * (1 + runs + 1) + 3);
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
                AllOf(HasSubstr("'nothing'"), HasSubstr("rank 0"), HasSubstr("'scale', 'sum'")));
    Program good("good");
    const Program::Group pair = good.group(2);
    good.output(good.call("scale", pair, {good.input(pair, four)}, {four}, 3).front());
    const CompiledProgram compiled = runtime.compile(good);
    EXPECT_THAT(sentence_of([&] { compiled.run(1); }), HasSubstr("has 1 inputs, and run() got 0"));
    EXPECT_THAT(sentence_of([&] { compiled.run(0, {Tensor({4}, DType::f64)}); }), HasSubstr("to run 0 times"));
    EXPECT_THAT(sentence_of([&] { compiled.run(1, {Tensor({3}, DType::f64)}); }), HasSubstr("4 elements of f64"));
    expect_equal(compiled.run(1, numbered_inputs(good, 0)).wait(), reference(good, numbered_inputs(good, 0)));
  });
  run_threads(2, [](const Communicator& world) {
    EXPECT_THAT(sentence_of([&] { const ProgramRuntime runtime(world, {}, {.clients = 2}); }),
                HasSubstr("2 clients of 2 ranks leave no executor"));
  });
}

// Failures have names: the function, the program, its client, the run and the rank.
TEST(ProgramRuntime, AFailureIsNamedAndEndsItsProgramOnly) {
  with_clients(
      3, 2,
      [](ProgramRuntime& runtime, int number) {
        if (number == 1) {  // another client on the same executors
          Program fine("fine");
          const Program::Group all = fine.group(3);
          fine.output(fine.call("scale", all, {fine.input(all, four)}, {four}, 2).front());
          const CompiledProgram compiled = runtime.compile(fine);
          for (int i = 0; i < 200; ++i) {
            expect_equal(compiled.run(1, numbered_inputs(fine, i)).wait(), reference(fine, numbered_inputs(fine, i)));
          }
          return;
        }
        // Rank 1 fails in the third call; the others wait for it in a collective, or for what it makes.
        Program program("unlucky");
        const Program::Group all = program.group(3);
        const Program::Group first = program.group(1);
        const Program::Value x = program.input(all, four);
        const Program::Value y = program.call("scale", all, {x}, {four}, 3).front();
        const Program::Value z = program.call("fail when asked", all, {y}, {four}, 1).front();
        program.output(
            program.move(program.call("scale", all, {z}, {four}, 2).front(), first, ValuePlacement::replicated()));
        const CompiledProgram compiled = runtime.compile(program);
        for (int round = 0; round < 5; ++round) {
          // Other runs are in flight behind it.
          const std::vector<Tensor> good = numbered_inputs(program, 0), bad = numbered_inputs(program, 100);
          const ProgramRun before = compiled.run(3, good);
          EXPECT_EQ(before.wait().front().at(1), 6);
          const ProgramRun failing = compiled.run(1, bad), behind = compiled.run(5, good);
          const std::string sentence = sentence_of(ErrorCode::peer_gave_up, [&] { failing.wait(); });
          EXPECT_THAT(sentence,
                      AllOf(HasSubstr("Function 'fail when asked' of program 'unlucky' of client 'client 0' failed in run"),
                            HasSubstr("on rank 1: bad luck")));
          try {  // it was in flight when the run before it failed, or came later
            behind.wait();
          } catch (const Error& error) {
            EXPECT_EQ(error.what(), sentence);
          }
        }
        EXPECT_EQ(compiled.run(2, numbered_inputs(program, 0)).wait().front().at(3), 18) << "the groups are usable again";
      },
      [] {
        FunctionTable table = functions();
        table["fail when asked"] = [](const FunctionCall& call) {
          if (call.group.rank() == call.argument && call.inputs[0].at(0) >= 300) throw std::runtime_error("bad luck");
          double one = 1;
          call.group.all_reduce(&one, &one, 1, DType::f64, ReduceOp::sum, Stream::inline_()).wait();
          call.outputs[0].copy_from(call.inputs[0]);
        };
        return table;
      }());
}

// A client whose code throws leaves by the destructor; the runs that it had asked for end, the other goes on.
TEST(ProgramRuntime, AClientThatGoesAwayLeavesOthersAlone) {
  run_threads(4, [](const Communicator& world) {
    const auto body = [&] {
      ProgramRuntime runtime(world, functions(), {.clients = 2, .client = "client"});
      if (runtime.is_executor()) return runtime.serve();
      const Program program = two_stages_of(1);
      const CompiledProgram compiled = runtime.compile(program);
      if (world.rank() == 2) {
        compiled.run(100'000, numbered_inputs(program, 0));
        throw std::runtime_error("the client's own trouble");
      }
      for (int i = 0; i < 50; ++i) {
        expect_equal(compiled.run(1, numbered_inputs(program, i)).wait(), reference(program, numbered_inputs(program, i)));
      }
      runtime.leave();
    };
    if (world.rank() == 2) {
      EXPECT_EQ(sentence_of(body), "the client's own trouble");
    } else {
      body();
    }
  });
}

// Clients' programs over overlapping groups, at random: none waits for another for ever.
TEST(ProgramRuntime, TwoClientsInterleave) {
  with_clients(4, 2, [](ProgramRuntime& runtime, int number) {
    std::mt19937 draw(static_cast<unsigned>(50 + number));
    std::vector<Program> programs;
    std::vector<CompiledProgram> compiled;
    while (programs.size() < 6) {
      Program program = random_program(draw, 4, 6);
      if (program.steps().empty()) continue;
      compiled.push_back(runtime.compile(program));
      programs.push_back(std::move(program));
    }
    std::vector<std::pair<std::size_t, ProgramRun>> runs;
    for (int i = 0; i < 500; ++i) {
      const std::size_t which = draw() % programs.size();
      runs.emplace_back(which, compiled[which].run(1, numbered_inputs(programs[which], static_cast<int>(which))));
      if (draw() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(draw() % 300));
    }
    for (const auto& [which, run] : runs) {
      expect_equal(run.wait(), reference(programs[which], numbered_inputs(programs[which], static_cast<int>(which))));
    }
  });
}

// Clients with weights get shares of the runs that all of them ask for.
TEST(ProgramRuntime, SharesFollowWeights) {
  for (const std::vector<double>& weights : {std::vector<double>{1, 1, 1, 1}, std::vector<double>{1, 2, 4, 8}}) {
    std::vector<int> order;  // of runs on the only executor
    FunctionTable table;
    std::atomic<int> compiled_by = 0, submitted = 0;
    table["note"] = [&](const FunctionCall& call) {
      while (submitted < 4) std::this_thread::yield();             // all have asked for runs
      std::this_thread::sleep_for(std::chrono::microseconds(20));  // so that the scheduler hears of all requests soon
      order.push_back(call.client.back() - '0');
    };
    with_clients(
        1, 4,
        [&](ProgramRuntime& runtime, int) {
          Program program("p");
          program.call("note", program.group(1), {}, {});
          const CompiledProgram compiled = runtime.compile(program);
          ++compiled_by;
          while (compiled_by < 4) std::this_thread::yield();  // executors come to it in the order of runs
          const ProgramRun run = compiled.run(3000);
          ++submitted;
          run.wait();
        },
        table, weights);
    ASSERT_EQ(order.size(), 12'000u);
    // From when all had asked until the first had all its runs.
    const auto first_of = [&](int client) { return std::ranges::find(order, client) - order.begin(); };
    const auto begin = std::max({first_of(0), first_of(1), first_of(2), first_of(3)});
    std::vector<int> total(4), window(4);
    for (std::size_t i = 0; i < order.size(); ++i) {
      const auto client = static_cast<std::size_t>(order[i]);
      if (++total[client] == 3000) break;
      if (static_cast<std::ptrdiff_t>(i) >= begin) ++window[client];
    }
    double runs = 0, sum = 0;
    for (std::size_t c = 0; c < 4; ++c) runs += window[c], sum += weights[c];
    EXPECT_GT(runs, 1000);
    for (std::size_t c = 0; c < 4; ++c) EXPECT_NEAR(window[c], runs * weights[c] / sum, 3) << "client " << c;
  }
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

}  // namespace
}  // namespace stretto
