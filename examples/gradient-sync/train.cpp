// A trainer that uses Stretto for its communication: least squares over layers of weights, each rank with its own samples.
// The gradient of a layer is averaged while those of the layers before it are computed.
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "gradient_sync.hpp"

namespace {

constexpr int ranks = 4, layers = 8, width = 64, samples = 32, steps = 60;

float input(int sample, int layer, int i) { return std::sin(static_cast<float>((sample + 3) * (layer * width + i + 7))); }
float wanted_weight(int layer, int i) { return static_cast<float>((layer + i) % 5 - 2); }

void train(const stretto::Communicator& world) {
  std::vector<std::vector<float>> weights(layers, std::vector<float>(width));
  std::vector<std::vector<float>> gradients(layers,
                                            std::vector<float>(width));  // the trainer's own memory, last layer first
  std::vector<stretto::Tensor> wrapped;
  wrapped.reserve(layers);
  for (auto& each : gradients) wrapped.push_back(stretto::Tensor::wrap(each.data(), {width}, stretto::DType::f32));
  GradientSync sync(world, wrapped, 2 * width);  // two layers a bucket
  double first_loss = 0;
  double loss = 0;
  for (int step = 0; step < steps; ++step) {
    std::vector<float> error(samples);
    loss = 0;
    for (int s = 0; s < samples; ++s) {  // forward
      for (int layer = 0; layer < layers; ++layer) {
        for (int i = 0; i < width; ++i) {
          error[s] += (weights[layer][i] - wanted_weight(layer, i)) * input(world.rank() * samples + s, layer, i);
        }
      }
      loss += error[s] * error[s] / samples;
    }
    for (int layer = layers - 1; layer >= 0; --layer) {  // backward
      const std::size_t number = layers - 1 - layer;
      for (int i = 0; i < width; ++i) {
        float sum = 0;
        for (int s = 0; s < samples; ++s) sum += error[s] * input(world.rank() * samples + s, layer, i);
        gradients[number][i] = sum / samples;
      }
      sync.ready();
    }
    sync.finish();
    for (int layer = 0; layer < layers; ++layer) {
      for (int i = 0; i < width; ++i) weights[layer][i] -= 0.2F * gradients[layers - 1 - layer][i];
    }
    world.all_reduce(&loss, &loss, 1, stretto::DType::f64, stretto::ReduceOp::avg, stretto::Stream::inline_()).wait();
    if (step == 0) first_loss = loss;
  }
  if (world.rank() == 0) std::printf("%d ranks: loss %.1f -> %.1f\n", world.size(), first_loss, loss);
  if (!(loss < first_loss / 2)) std::exit(1);
}

}  // namespace

int main() { return stretto::launch(ranks, train); }
