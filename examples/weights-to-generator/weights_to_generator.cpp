// A trainer hands its weights to a generator, and trains on meanwhile. The trainer is 2 x 2 ranks: ZeRO-3 over two
// data-parallel ranks, of slices of two tensor-parallel ones. The generator is two tensor-parallel ranks. A Move between
// these layouts is planned once; nobody has the whole model at any time.
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "stretto/kernels.hpp"
#include "stretto/layers/adamw.hpp"
#include "stretto/layers/linear.hpp"
#include "stretto/move.hpp"
#include "stretto/stretto.hpp"

using namespace stretto;

constexpr int trainers = 4, generators = 2, steps = 200, steps_between = 50;
constexpr std::int64_t samples = 64, width = 16, hidden = 256;

// y = x + V gelu(U x), which learns the absolute values of its inputs.
struct Model {
  Parameters parameters;
  ColumnParallelLinear up;
  RowParallelLinear down;
  explicit Model(const TensorParallel& tensor)
      : up(parameters, "up", width, hidden, 1, {0, 0.2}, tensor),
        down(parameters, "down", hidden, width, {0, 0.05}, tensor) {}
};

struct Samples {
  Tensor x{{samples, width}, DType::f32}, y{{samples, width}, DType::f32};
  explicit Samples(int number) {
    for (std::int64_t i = 0; i < x.size(); ++i) {
      const double value = random_normal(1, "samples", static_cast<std::uint64_t>(number * x.size() + i));
      x.set(i, value);
      y.set(i, std::abs(value));
    }
  }
};

double mean_square(const Tensor& found, const Tensor& wanted) {
  double sum = 0;
  for (std::int64_t i = 0; i < found.size(); ++i) sum += std::pow(found.at(i) - wanted.at(i), 2);
  return sum / static_cast<double>(found.size());
}

// Says to all ranks which elements [first, first + count) of its slice this rank has of each parameter, and returns how each
// parameter lies on the trainer and on the generator.
struct Part {
  std::int64_t first = 0, count = 0;
};
std::vector<MovedTensor> layouts(const Communicator& world, const Parameters& parameters, const std::vector<Part>& parts) {
  constexpr std::size_t numbers = 2 + 2 * Shape::most;
  const std::size_t of_rank = parts.size() * numbers;
  std::vector<std::int64_t> mine(of_rank), all(of_rank * static_cast<std::size_t>(world.size()));
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const Parameter& parameter = *parameters.all()[p];
    std::int64_t* const its = &mine[p * numbers];
    its[0] = parts[p].first;
    its[1] = parts[p].count;
    for (std::size_t d = 0; d < parameter.extents.size(); ++d) {
      its[2 + 2 * d] = parameter.first[d];
      its[3 + 2 * d] = parameter.first[d] + parameter.extents[d];
    }
  }
  world.all_gather(mine.data(), all.data(), static_cast<std::int64_t>(of_rank), DType::i64, Stream::inline_()).wait();
  std::vector<MovedTensor> tensors;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const Shape& shape = parameters.all()[p]->global_shape;
    MovedTensor& tensor = tensors.emplace_back(MovedTensor{DType::f32, shape, {}, {}});
    for (int rank = 0; rank < world.size(); ++rank) {
      const std::int64_t* const its = &all[static_cast<std::size_t>(rank) * of_rank + p * numbers];
      Box slice;
      for (std::size_t d = 0; d < shape.size(); ++d) {
        slice.begin.push_back(its[2 + 2 * d]);
        slice.end.push_back(its[3 + 2 * d]);
      }
      Division& division = rank < trainers ? tensor.from : tensor.to;
      division.ranks.push_back(rank);
      division.boxes.push_back(flat_range(slice, its[0], its[0] + its[1]));
    }
  }
  return tensors;
}

void train(const Communicator& world, const Communicator& trainer) {
  const Mesh mesh(trainer, {{Axis::data, 2}, {Axis::tensor, 2}});
  Model model({mesh.over(Axis::tensor)});
  ShardedParameters sharded(model.parameters, mesh, {.zero = ZeroStage::values, .unit_bytes = 1 << 14});
  sharded.initialise(1);
  AdamW optimizer(sharded, {.weight_decay = 0});
  std::vector<Part> parts(model.parameters.all().size());
  std::vector<Tensor> shares(parts.size());
  for (const ShardedParameters::Range& range : sharded.ranges()) {
    parts[range.parameter] = {range.first, range.count};
    shares[range.parameter] = range.value;
  }
  const Move move(world.duplicate("weights"),
                  plan_move(layouts(world, model.parameters, parts), world.size(), world.nodes()));
  const Stream stream("weights", Priority::background);
  const std::vector<Tensor> nothing(parts.size());
  Work handed;
  for (int step = 0; step < steps; ++step) {
    if (step % steps_between == 0) handed = move.start(shares, nothing, stream);  // travels during this step
    const Samples batch(1 + step * 2 + trainer.rank() / 2);
    sharded.begin_step();
    const Tensor middle({samples, hidden / 2}, DType::f32);  // of this tensor-parallel rank
    const Tensor before_gelu =
        model.up.forward(batch.x, samples, sharded, nullptr, {kernels::Activation::gelu_tanh, middle});
    const Tensor error = model.down.forward(middle, batch.x, sharded);
    for (std::int64_t i = 0; i < error.size(); ++i) {
      error.set(i, (error.at(i) - batch.y.at(i)) / static_cast<double>(error.size()));
    }
    const kernels::BackwardEpilogue through_gelu{kernels::Activation::gelu_tanh, before_gelu};
    model.up.backward(batch.x, model.down.backward(middle, error, sharded, nullptr, through_gelu), sharded);
    sharded.end_microbatch();
    sharded.finish_sums();
    handed.wait();  // the update changes what travels
    optimizer.step(3e-3, 1);
  }
}

void generate(const Communicator& world, const Communicator& generator) {
  const Mesh mesh(generator, {{Axis::tensor, generators}});
  Model model({mesh.over(Axis::tensor)});
  std::vector<Part> parts;
  std::vector<Tensor> slices;
  for (const auto& parameter : model.parameters.all()) {
    parameter->value = Tensor(parameter->extents, DType::f32);
    parts.push_back({0, parameter->elements()});
    slices.push_back(parameter->value);
  }
  const Move move(world.duplicate("weights"),
                  plan_move(layouts(world, model.parameters, parts), world.size(), world.nodes()));
  const std::vector<Tensor> nothing(parts.size());
  const Samples held_out(0);
  ParameterUse all_there;
  double first = 0, last = 0;
  for (int step = 0; step < steps; step += steps_between) {
    move.start(nothing, slices, Stream::inline_()).wait();
    const Tensor middle({samples, hidden / 2}, DType::f32);  // of this tensor-parallel rank
    model.up.forward(held_out.x, samples, all_there, nullptr, {kernels::Activation::gelu_tanh, middle});
    last = mean_square(model.down.forward(middle, held_out.x, all_there), held_out.y);
    if (step == 0) first = last;
    if (generator.rank() == 0) std::printf("generator: after %d steps of the trainer, mean square %.4f\n", step, last);
  }
  if (!(last < first / 10)) std::exit(1);
}

int main() {
  return launch(trainers + generators, [](const Communicator& world) {
    const bool is_trainer = world.rank() < trainers;
    const Communicator own = world.split(is_trainer ? 0 : 1, world.rank(), is_trainer ? "trainer" : "generator");
    is_trainer ? train(world, own) : generate(world, own);
  });
}
