// Logistic regression by workers of unequal speed. Two of five ranks are servers, which hold the weights; the other three
// have examples of their own, pull weights, and push gradients. One of them is ten times as slow. With sequential
// consistency the others wait for it at every step; with a delay they wait less, and eventually consistent ones never do.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <random>
#include <thread>
#include <vector>

#include "stretto/launch.hpp"
#include "stretto/server.hpp"

using namespace stretto;

constexpr std::int64_t features = 200;
constexpr int examples = 400, steps = 120;

// Examples of a worker: labels follow from hidden weights and some noise.
struct Examples {
  std::vector<std::vector<float>> rows;
  std::vector<float> labels;

  explicit Examples(unsigned seed) {
    std::mt19937 hidden(1), own(seed);
    std::normal_distribution<float> normal;
    std::vector<float> truth(features);
    for (float& each : truth) each = normal(hidden);
    for (int i = 0; i < examples; ++i) {
      std::vector<float>& row = rows.emplace_back(features);
      float sum = normal(own);
      for (std::int64_t f = 0; f < features; ++f) sum += truth[f] * (row[f] = normal(own));
      labels.push_back(sum > 0 ? 1.0F : 0.0F);
    }
  }

  // The mean loss; adds its gradient to `gradient`.
  double loss(const float* weights, float* gradient) const {
    double loss = 0;
    for (int i = 0; i < examples; ++i) {
      double sum = 0;
      for (std::int64_t f = 0; f < features; ++f) sum += weights[f] * rows[i][f];
      const double p = 1 / (1 + std::exp(-sum));
      loss -= std::log(std::max(1e-9, labels[i] > 0 ? p : 1 - p)) / examples;
      for (std::int64_t f = 0; f < features; ++f) gradient[f] += static_cast<float>((p - labels[i]) * rows[i][f] / examples);
    }
    return loss;
  }
};

void train(const Communicator& world, const char* name, Consistency consistency) {
  ServerSet servers(world, {{"weights", features, DType::f32, {}, server_functions::sgd({.lr = 0.3, .momentum = 0})}},
                    {.servers = 2, .consistency = consistency, .part_elements = 50});
  if (servers.is_server()) return servers.serve();
  const Examples mine(static_cast<unsigned>(world.rank()) + 2);
  const Tensor weights({features}, DType::f32);
  const auto begin = std::chrono::steady_clock::now();
  int done = 0;
  double loss = 0;
  for (; done < steps; ++done) {
    servers.wait(servers.pull(0, weights));
    const Tensor gradient = Tensor::zeros({features}, DType::f32);
    loss = mine.loss(weights.data<float>(), gradient.data<float>());
    std::this_thread::sleep_for(std::chrono::milliseconds(world.rank() == 0 ? 10 : 1));
    servers.wait(servers.push(0, gradient));
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::printf("%s, worker %d: %d steps in %.2f s, loss %.3f\n", name, world.rank(), done, took.count(), loss);
  std::fflush(stdout);
  servers.leave();
}

int main() {
  return launch(5, [](const Communicator& world) {
    train(world, "sequential", Consistency::sequential());
    train(world, "at most 8 behind", Consistency::bounded(8));
    train(world, "eventual", Consistency::eventual());
  });
}
