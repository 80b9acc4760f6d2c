// What a use of parameters costs: nothing is allocated where no operation starts.
#include "stretto/layers/parameter_use.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "stretto/layers/sharded_parameters.hpp"
#include "stretto/stretto.hpp"
#include "two_parameters.hpp"

namespace {

thread_local int allocations_of_this_thread = 0;

}  // namespace

void* operator new(std::size_t bytes) {
  ++allocations_of_this_thread;
  if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*bytes*/) noexcept { std::free(memory); }

namespace stretto {
namespace {

// The allocations that uses make in the third step of two microbatches. The uses of the last backward, which start sums, do
// not count.
int allocations_of_uses(const Communicator& world, ZeroStage stage) {
  const Mesh mesh(world, {{Axis::data, world.size()}});
  Parameters parameters;
  add_parameters(parameters, mesh);
  for (const auto& each : parameters.all()) parameters.used_together({each.get()});
  ShardedParameters sharded(parameters, mesh, {.zero = stage, .unit_bytes = 1});
  int allocations = 0;
  const auto use_all = [&](Pass pass, bool counts) {
    const int before = allocations_of_this_thread;
    for (const auto& used : parameters.used()) const InUse in_use(sharded, *used, pass);
    if (counts) allocations += allocations_of_this_thread - before;
  };
  for (int step = 0; step < 3; ++step) {
    sharded.begin_step();
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      sharded.set_microbatch(microbatch);
      use_all(Pass::forward, step == 2);
      use_all(Pass::backward, step == 2 && microbatch == 0);
      sharded.end_microbatch();
    }
    sharded.finish_sums();
    sharded.update([](std::size_t) {});
  }
  sharded.wait_for_values();
  return allocations;
}

TEST(ParameterUse, AllocatesNothingWhereNoOperationStarts) {
  run_threads(2, [](const Communicator& world) {
    EXPECT_EQ(allocations_of_uses(world, ZeroStage::none), 0);
    EXPECT_EQ(allocations_of_uses(world, ZeroStage::optimizer), 0);
    EXPECT_GT(allocations_of_uses(world, ZeroStage::values), 0) << "the control: gathers allocate";
  });
}

}  // namespace
}  // namespace stretto
