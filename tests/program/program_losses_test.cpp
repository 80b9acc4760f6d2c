// Processes of programs that die.
#include <gmock/gmock.h>

#include <csignal>

#include "core/fail.hpp"
#include "stretto/launch.hpp"
#include "stretto/program.hpp"

namespace stretto {
namespace {

Program doubling() {
  Program program("doubling");
  const ValueType type{DType::f64, {6}, ValuePlacement::along(0)};
  const Program::Group a = program.group(2), b = program.group(1);
  const Program::Value x = program.input(a, type);
  const Program::Value y = program.call("double", a, {x}, {type}).front();
  program.output(program.move(y, b, ValuePlacement::replicated()));
  return program;
}

FunctionTable deadly_functions() {
  return {{"double",
           [](const FunctionCall& call) {
             for (std::int64_t i = 0; i < call.inputs[0].size(); ++i) call.outputs[0].set(i, 2 * call.inputs[0].at(i));
           }},
          {"die", [](const FunctionCall& call) {
             if (call.group.rank() == call.argument) std::raise(SIGKILL);
             double one = 1;
             call.group.all_reduce(&one, &one, 1, DType::f64, ReduceOp::sum, Stream::inline_()).wait();
           }}};
}

void check_doubling(const CompiledProgram& compiled) {
  const Tensor input = Tensor::of(std::vector<double>{1, 2, 3, 4, 5, 6});
  const Tensor found = compiled.run(3, {input}).wait().front();
  for (std::int64_t i = 0; i < 6; ++i) ensure(found.at(i) == 2.0 * static_cast<double>(i + 1), "{} is wrong.", found.at(i));
}

// An executor is killed. The others go on without it, and the same program is bound to those that are left.
TEST(ProgramLosses, AProgramIsBoundToTheExecutorsThatAreLeft) {
  const Program program = doubling();
  const int status = launch(5,
                            [&](const Communicator& world) {
                              Communicator ranks = world;
                              for (const bool first : {true, false}) {
                                try {
                                  ProgramRuntime runtime(ranks, deadly_functions(), {});
                                  if (runtime.is_executor()) {
                                    runtime.serve();
                                    ensure(!first, "Nobody was lost.");
                                    return;
                                  }
                                  const CompiledProgram compiled = runtime.compile(program);
                                  check_doubling(compiled);
                                  if (first) {
                                    Program fatal("fatal");
                                    fatal.call("die", fatal.group(4), {}, {}, 1);
                                    runtime.compile(fatal).run().wait();
                                  }
                                  runtime.leave();
                                } catch (const Error& error) {
                                  if (!first || !error.is_of_another_rank()) throw;
                                  ensure(std::string(error.what()).find("ank 1") != std::string::npos,
                                         "This does not name rank 1: {}", error.what());
                                }
                                if (first) ranks = world.job().shrink();
                              }
                              ensure(ranks.size() == 4, "{} ranks are left.", ranks.size());
                            },
                            {.survivors_go_on = true});
  EXPECT_EQ(status, 0);
}

// The client is killed: executors do not wait for ever, but end with an error that names it.
TEST(ProgramLosses, AClientThatIsKilledEndsTheJob) {
  const int status = launch(4,
                            [&](const Communicator& world) {
                              try {
                                ProgramRuntime runtime(world, deadly_functions(), {});
                                if (!runtime.is_executor()) {
                                  const CompiledProgram compiled = runtime.compile(doubling());
                                  check_doubling(compiled);
                                  std::raise(SIGKILL);
                                }
                                runtime.serve();
                                ensure(false, "The client was not lost.");
                              } catch (const Error& error) {
                                if (!error.is_of_another_rank()) throw;
                                ensure(std::string(error.what()).find("ank 3") != std::string::npos,
                                       "This does not name rank 3: {}", error.what());
                              }
                              ensure(world.job().shrink().size() == 3, "3 ranks are left.");
                            },
                            {.survivors_go_on = true});
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace stretto
