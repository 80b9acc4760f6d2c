// Arguments are checked at the call.
#include <gtest/gtest.h>

#include "stretto/stretto.hpp"

namespace stretto {
namespace {

TEST(Errors, WrongArgumentsThrowAtTheCallAndHarmNothing) {
  run_threads(2, [](const Communicator& world) {
    const Stream stream("s");
    const Tensor x = Tensor::zeros({4}, DType::f32);
    EXPECT_THROW(world.all_reduce(nullptr, nullptr, 4, DType::f32, ReduceOp::sum, stream), Error);
    EXPECT_THROW(world.all_reduce(x.raw(), x.raw(), -4, DType::f32, ReduceOp::sum, stream), Error);
    EXPECT_THROW(world.broadcast(x, 2, stream), Error);
    EXPECT_THROW(world.broadcast(x, 0, stream, {.method = Algorithm::ring}), Error);
    EXPECT_THROW(world.all_reduce(x.raw(), static_cast<float*>(x.raw()) + 1, 3, DType::f32, ReduceOp::sum, stream), Error);
    EXPECT_THROW(world.all_to_all(x.raw(), x.raw(), 2, DType::f32, stream), Error);
    EXPECT_THROW(world.all_reduce(x.raw(), x.raw(), 4, static_cast<DType>(77), ReduceOp::sum, stream), Error);
    EXPECT_THROW(world.all_reduce(x.raw(), x.raw(), 4, DType::f32, static_cast<ReduceOp>(77), stream), Error);
    EXPECT_THROW(world.all_gather_v(x.raw(), x.raw(), {1, 2, 1}, DType::f32, stream), Error);
    EXPECT_THROW(world.send(x.raw(), 4, DType::f32, world.rank(), stream), Error);
    world.all_reduce(x, ReduceOp::sum, stream).wait();
  });
}

}  // namespace
}  // namespace stretto
