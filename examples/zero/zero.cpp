// A model of one's own, trained with ZeRO-3: y = x + V gelu(U x), which learns the absolute values of its inputs. Each rank
// keeps a quarter of values, gradients and optimizer state.
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "stretto/kernels.hpp"
#include "stretto/layers/adamw.hpp"
#include "stretto/layers/linear.hpp"
#include "stretto/stretto.hpp"

using namespace stretto;

constexpr int ranks = 4, steps = 200;
constexpr std::int64_t samples = 64, width = 16, hidden = 256;

struct Samples {  // of one rank and step
  Tensor x{{samples, width}, DType::f32}, y{{samples, width}, DType::f32};
  Samples(int rank, int step) {
    for (std::int64_t i = 0; i < x.size(); ++i) {
      const double value = random_normal(1, "samples", static_cast<std::uint64_t>((step * ranks + rank) * x.size() + i));
      x.set(i, value);
      y.set(i, std::abs(value));
    }
  }
};

void train(const Communicator& world) {
  const Mesh mesh(world, {{Axis::data, world.size()}});
  const TensorParallel undivided{mesh.over(Axis::tensor)};
  Parameters parameters;
  const ColumnParallelLinear up(parameters, "up", width, hidden, 1, {0, 0.2}, undivided);
  const RowParallelLinear down(parameters, "down", hidden, width, {0, 0.05}, undivided);
  ShardedParameters sharded(parameters, mesh, {.zero = ZeroStage::values, .unit_bytes = 1 << 14});
  sharded.initialise(1);
  AdamW optimizer(sharded, {.weight_decay = 0});
  double first = 0;
  double loss = 0;
  for (int step = 0; step < steps; ++step) {
    const Samples batch(world.rank(), step);
    sharded.begin_step();
    const Tensor middle({samples, hidden}, DType::f32);
    const Tensor before_gelu = up.forward(batch.x, samples, sharded, nullptr, {kernels::Activation::gelu_tanh, middle});
    const Tensor error = down.forward(middle, batch.x, sharded);
    loss = 0;
    for (std::int64_t i = 0; i < error.size(); ++i) {  // the error of the mean square, and its gradient
      const double each = error.at(i) - batch.y.at(i);
      loss += each * each / static_cast<double>(error.size());
      error.set(i, 2 * each / static_cast<double>(error.size() * world.size()));
    }
    const kernels::BackwardEpilogue through_gelu{kernels::Activation::gelu_tanh, before_gelu};
    up.backward(batch.x, down.backward(middle, error, sharded, nullptr, through_gelu), sharded);
    sharded.end_microbatch();
    sharded.finish_sums();
    optimizer.step(3e-3, 1);
    world.all_reduce(&loss, &loss, 1, DType::f64, ReduceOp::avg, Stream::inline_()).wait();
    if (step == 0) first = loss;
  }
  if (world.rank() == 0) std::printf("%d ranks: loss %.3f -> %.3f\n", world.size(), first, loss);
  if (!(loss < first / 10)) std::exit(1);
}

int main() { return launch(ranks, train); }
