// A decoder of one's own, of the library's layers: grouped heads with rotary positions, RMS norms and a gated SiLU. Four
// ranks train it, two tensor-parallel ranks in each of two ZeRO-3 replicas, and get what one rank gets.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "stretto/layers/adamw.hpp"
#include "stretto/layers/attention.hpp"
#include "stretto/layers/linear.hpp"
#include "stretto/layers/norm.hpp"
#include "stretto/layers/positions.hpp"
#include "stretto/layers/vocabulary.hpp"
#include "stretto/stretto.hpp"

using namespace stretto;

constexpr int steps = 5;
constexpr std::int64_t hidden = 32, heads = 8, kv_heads = 2, head_size = 4, mlp_width = 96;
constexpr std::int64_t vocabulary = 61, length = 16, sequences = 4;  // of a step, over all replicas
const Initial small{0, 0.02};

// x + projection(attention(qkv(norm(x)))), and then x + down(silu(gate) * up) of another norm.
class Block {
 public:
  Block(Parameters& parameters, const std::string& name, const TensorParallel& tp, const RotaryPositions& positions)
      : tp_(tp),
        positions_(positions),
        norm_(parameters, name + ".norm_1", hidden, {Norm::Kind::rms}, tp),
        qkv_(parameters, name + ".qkv", hidden, (heads + 2 * kv_heads) * head_size, heads / kv_heads + 2, small, tp, false),
        projection_(parameters, name + ".projection", heads * head_size, hidden, small, tp, false),
        mlp_norm_(parameters, name + ".norm_2", hidden, {Norm::Kind::rms}, tp),
        gate_and_up_(parameters, name + ".gate_and_up", hidden, 2 * mlp_width, 2, small, tp, false),
        down_(parameters, name + ".down", mlp_width, hidden, small, tp, false) {}

  struct Saved {
    Norm::Saved norm, mlp_norm;
    Tensor normed, attended, mlp_normed, before, activated;
    AttentionCore::Saved core;
  };

  Tensor forward(const Tensor& x, const Tensor& positions, Saved& saved, ParameterUse& use) const {
    const std::int64_t tokens = positions.size();
    const Tensor qkv = qkv_.forward(norm_.forward(x, saved.norm, use), tokens, use, &saved.normed);
    const AttentionCore::Shape shape = shape_of(tokens);
    const QueriesKeysValues of = packed_heads(shape, qkv);
    turn(of, shape, positions, false);
    saved.attended = attention_.forward(shape, of, saved.core);
    const Tensor middle = projection_.forward(saved.attended, x, use);
    saved.activated = Tensor({tokens, mlp_width / tp_.size()}, x.dtype());
    saved.before = gate_and_up_.forward(mlp_norm_.forward(middle, saved.mlp_norm, use), tokens, use, &saved.mlp_normed,
                                        {kernels::Activation::silu_gate, saved.activated});
    return down_.forward(saved.activated, middle, use);
  }

  // dx: the gradient of the result, which becomes that of x.
  void backward(const Tensor& dx, const Tensor& positions, const Saved& saved, ParameterUse& use) const {
    const Tensor dbefore = down_.backward(saved.activated, dx, use, nullptr, {kernels::Activation::silu_gate, saved.before});
    mlp_norm_.backward(gate_and_up_.backward(saved.mlp_normed, dbefore, use), saved.mlp_norm, dx, use);
    const Tensor dattended = projection_.backward(saved.attended, dx, use);
    const AttentionCore::Shape shape = shape_of(positions.size());
    const Tensor dqkv({positions.size(), (shape.heads + 2 * shape.kv_heads) * head_size}, dx.dtype());
    const QueriesKeysValues gradients = packed_heads(shape, dqkv);
    attention_.backward(dattended, saved.core, gradients);
    turn(gradients, shape, positions, true);
    norm_.backward(qkv_.backward(saved.normed, dqkv, use), saved.norm, dx, use);
  }

