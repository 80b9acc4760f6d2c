#include "stretto/overlap/rehearsal.hpp"

#include <gtest/gtest.h>

#include "device/stream/skipped_work.hpp"
#include "stretto/error.hpp"
#include "stretto/kernels.hpp"
#include "stretto/launch.hpp"

namespace stretto {
namespace {

Tensor filled(std::int64_t count, double value) {
  Tensor tensor({count}, DType::f32);
  for (std::int64_t i = 0; i < count; ++i) tensor.set(i, value);
  return tensor;
}

TEST(Rehearsal, OfComputationMovesNothing) {
  run_threads(2, [](const Communicator& world) {
    const Stream stream("comm");
    const Tensor tensor = filled(100, world.rank() + 1);
    const std::uint64_t first = world.job().ledger().next_sequence();
    {
      const RehearsalScope scope(Rehearsal::computation);
      for (const Stream& on : {stream, Stream::inline_()}) {
        const Work work = world.all_reduce(tensor, ReduceOp::sum, on);
        EXPECT_TRUE(work.done());
        EXPECT_TRUE(was_skipped(work));
        work.wait();
      }
      OperationGroup group;
      const Work inside = world.all_reduce(tensor, ReduceOp::sum, stream);
      group.end().wait();
      inside.wait();
      EXPECT_TRUE(was_skipped(inside));
      kernels::add(tensor, tensor, tensor);
    }
    EXPECT_EQ(tensor.at(7), 2 * (world.rank() + 1)) << "computed, but not summed";
    EXPECT_EQ(world.job().ledger().traffic(first).operations, 0U);
    const Work control = world.all_reduce(tensor, ReduceOp::sum, stream);
    control.wait();
    EXPECT_FALSE(was_skipped(control));
    EXPECT_EQ(tensor.at(7), 6);
  });
}

TEST(Rehearsal, OfCommunicationComputesNothing) {
  run_threads(2, [](const Communicator& world) {
    const Tensor tensor = filled(100, world.rank() + 1);
    {
      const RehearsalScope scope(Rehearsal::communication);
      kernels::add(tensor, tensor, tensor);
      kernels::scale(tensor, 5);
      EXPECT_EQ(kernels::sum_of_squares(tensor), 0);
      world.all_reduce(tensor, ReduceOp::sum, Stream::inline_()).wait();
    }
    EXPECT_EQ(tensor.at(7), 3);
    kernels::scale(tensor, 5);
    EXPECT_EQ(tensor.at(7), 15);
  });
}

TEST(Rehearsal, SerialWaitsForEveryOperation) {
  run_threads(2, [](const Communicator& world) {
    const Stream stream("comm");
    const Tensor tensor = filled(1 << 20, world.rank() + 1);
    const RehearsalScope scope(Rehearsal::serial);
    EXPECT_TRUE(world.all_reduce(tensor, ReduceOp::sum, stream).done());
    EXPECT_EQ(tensor.at(7), 3);
  });
}

TEST(Rehearsal, EndsInWhatWasBefore) {
  const Tensor tensor = filled(4, 1);
  const RehearsalScope outer(Rehearsal::communication);
  { const RehearsalScope inner(Rehearsal::full); }
  kernels::scale(tensor, 5);
  EXPECT_EQ(tensor.at(0), 1) << "kernels are left out again";
}

TEST(Rehearsal, IsOfOneThreadAlone) {
  run_threads(2, [](const Communicator& world) {
    const Tensor tensor = filled(10, 1);
    world.barrier(Stream::inline_()).wait();
    {
      const RehearsalScope scope(world.rank() == 0 ? Rehearsal::communication : Rehearsal::full);
      kernels::add(tensor, tensor, tensor);
      world.barrier(Stream::inline_()).wait();
    }
    EXPECT_EQ(tensor.at(3), world.rank() == 0 ? 1 : 2);
  });
}

TEST(OverlapTimes, EfficiencyIsTheHiddenPartOfTheShorterOne) {
  const OverlapTimes half{.full = 1.25, .computation = 1, .communication = 0.5, .serial = 1.5};
  EXPECT_DOUBLE_EQ(half.efficiency(), 0.5);
  EXPECT_DOUBLE_EQ(half.exposed(), 0.25);
  EXPECT_DOUBLE_EQ((OverlapTimes{.full = 2, .computation = 1, .communication = 2}).efficiency(), 1);
  EXPECT_DOUBLE_EQ((OverlapTimes{.full = 3, .computation = 1, .communication = 2}).efficiency(), 0);
  EXPECT_DOUBLE_EQ((OverlapTimes{.full = 1, .computation = 1, .communication = 0}).efficiency(), 0);
}

TEST(MeasureOverlap, RunsEveryWayAsOftenAsItIsTold) {
  run_threads(2, [](const Communicator& world) {
    const Tensor tensor = filled(10, 1);
    int steps = 0;
    const OverlapTimes times = measure_overlap(world,
                                               [&] {
                                                 ++steps;
                                                 world.all_reduce(tensor, ReduceOp::max, Stream::inline_()).wait();
                                               },
                                               {.warmup = 2, .steps = 3, .rounds = 2});
    EXPECT_EQ(steps, 4 * 2 * (2 + 3));
    EXPECT_GT(times.full, 0);
    double all[2] = {times.full, times.full};
    world.all_gather(&times.full, all, 1, DType::f64, Stream::inline_()).wait();
    EXPECT_EQ(all[0], all[1]) << "the same on every rank";
    EXPECT_THROW(measure_overlap(world, [] {}, {.steps = 0}), Error);
  });
}

}  // namespace
}  // namespace stretto
