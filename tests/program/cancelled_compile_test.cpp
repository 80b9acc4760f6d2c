// compile() that is cancelled while an executor is stopped.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <stop_token>
#include <string>
#include <thread>

#include "collectives/communicator/group.hpp"
#include "core/fail.hpp"
#include "stretto/launch.hpp"
#include "stretto/program.hpp"
#include "support/variables.hpp"
#include "transport/bootstrap/job.hpp"

namespace stretto {
namespace {

Program on(int devices, const std::string& name) {
  Program program(name);
  program.call("idle", program.group(devices), {}, {});
  return program;
}

template <class Condition>
void wait_until(Condition condition) {
  while (!condition()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

TEST(CancelledCompile, NamesTheStoppedExecutorAndLeavesTheOthersFree) {
  constexpr int ranks = 4, stopped = 2;  // the last rank is the client
  const Listener listener = listen_on("127.0.0.1", 0);
  close(listener.socket);
  const Variable setting("STRETTO_PROGRAMS_PORT", std::to_string(listener.port));
  const auto waits = [&](const std::string& name) {  // for the stopped executor alone
    const std::string state = programs_state("127.0.0.1", listener.port);
    const auto begin = state.find("program '" + name + "'");
    return begin != std::string::npos && state.find("being prepared on executors 2\n", begin) != std::string::npos;
  };
  const int status = launch(ranks, [&](const Communicator& world) {
    std::array<std::int32_t, ranks> processes{};
    const std::int32_t mine = getpid();
    world.all_gather(&mine, processes.data(), 1, DType::i32, Stream::inline_()).wait();
    ProgramRuntime runtime(world, {{"idle", [](const FunctionCall&) {}}}, {});
    if (runtime.is_executor()) return runtime.serve();
    const JobControl& job = Communicator::Group::of(world).context().job();
    kill(processes[stopped], SIGSTOP);
    wait_until([&] { return job.news_of(stopped).find("no sign of life") != std::string::npos; });
    std::stop_source source;
    const std::jthread cancels([&] {
      wait_until([&] { return waits("all"); });
      source.request_stop();
    });
    std::string sentence;
    try {
      runtime.compile(on(3, "all"), Dispatch::parallel, source.get_token());
    } catch (const Error& error) {
      ensure(error.code() == ErrorCode::timeout, "Not the code of a timeout: {}", error.what());
      sentence = error.what();
    }
    for (const std::string& part :
         {std::string("Program 'all' was cancelled when it had waited "),
          std::string(" s for rank 2 to prepare it: Rank 2 ("), fmt::format("process {}", processes[stopped]),
          std::string("has given no sign of life for ")}) {
      ensure(sentence.find(part) != std::string::npos, "This lacks '{}': {}", part, sentence);
    }
    for (int i = 0; i < 2; ++i) runtime.compile(on(2, "beside")).run(3).wait();  // on the others
    // Nobody cancels this one, which waits until the executor goes on.
    const std::jthread continues([&] {
      wait_until([&] { return waits("all again"); });
      kill(processes[stopped], SIGCONT);
    });
    runtime.compile(on(3, "all again"), Dispatch::parallel, std::stop_source().get_token()).run().wait();
    runtime.leave();
  });
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace stretto
