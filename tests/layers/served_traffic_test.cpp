#include "layers/served/served_traffic.hpp"

#include <gmock/gmock.h>

#include <latch>
#include <vector>

#include "stretto/launch.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

// Four pulls are wanted when the stream gets to the second one: the first waits for worker 1 until then. The third cannot
// begin, and those before it get their values; a stream that has failed runs no more tasks.
TEST(ServedTraffic, APullThatCannotBeginFailsAlone) {
  std::latch wanted(1);
  run_threads(3, [&](const Communicator& world) {
    std::vector<ServedTable> tables;
    for (const char* name : {"a", "b", "c", "d"}) tables.push_back({name, 4, DType::f32, {}, server_functions::sum()});
    ServerSet set(world, tables, {});
    const Communicator workers = world.split(set.is_server() ? -1 : 0, world.rank(), "workers");
    if (set.is_server()) return set.serve();
    const Tensor ones = Tensor::of<float>({1, 1, 1, 1});
    if (world.rank() == 1) {
      for (const int table : {1, 3}) set.wait(set.push(table, ones));
      wanted.wait();
      set.wait(set.push(0, ones));
      return set.leave();
    }
    {
      ServedTraffic traffic(set, workers, true);
      for (const int table : {0, 1, 3}) traffic.push(table, ones).wait();
      const auto four = [] { return Tensor::zeros({4}, DType::f32); };
      const Tensor first = four(), second = four();
      const Work a = traffic.pull(0, first), b = traffic.pull(1, second),
                 c = traffic.pull(2, Tensor::zeros({5}, DType::f32)), d = traffic.pull(3, four());
      wanted.count_down();
      a.wait();
      EXPECT_EQ(first.at(3), 2);
      b.wait();
      EXPECT_EQ(second.at(3), 2);
      expect_refusal([&] { c.wait(); }, "Table c has 4 elements of f32, and the tensor 5");
      expect_refusal([&] { d.wait(); }, "Table c has 4 elements");
    }
    set.leave();
  });
}

// A caller without overlap goes on behind the refusal.
TEST(ServedTraffic, APullBehindOneThatCannotBeginIsAnswered) {
  run_threads(2, [](const Communicator& world) {
    ServerSet set(world, {{"a", 4, DType::f32, {}, server_functions::sum()}}, {});
    const Communicator workers = world.split(set.is_server() ? -1 : 0, world.rank(), "workers");
    if (set.is_server()) return set.serve();
    {
      ServedTraffic traffic(set, workers, false);
      const Tensor ones = Tensor::of<float>({1, 1, 1, 1}), found = Tensor::zeros({4}, DType::f32);
      traffic.push(0, ones).wait();
      expect_refusal([&] { traffic.pull(0, Tensor::zeros({5}, DType::f32)).wait(); }, "and the tensor 5");
      traffic.pull(0, found).wait();
      EXPECT_EQ(found.at(0), 1);
    }
    set.leave();
  });
}

}  // namespace
}  // namespace stretto
