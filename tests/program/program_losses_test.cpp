// Processes of programs that die.
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "core/fail.hpp"
#include "stretto/launch.hpp"
#include "stretto/program.hpp"
#include "support/error.hpp"
#include "support/transports.hpp"
#include "support/variables.hpp"
#include "transport/bootstrap/job.hpp"

namespace stretto {
namespace {

class ProgramLosses : public OverTransports {};
INSTANTIATE_TEST_SUITE_P(Transports, ProgramLosses, testing::ValuesIn(transports_here()));

constexpr int learnt_steps = 60;

// What processes of a job tell the test.
struct Shared {
  std::atomic<int> steps_done = 0;     // of the client that stays
  std::atomic<int> at_the_kill = 0;    // steps_done when the other one was killed
  std::atomic<int> calls_of_lost = 0;  // of the killed client's function
  std::atomic<int> clients_done = 0;   // with all that they check
  std::atomic<int> held = 0;           // calls of "hold" that have begun
  std::atomic<int> let_go = 0;         // calls of "hold" with a smaller argument may end
  std::atomic<pid_t> last_held = 0, to_kill = 0;
  std::atomic<double> bytes_in_die = 0;
  std::array<double, 6> result{};
};
class SharedPage {
 public:
  SharedPage()
      : shared_(new (mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Shared) {}
  ~SharedPage() { munmap(shared_, sizeof(Shared)); }
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;
  Shared* operator->() const { return shared_; }

 private:
  Shared* shared_;
};

const ValueType six{DType::f64, {6}, ValuePlacement::along(0)};

Program doubling() {
  Program program("doubling");
  const Program::Group a = program.group(2), b = program.group(1);
  const Program::Value y = program.call("double", a, {program.input(a, six)}, {six}).front();
  program.output(program.move(y, b, ValuePlacement::replicated()));
  return program;
}

Program calls(const std::string& function, int devices, std::int64_t argument = 0) {
  Program program(function + "s");
  program.call(function, program.group(devices), {}, {}, argument);
  return program;
}

// The bytes that tensors hold on one executor, in its process.
Program measuring() {
  Program program("measuring");
  program.output(program.call("measure", program.group(1), {}, {{DType::f64, {1}}}).front());
  return program;
}

// "learn" changes its state by what all devices have, so that a step that is left out, done twice or done in another order
// changes the bits.
FunctionTable functions_with_state(const SharedPage& shared) {
  return {{"double",
           [](const FunctionCall& call) {
             for (std::int64_t i = 0; i < call.inputs[0].size(); ++i) call.outputs[0].set(i, 2 * call.inputs[0].at(i));
           }},
          {"learn",
           [state = std::make_shared<double>(0.1)](const FunctionCall& call) {
             double most = *state + call.group.rank();
             call.group.all_reduce(&most, &most, 1, DType::f64, ReduceOp::max, Stream::inline_()).wait();
             *state = 3.7 * (most - 2) * (1 - *state);
             for (std::int64_t i = 0; i < call.inputs[0].size(); ++i) {
               call.outputs[0].set(i, call.inputs[0].at(i) * 0.9 + *state);
             }
             std::this_thread::sleep_for(std::chrono::milliseconds(5));
           }},
          {"sleep",
           [shared = shared.operator->()](const FunctionCall& call) {
             ++shared->calls_of_lost;
             std::this_thread::sleep_for(std::chrono::milliseconds(2));
             call.group.barrier(Stream::inline_()).wait();
           }},
          {"die",
           [shared = shared.operator->()](const FunctionCall& call) {
             if (call.group.rank() == 0) shared->bytes_in_die = static_cast<double>(memory_use().bytes);
             if (call.group.size() > 1) call.group.barrier(Stream::inline_()).wait();
             if (call.group.rank() == call.argument) std::raise(SIGKILL);
             call.group.barrier(Stream::inline_()).wait();
           }},
          {"hold",
           [shared = shared.operator->()](const FunctionCall& call) {
             shared->last_held = getpid();
             ++shared->held;
             while (shared->let_go <= call.argument) std::this_thread::sleep_for(std::chrono::milliseconds(1));
           }},
          {"measure", [](const FunctionCall& call) { call.outputs[0].set(0, static_cast<double>(memory_use().bytes)); }}};
}

void check_doubling(ProgramRuntime& runtime) {
  const Tensor input = Tensor::of(std::vector<double>{1, 2, 3, 4, 5, 6});
  const Tensor found = runtime.compile(doubling()).run(3, {input}).wait().front();
  for (std::int64_t i = 0; i < 6; ++i) ensure(found.at(i) == 2.0 * static_cast<double>(i + 1), "{} is wrong.", found.at(i));
}

void leave(ProgramRuntime& runtime, const SharedPage& shared) {
  runtime.leave();
  ++shared->clients_done;
}

// It cannot be compiled, as an executor is lost.
void expect_refusal_by_loss(ProgramRuntime& runtime, const Program& program, const std::string& words) {
  try {
    runtime.compile(program);
  } catch (const Error& error) {
    ensure(error.code() == ErrorCode::peer_gave_up && std::string(error.what()).find(words) != std::string::npos,
           "Not the refusal with '{}', but {}: {}", words, name(error.code()), error.what());
    return;
  }
  ensure(false, "Nothing was refused.");
}

// A value that stays on all three executors, changed step by step.
void learn(ProgramRuntime& runtime, const SharedPage& shared) {
  Program program("learning");
  const Program::Group all = program.group(3);
  const Program::Value next = program.call("learn", all, {program.kept_input(all, six)}, {six}).front();
  program.keep(next);
  program.output(program.move(next, all, ValuePlacement::replicated()));
  Program first("first");
  const Program::Group group = first.group(3);
  first.keep(first.call("double", group, {first.input(group, six)}, {six}).front());
  KeptValue value = runtime.compile(first).run(1, {Tensor::of(std::vector<double>(6, 0.25))}).kept().front();
  const CompiledProgram compiled = runtime.compile(program);
  for (int step = 0; step < learnt_steps; ++step) {
    const ProgramRun run = compiled.run(1, {}, {value});
    const Tensor output = run.wait().front();
    value = run.kept().front();
    std::memcpy(shared->result.data(), output.raw(), sizeof shared->result);
    ++shared->steps_done;
  }
}

// Three executors and two clients, of which the second one is killed if asked to be.
std::array<double, 6> learnt(bool kills) {
  const SharedPage shared;
  const int status = launch(5,
                            [&](const Communicator& world) {
                              ProgramRuntime runtime(world, functions_with_state(shared),
                                                     {.clients = 2, .client = world.rank() == 3 ? "stays" : "dies"});
                              if (runtime.is_executor()) return runtime.serve();
                              if (world.rank() == 3) {
                                learn(runtime, shared);
                                check_doubling(runtime);  // over the executors that worked for the other one
                              } else if (kills) {
                                const CompiledProgram asleep = runtime.compile(calls("sleep", 3));
                                const ProgramRun run = asleep.run(1'000'000);
                                while (shared->steps_done < 10 || shared->calls_of_lost < 20) std::this_thread::yield();
                                shared->at_the_kill = shared->steps_done.load();
                                std::raise(SIGKILL);
                              }
                              leave(runtime, shared);
                            },
                            {.survivors_go_on = true});
  EXPECT_EQ(status, 0);
  EXPECT_EQ(shared->steps_done, learnt_steps);
  EXPECT_EQ(shared->clients_done, kills ? 1 : 2);
  if (kills) {
    EXPECT_LT(shared->at_the_kill, learnt_steps / 2) << "the other client was killed in the middle";
    EXPECT_LT(shared->calls_of_lost, 3 * 100'000) << "its runs have ended";
  }
  return shared->result;
}

TEST_P(ProgramLosses, AKilledClientEndsItsOwnProgramsOnly) {
  const std::array<double, 6> alone = learnt(false), beside = learnt(true);
  EXPECT_EQ(std::memcmp(alone.data(), beside.data(), sizeof alone), 0) << alone[0] << " instead of " << beside[0];
}

TEST_P(ProgramLosses, ExecutorsEndWhenTheirOnlyClientIsKilled) {
  const SharedPage shared;
  EXPECT_EQ(launch(4,
                   [&](const Communicator& world) {
                     ProgramRuntime runtime(world, functions_with_state(shared), {});
                     if (runtime.is_executor()) return runtime.serve();
                     check_doubling(runtime);
                     const CompiledProgram asleep = runtime.compile(calls("sleep", 3));
                     asleep.run(1'000'000);
                     while (shared->calls_of_lost < 20) std::this_thread::yield();
                     std::raise(SIGKILL);
                   },
                   {.survivors_go_on = true}),
            0);
  EXPECT_LT(shared->calls_of_lost, 3 * 100'000);
}

// A wait that has been idle for a second looks at the job itself.
TEST_P(ProgramLosses, AClientThatIsKilledWhileAllIsQuietDisturbsNobody) {
  const SharedPage shared;
  EXPECT_EQ(launch(5,
                   [&](const Communicator& world) {
                     const bool stays = world.rank() == 3;
                     ProgramRuntime runtime(world, functions_with_state(shared),
                                            {.clients = 2, .client = stays ? "stays" : "dies"});
                     if (runtime.is_executor()) return runtime.serve();
                     if (stays) check_doubling(runtime);
                     std::this_thread::sleep_for(std::chrono::milliseconds(1500));
                     if (!stays) std::raise(SIGKILL);
                     std::this_thread::sleep_for(std::chrono::milliseconds(500));
                     check_doubling(runtime);
                     leave(runtime, shared);
                   },
                   {.survivors_go_on = true}),
            0);
  EXPECT_EQ(shared->clients_done, 1);
}

// Whoever does not need the executor goes on, and so does the one who does, when the program is bound to others.
TEST_P(ProgramLosses, AFunctionThatNeedsAKilledExecutorFailsByName) {
  const SharedPage shared;
  const int status =
      launch(6,
             [&](const Communicator& world) {
               const bool is_first = world.rank() == 4;
               ProgramRuntime runtime(world, functions_with_state(shared),
                                      {.clients = 2, .client = is_first ? "careless" : "careful"});
               if (runtime.is_executor()) return runtime.serve();
               if (!is_first) {  // on executors 0, 1 and 2, which are the least used
                 learn(runtime, shared);
                 return leave(runtime, shared);
               }
               while (shared->steps_done < 5) std::this_thread::yield();
               const CompiledProgram fatal = runtime.compile(calls("die", 1));
               const std::vector<int> bound = fatal.plan().groups.front();
               ensure(bound == std::vector<int>{3}, "The program is bound to executor {}.", bound.front());
               for (const char* const run : {"run 0", "run 1"}) {  // the second one is refused at once
                 const std::string sentence = sentence_of([&] { fatal.run().wait(); });
                 for (const char* const part : {"Function 'die' of program 'dies' of client 'careless' failed in ", run,
                                                " on rank 3: Rank 3 ", "was killed or crashed"}) {
                   ensure(sentence.find(part) != std::string::npos, "This lacks '{}': {}", part, sentence);
                 }
               }
               expect_refusal_by_loss(runtime, calls("sleep", 4), "has 4 devices; of 4 executors, 3 are left: Rank 3 (");
               check_doubling(runtime);
               leave(runtime, shared);
             },
             {.survivors_go_on = true});
  EXPECT_EQ(status, 0);
  EXPECT_EQ(shared->clients_done, 2);
}

// In the middle of a collective: the others wait for it there.
TEST_P(ProgramLosses, AKilledExecutorEndsTheCollectivesOfItsPrograms) {
  const SharedPage shared;
  EXPECT_EQ(
      launch(5,
             [&](const Communicator& world) {
               ProgramRuntime runtime(world, functions_with_state(shared), {});
               if (runtime.is_executor()) return runtime.serve();
               const CompiledProgram fatal = runtime.compile(calls("die", 4, 1)),
                                     behind = runtime.compile(calls("sleep", 4));
               const ProgramRun first = fatal.run(3), waiting = behind.run();  // which has not begun when the executor dies
               const std::string sentence = sentence_of([&] { first.wait(); });
               const std::string of_waiting = sentence_of([&] { waiting.wait(); });
               ensure(of_waiting.find("Function 'sleep' of program 'sleeps'") != std::string::npos, "Another one: {}",
                      of_waiting);
               for (const char* const part : {"Function 'die' of program 'dies' of client 'client' failed in run 0 on rank ",
                                              "ank 1 ", "was killed or crashed"}) {
                 ensure(sentence.find(part) != std::string::npos, "This lacks '{}': {}", part, sentence);
               }
               for (int i = 0; i < 3; ++i) check_doubling(runtime);
               leave(runtime, shared);
             },
             {.survivors_go_on = true}),
      0);
}

// Executors 0 and 1 make groups with executor 2 for the program of client "killed" or "waits", which compiles it; executor 2
// is held up in a function of another client. That client is killed, or executor 2 is: executors 0 and 1 do something else
// then, although executor 2 has not come.
void lose_while_groups_are_made(bool loses_client) {
  const SharedPage shared;
  const Listener listener = listen_on("127.0.0.1", 0);
  close(listener.socket);
  const Variable setting("STRETTO_PROGRAMS_PORT", std::to_string(listener.port));
  const int status =
      launch(5,
             [&](const Communicator& world) {
               ProgramRuntime runtime(world, functions_with_state(shared), {.clients = 2});
               if (runtime.is_executor()) return runtime.serve();
               if (world.rank() == 4) {
                 if (loses_client) shared->to_kill = getpid();
                 while (shared->held < 1) std::this_thread::yield();
                 expect_refusal_by_loss(runtime, calls("sleep", 3), " Rank 2 (process ");
                 return leave(runtime, shared);
               }
               std::vector<CompiledProgram> measure, hold;
               for (int executor = 0; executor < 3; ++executor) measure.push_back(runtime.compile(measuring()));
               for (int executor = 0; executor < 3; ++executor) hold.push_back(runtime.compile(calls("hold", 1, executor)));
               for (const std::vector<CompiledProgram>& all : {measure, hold}) {
                 for (std::size_t i = 0; i < all.size(); ++i) {
                   const int executor = all[i].plan().groups.front().front();
                   ensure(executor == static_cast<int>(i), "Program {} is on executor {}.", i, executor);
                 }
               }
               const ProgramRun first = hold[1].run();
               while (shared->held < 1) std::this_thread::yield();
               while (programs_state("127.0.0.1", listener.port).find("being prepared") == std::string::npos) {
                 std::this_thread::yield();
               }
               measure[2].run().wait();  // behind it, executor 2 knows the program of the other client
               const ProgramRun second = hold[2].run(), behind = measure[1].run();
               while (shared->held < 2) std::this_thread::yield();
               shared->let_go = 2;
               behind.wait();  // behind it, all executors know it, and make its groups
               if (!loses_client) shared->to_kill = shared->last_held.load();
               kill(shared->to_kill, SIGKILL);
               measure[0].run().wait();
               measure[1].run().wait();
               shared->let_go = 3;
               const std::string sentence = sentence_of([&] { second.wait(); });
               ensure(sentence.empty() == loses_client, "It ended with: '{}'", sentence);
               leave(runtime, shared);
             },
             {.survivors_go_on = true});
  EXPECT_EQ(status, 0);
  EXPECT_EQ(shared->clients_done, loses_client ? 1 : 2);
}

TEST_P(ProgramLosses, GroupsForAKilledClientAreGivenUp) { lose_while_groups_are_made(true); }

TEST_P(ProgramLosses, GroupsWithAKilledExecutorAreGivenUp) { lose_while_groups_are_made(false); }

// What a program has of its inputs goes with the executor that it needs, also when runs are asked for behind its end.
TEST_P(ProgramLosses, InputsOfAProgramThatHasLostAnExecutorAreFreed) {
  constexpr std::int64_t elements = 1 << 20;
  const SharedPage shared;
  const int status =
      launch(3,
             [&](const Communicator& world) {
               ProgramRuntime runtime(world, functions_with_state(shared), {});
               if (runtime.is_executor()) return runtime.serve();
               Program program("fatal");
               const Program::Group both = program.group(2);
               program.call("die", both, {program.input(both, {DType::f64, {elements}})}, {}, 1);
               const CompiledProgram measure = runtime.compile(measuring()), fatal = runtime.compile(program);
               const Tensor input = Tensor::zeros({elements}, DType::f64);
               const double before = measure.run().wait().front().at(0);
               const ProgramRun first = fatal.run(1, {input}), second = fatal.run(1, {input});
               for (const ProgramRun& run : {first, second, fatal.run(1, {input})}) {
                 ensure(!sentence_of([&] { run.wait(); }).empty(), "A run without its executor has ended well.");
               }
               ensure(shared->bytes_in_die >= 8 * static_cast<double>(elements),
                      "A run has its inputs, and {} bytes are there.", shared->bytes_in_die.load());
               // The last run's input may still be on its way.
               for (int look = 0; look < 5000 && measure.run().wait().front().at(0) > before; ++look)
                 std::this_thread::yield();
               const double behind = measure.run().wait().front().at(0);
               ensure(behind <= before, "{} bytes before, {} behind.", before, behind);
               leave(runtime, shared);
             },
             {.survivors_go_on = true});
  EXPECT_EQ(status, 0);
  EXPECT_EQ(shared->clients_done, 1);
}

// The scheduler is on rank 0: without it nothing goes on.
TEST(ProgramLosses0, RanksEndWithRank0) {
  const SharedPage shared;
  EXPECT_EQ(launch(4,
                   [&](const Communicator& world) {
                     ProgramRuntime runtime(world, functions_with_state(shared), {});
                     if (runtime.is_executor()) return runtime.serve();
                     runtime.compile(calls("die", 3, 0)).run().wait();
                   }),
            128 + SIGKILL);
}

}  // namespace
}  // namespace stretto
