// What the scheduler says at its port.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "program/run_programs.hpp"
#include "stretto/program.hpp"
#include "support/error.hpp"
#include "support/variables.hpp"
#include "transport/bootstrap/job.hpp"
#include "transport/bootstrap/socket.hpp"

namespace stretto {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

int free_port() {
  const Listener listener = listen_on("127.0.0.1", 0);
  const Socket closes(listener.socket);
  return listener.port;
}

TEST(SchedulerState, SaysWhatRunsWhatWaitsAndForWhom) {
  const int port = free_port();
  const Variable setting("STRETTO_PROGRAMS_PORT", std::to_string(port));
  const auto state = [&] { return programs_state("127.0.0.1", port); };
  std::atomic<bool> is_held = true, is_over = false;
  FunctionTable table = program_functions();
  table["hold"] = [&](const FunctionCall&) {
    while (is_held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  with_clients(
      2, 2,
      [&](ProgramRuntime& runtime, int number) {
        if (number == 1) {  // has nothing to do
          while (!is_over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          return;
        }
        Program program("held");
        program.call("hold", program.group(1), {}, {});
        {
          const CompiledProgram compiled = runtime.compile(program);
          const ProgramRun five = compiled.run(5), one = compiled.run(1);
          const auto text_with = [&](const std::string& words) {
            std::string text;
            for (int look = 0; look < 5000 && text.find(words) == std::string::npos; ++look) {
              text = state();
              std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
            return text;
          };
          EXPECT_THAT(
              text_with("run 1 is under way"),
              AllOf(HasSubstr("Scheduler of programs, process "), HasSubstr("; executors: 2, clients: 1, programs: 1\n"),
                    HasSubstr("Client 'client 0', rank 2, weight 1: 0 runs over\n"),
                    HasSubstr("  program 'held' on executors 0: 2 calls of run(), 4 runs wait; run 0 is under way on "
                              "executors 0; run 1 is under way on executors 0\n"),
                    HasSubstr("Executor 0: 2 runs given to it are not over; in the last 10 s busy 0%\n"),
                    HasSubstr("Executor 1: 0 runs given to it are not over; in the last 10 s busy 0%\n")));
          std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // a whole second, of which the state tells
          is_held = false;
          five.wait();
          one.wait();
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1000));
        EXPECT_THAT(state(),
                    AllOf(HasSubstr("programs: 0\nClient 'client 0', rank 2, weight 1: 6 runs over\nExecutor 0: 0 runs"),
                          ContainsRegex("Executor 0: .* busy [12][0-9]%: [12][0-9]% for 'client 0'\n"),
                          HasSubstr("Executor 1: 0 runs given to it are not over; in the last 10 s busy 0%\n")));
        is_over = true;
      },
      table);
  EXPECT_THAT(sentence_of(ErrorCode::unavailable, [&] { programs_state("127.0.0.1", port, 0.3); }),
              testing::StartsWith("No scheduler says its state at 127.0.0.1:" + std::to_string(port)));
}

}  // namespace
}  // namespace stretto
