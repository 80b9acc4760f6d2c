// Jobs whose ranks do not do the same, for flight_tool_test.py. Four ranks; the argument names the case.
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "stretto/stretto.hpp"

namespace {

using namespace stretto;

void sum(const Communicator& ranks, std::int64_t count, const char* tag = "", CallSite site = CallSite::here()) {
  std::vector<float> values(static_cast<std::size_t>(count));
  ranks
      .all_reduce(values.data(), values.data(), count, DType::f32, ReduceOp::sum, Stream::inline_(),
                  {.tag = tag, .site = site})
      .wait();
}

void sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// As a step of training has it: sums of several sizes at different lines.
void step(const Communicator& world, bool leaves_one_out) {
  sum(world, 100);
  if (!leaves_one_out) sum(world, 100);  // LEFT OUT
  sum(world, 100);
}

void skip(const Communicator& world) {
  for (int i = 0; i < 20; ++i) step(world, world.rank() == 3 && i == 10);
}

void other_shape(const Communicator& world) {
  sum(world, 100);
  if (world.rank() != 3) sum(world, 5000);
  world.barrier(Stream::inline_()).wait();
  sum(world, 100);
}

void swap(const Communicator& world) {
  const auto first = [&] { sum(world, 64, "first"); };    // FIRST
  const auto second = [&] { sum(world, 64, "second"); };  // SECOND
  const bool swaps = world.rank() == 1 || world.rank() == 2;
  swaps ? second() : first();
  swaps ? first() : second();
  for (int i = 0; i < 3; ++i) sum(world, 8);
  world.job().write_flight(setting("STRETTO_FLIGHT_DIR"));
}

void circle(const Communicator& world) {
  const Communicator other = world.duplicate("other");
  world.rank() < 2 ? sum(world, 10) : sum(other, 10);
  world.rank() < 2 ? sum(other, 10) : sum(world, 10);
}

void slow(const Communicator& world) {
  for (int i = 0; i < 40; ++i) {
    sleep(world.rank() == 2 ? 0.03 : 0.01);
    sum(world, 1000, "gradients");  // SLOW
  }
  world.job().write_flight(setting("STRETTO_FLIGHT_DIR"));
}

void message(const Communicator& world) {
  float value = 0;
  world.barrier(Stream::inline_()).wait();
  if (world.rank() == 1) world.recv(&value, 1, DType::f32, 0, Stream::inline_()).wait();  // RECEIVE
  world.barrier(Stream::inline_()).wait();
}

// Rank 2 computes for ever.
void endless(const Communicator& world) {
  sum(world, 3);
  while (world.rank() == 2) sleep(0.01);
  sum(world, 3, "gradients");
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, void (*)(const Communicator&)> cases{
      {"skip", skip}, {"other_shape", other_shape}, {"swap", swap},      {"circle", circle},
      {"slow", slow}, {"message", message},         {"endless", endless}};
  const auto found = cases.find(argc == 2 ? argv[1] : "");
  return found == cases.end() ? 2 : launch(4, found->second);
}
