#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "program/random_program.hpp"
#include "program/run_programs.hpp"
#include "stretto/program.hpp"
#include "stretto/tensor.hpp"
#include "support/error.hpp"

// Several clients on the same executors: turns, failures, and what one order for all is for.
namespace stretto {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Failures have names: the function, the program, its client, the run and the rank.
TEST(SeveralClients, AFailureIsNamedAndEndsItsProgramOnly) {
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
        FunctionTable table = program_functions();
        table["fail when asked"] = [](const FunctionCall& call) {
          if (call.group.rank() == call.argument && call.inputs[0].at(0) >= 300) throw std::runtime_error("bad luck");
          double one = 1;
          call.group.all_reduce(&one, &one, 1, DType::f64, ReduceOp::sum, Stream::inline_()).wait();
          call.outputs[0].copy_from(call.inputs[0]);
        };
        return table;
      }());
}

// A client whose code throws leaves by the destructor; the runs that have begun end, the others are given up, which their
// handles say, and the other client goes on.
TEST(SeveralClients, AClientThatGoesAwayLeavesOthersAlone) {
  std::atomic<int> calls = 0;
  FunctionTable table = program_functions();
  table["scale"] = [&, scale = table["scale"]](const FunctionCall& call) {
    if (call.client == "client of rank 2") ++calls;
    scale(call);
  };
  ProgramRun asked, silent;
  std::optional<CompiledProgram> its;
  run_threads(4, [&](const Communicator& world) {
    const auto body = [&] {
      ProgramRuntime runtime(world, table, {.clients = 2, .client = "client of rank " + std::to_string(world.rank())});
      if (runtime.is_executor()) return runtime.serve();
      const Program program = two_stages_of(1);
      const CompiledProgram compiled = runtime.compile(program);
      if (world.rank() == 2) {
        Program quiet("quiet");  // without outputs
        const Program::Group one = quiet.group(1);
        quiet.call("scale", one, {quiet.input(one, four)}, {four}, 2);
        its = compiled;
        asked = compiled.run(100'000, numbered_inputs(program, 0));
        silent = runtime.compile(quiet).run(100'000, numbered_inputs(quiet, 0));
        throw std::runtime_error("the client's own trouble");
      }
      for (int i = 0; i < 50; ++i) {
        expect_equal(compiled.run(1, numbered_inputs(program, i)).wait(), reference(program, numbered_inputs(program, i)));
      }
      runtime.leave();
    };
    if (world.rank() == 2) {
      EXPECT_EQ(sentence_of(body), "the client's own trouble");
      for (const ProgramRun& run : {asked, silent}) {
        EXPECT_TRUE(run.done());
        EXPECT_THAT(sentence_of(ErrorCode::peer_gave_up, [&] { run.wait(); }),
                    HasSubstr("Client 'client of rank 2' left before all runs of program"));
      }
      EXPECT_THAT(sentence_of(ErrorCode::invalid_argument, [&] { its->run(1, numbered_inputs(two_stages_of(1), 0)); }),
                  HasSubstr("its client has left"));
    } else {
      body();
    }
  });
  EXPECT_LT(calls, 300'000) << "all runs were done";
}

// What a client that leaves has on executors goes with it: values that it keeps, and inputs of runs that were given up.
TEST(SeveralClients, NothingStaysOfAClientThatHasLeft) {
  const ValueType mib{DType::f64, {1 << 17}, ValuePlacement::along(0)};
  Program program("large");
  const Program::Group pair = program.group(2);
  program.keep(program.call("scale", pair, {program.input(pair, mib)}, {mib}, 1).front());
  std::atomic<std::size_t> before = 0;
  std::atomic<bool> has_left = false;
  KeptValue kept;
  run_threads(4, [&](const Communicator& world) {
    std::optional<ProgramRuntime> runtime(std::in_place, world, program_functions(), ProgramRuntime::Options{.clients = 2});
    if (runtime->is_executor()) return runtime->serve();
    if (world.rank() == 2) {
      before = memory_use().bytes;
      {
        const CompiledProgram compiled = runtime->compile(program);
        kept = compiled.run(1, numbered_inputs(program, 0)).kept().front();
        compiled.run(100'000, numbered_inputs(program, 0));
      }
      runtime.reset();
      has_left = true;
      return;
    }
    while (!has_left) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (int i = 0; i < 5000 && memory_use().bytes > before + 100'000; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_LE(memory_use().bytes, before + 100'000) << "a value is 1 MiB";
    runtime->leave();
  });
}

// Clients' programs over overlapping groups, at random: none waits for another for ever.
TEST(SeveralClients, TwoClientsInterleave) {
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
TEST(SeveralClients, SharesFollowWeights) {
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
    for (std::size_t c = 0; c < 4; ++c) {
      EXPECT_NEAR(window[c], runs * weights[c] / sum, 1 + 4 * weights[c] / sum) << "client " << c;
    }
  }
}

// The control of TwoClientsInterleave: without one order for both clients, each executor does one of their functions while
// the other executor does the other, and each waits for the other for ever. Errors at the timeout name both.
TEST(SeveralClients, OrdersOfTheirOwnHang) {
  std::mutex devices[2];  // a device does one function at a time
  std::atomic<int> begun = 0, ended = 0;
  std::atomic<bool> over = false;  // a client has no run any more: nobody waits for what it would have done
  std::string sentences[2];
  run_threads(4, [&](const Communicator& world) {
    const FunctionTable table = {{"meet", [&](const FunctionCall& call) {
                                    const int rank = call.group.rank(), client = call.client == "A" ? 0 : 1;
                                    while (rank != client && begun < 2 && !over) std::this_thread::yield();  // the crossing
                                    const std::lock_guard device(devices[rank]);
                                    ++begun;
                                    const double timeout = world.job().timeout();
                                    world.job().set_timeout(1);  // of this operation only
                                    double one = 1;
                                    const Work sum =
                                        call.group.all_reduce(&one, &one, 1, DType::f64, ReduceOp::sum, Stream("sums"));
                                    const std::string why = sentence_of([&] { sum.wait(); });
                                    world.job().set_timeout(timeout);
                                    // A device that is free again would let the other client's function end.
                                    for (++ended; ended < 2 && !over;) std::this_thread::yield();
                                    if (!why.empty()) throw std::runtime_error(why);
                                  }}};
    const std::vector<Communicator> jobs = {world.subgroup({0, 1, 2}, "of A"), world.subgroup({0, 1, 3}, "of B")};
    std::vector<std::thread> threads;
    for (std::size_t c = 0; c < 2; ++c) {
      if (!jobs[c]) continue;
      threads.emplace_back([&, c] {
        ProgramRuntime runtime(jobs[c], table, {.client = c == 0 ? "A" : "B"});
        if (runtime.is_executor()) return runtime.serve();
        Program program("crossing");
        program.call("meet", program.group(2), {}, {});
        sentences[c] = sentence_of([&] { runtime.compile(program).run().wait(); });
        over = true;
        runtime.leave();
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  EXPECT_THAT(sentences[0], HasSubstr("Function 'meet' of program 'crossing' of client 'A'"));
  EXPECT_THAT(sentences[1], HasSubstr("Function 'meet' of program 'crossing' of client 'B'"));
  EXPECT_THAT(sentences[0] + sentences[1], HasSubstr("all_reduce"));
}

}  // namespace
}  // namespace stretto