 private:
  AttentionCore::Shape shape_of(std::int64_t tokens) const {
    return {tokens / length, length, heads / tp_.size(), kv_heads / tp_.size(), head_size};
  }
  void turn(const QueriesKeysValues& of, const AttentionCore::Shape& shape, const Tensor& positions, bool back) const {
    positions_.turn(of.q, shape.heads, positions, back);
    positions_.turn(of.k, shape.kv_heads, positions, back);
  }

  TensorParallel tp_;
  const RotaryPositions& positions_;
  LocalAttention attention_;
  Norm norm_;
  ColumnParallelLinear qkv_;
  RowParallelLinear projection_;
  Norm mlp_norm_;
  ColumnParallelLinear gate_and_up_;
  RowParallelLinear down_;
};

// The losses of all steps, of the whole batch.
std::vector<double> train(const Communicator& world, int tensor) {
  const Mesh mesh(world, {{Axis::tensor, tensor}, {Axis::data, world.size() / tensor}});
  const TensorParallel tp{mesh.over(Axis::tensor)};
  Parameters parameters;
  const VocabularyParallelTable table(parameters, "table", vocabulary, hidden, small, tp);
  const RotaryPositions turns({.sequence = length, .head_size = head_size});
  const Block first(parameters, "first", tp, turns), second(parameters, "second", tp, turns);
  const Norm norm(parameters, "norm", hidden, {Norm::Kind::rms}, tp);
  const VocabularyParallelCrossEntropy entropy(tp);
  ShardedParameters sharded(parameters, mesh, {.zero = ZeroStage::values, .dtype = DType::f64, .unit_bytes = 1 << 14});
  sharded.initialise(1);
  AdamW optimizer(sharded, {});
  const std::int64_t own = sequences / mesh.size(Axis::data);
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    std::vector<std::int32_t> tokens, targets, places;
    for (std::int64_t i = 0; i < own * length; ++i) {  // each token follows from the one before
      const std::int64_t slot = mesh.rank(Axis::data) * own + i / length, at = i % length;
      tokens.push_back(static_cast<std::int32_t>((7 * step + 11 * slot + 5 * at) % vocabulary));
      targets.push_back(static_cast<std::int32_t>((tokens.back() + 5) % vocabulary));
      places.push_back(static_cast<std::int32_t>(at));
    }
    const Tensor inputs = Tensor::of(tokens), goals = Tensor::of(targets), positions = Tensor::of(places);
    sharded.begin_step();
    Block::Saved saved_first, saved_second;
    Norm::Saved saved_norm;
    Tensor normed;
    const Tensor embedded = table.embed(inputs, sharded);
    const Tensor x =
        second.forward(first.forward(embedded, positions, saved_first, sharded), positions, saved_second, sharded);
    const Tensor logits = table.logits(norm.forward(x, saved_norm, sharded), inputs.size(), sharded, &normed);
    VocabularyParallelCrossEntropy::Saved loss;
    entropy.forward(logits, goals, table.first(), loss);
    entropy.backward(logits, goals, table.first(), loss, 1.0 / (sequences * length));
    const Tensor dx = Tensor::zeros(x.shape(), x.dtype());
    norm.backward(table.logits_backward(normed, logits, sharded), saved_norm, dx, sharded);
    second.backward(dx, positions, saved_second, sharded);
    first.backward(dx, positions, saved_first, sharded);
    table.embed_backward(inputs, dx, sharded);
    sharded.end_microbatch();
    sharded.finish_sums();
    optimizer.step(1e-2, 1);
    double sum = loss.loss() / (sequences * length);
    mesh.over(Axis::data).all_reduce(&sum, &sum, 1, DType::f64, ReduceOp::sum, Stream::inline_()).wait();
    losses.push_back(sum);
  }
  return losses;
}

int main() {
  return launch(4, [](const Communicator& world) {
    const std::vector<double> four = train(world, 2), one = train(world.split(world.rank(), 0, "one rank"), 1);
    double difference = 0;
    for (int step = 0; step < steps; ++step) difference = std::max(difference, std::abs(four[step] / one[step] - 1));
    if (world.rank() == 0) std::printf("loss %.3f -> %.3f, as on one rank to %.0e\n", four.front(), four.back(), difference);
    if (!(difference < 1e-10 && four.back() < four.front())) std::exit(1);
  });
}
