// Executors and clients that run random programs until a file is there; programs_test.py kills and halts some of them
// meanwhile:
//   random_programs EXECUTORS CLIENTS SEED FILE
// Each rank prints its process when all are there. A client compares all results with the oracle; it prints each error that
// it meets, and at its end what becomes of a program on all executors.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "program/random_program.hpp"
#include "program/run_programs.hpp"
#include "stretto/error.hpp"

namespace {

using namespace stretto;

void say(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

// Some calls take a while, so that ranks are lost in the midst of them, and few of them fail.
FunctionTable functions() {
  FunctionTable table = program_functions();
  const auto scale = table.at("scale");
  table["scale"] = [scale](const FunctionCall& call) {
    thread_local std::mt19937 draw(static_cast<unsigned>(getpid()));
    if (draw() % 4 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(draw() % 4));
    if (draw() % 1000 == 0) throw std::runtime_error("bad luck");
    scale(call);
  };
  return table;
}

void compare(const std::vector<Tensor>& found, const std::vector<Tensor>& expected) {
  for (std::size_t o = 0; o < expected.size(); ++o) {
    for (std::int64_t i = 0; i < expected[o].size(); ++i) {
      if (found.at(o).at(i) == expected[o].at(i)) continue;
      throw std::runtime_error(fmt::format("Output {} has {} at {}, not {}.", o, found[o].at(i), i, expected[o].at(i)));
    }
  }
}

class RandomClient {
 public:
  RandomClient(ProgramRuntime& runtime, int executors, int number, unsigned seed)
      : runtime_(runtime), executors_(executors), number_(number), draw_(seed * 100 + static_cast<unsigned>(number)) {}

  void run_until(const std::string& file) {
    while (!std::filesystem::exists(file)) {
      meeting_losses([&] { run_program(); });
    }
    Program program("on all");
    const Program::Group all = program.group(executors_);
    program.output(program.call("scale", all, {program.input(all, four)}, {four}, 3).front());
    const std::vector<Tensor> inputs = numbered_inputs(program, number_);
    std::string end = "on all executors";
    try {
      for (bool is_over = false; !is_over;) {
        const CompiledProgram compiled = runtime_.compile(program);
        meeting_losses([&] {
          compare(compiled.run(1, inputs).wait(), reference(program, inputs));
          is_over = true;
        });
      }
    } catch (const Error& error) {
      if (error.code() != ErrorCode::peer_gave_up) throw;
      end = error.what();
    }
    say(fmt::format("client {} ends after {} runs: {}", number_, runs_, end));
  }

 private:
  void run_program() {
    const Program program = random_program(draw_, executors_, 1 + static_cast<int>(draw_() % 8));
    const auto dispatch = static_cast<Dispatch>(draw_() % 3);
    const CompiledProgram compiled = runtime_.compile(program, dispatch);
    std::vector<std::pair<ProgramRun, int>> runs;
    for (auto calls = 1 + draw_() % 4; calls > 0; --calls) {
      const int first = static_cast<int>(draw_() % 100);
      runs.emplace_back(compiled.run(1 + static_cast<int>(draw_() % 3), numbered_inputs(program, first)), first);
    }
    for (const auto& [run, first] : runs) {
      meeting_losses([&, &its = run, from = first] {
        compare(its.wait(), reference(program, numbered_inputs(program, from)));
        ++runs_;
      });
    }
  }
  template <class Body>
  void meeting_losses(Body body) {
    try {
      body();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::peer_gave_up) throw;
      if (met_.insert(error.what()).second) say(fmt::format("client {} meets: {}", number_, error.what()));
    }
  }

  ProgramRuntime& runtime_;
  int executors_, number_;
  std::mt19937 draw_;
  std::set<std::string> met_;
  std::int64_t runs_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const int executors = std::atoi(argv[1]), clients = std::atoi(argv[2]);
  return launch(executors + clients,
                [&](const Communicator& world) {
                  const int number = world.rank() - executors;
                  ProgramRuntime runtime(world, functions(),
                                         {.clients = clients, .client = fmt::format("client {}", number)});
                  world.barrier(Stream::inline_()).wait();
                  say(fmt::format("{} {} is process {}", number < 0 ? "executor" : "client",
                                  number < 0 ? world.rank() : number, getpid()));
                  if (runtime.is_executor()) return runtime.serve();
                  RandomClient(runtime, executors, number, static_cast<unsigned>(std::atoi(argv[3]))).run_until(argv[4]);
                  runtime.leave();
                },
                {.survivors_go_on = true});
}
