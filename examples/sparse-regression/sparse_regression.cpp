// Logistic regression with an L1 penalty on sparse features, the use for which parameter servers were made (Li et al. 2014):
//   sparse_regression [EXAMPLES]   of each worker, 20000 unless said
// Each of three workers has examples of its own, and a batch has few of the features: a worker pulls and pushes those only.
// Two servers hold a weight for each feature that has been seen, and take proximal steps. Worker 0 is ten times as slow.
// The KKT filter keeps gradients at home that the penalty would cancel.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "stretto/launch.hpp"
#include "stretto/server.hpp"

using namespace stretto;

constexpr int workers = 3, servers = 2, batch = 200, features_of_an_example = 20;
constexpr std::uint64_t features = 5000;
constexpr float step_size = 8, penalty = 0.001F;

struct Example {
  std::uint64_t features[features_of_an_example];
  float label;  // 0 or 1
};

// One feature in five matters. Low numbers are frequent, high ones rare.
float hidden_weight(std::uint64_t feature) {
  std::mt19937_64 draw(feature);
  return draw() % 5 == 0 ? (draw() % 2 == 0 ? 2.0F : -2.0F) : 0;
}

std::vector<Example> examples_of(int worker, int count) {
  std::mt19937_64 draw(static_cast<std::uint64_t>(worker) + 1);
  std::uniform_real_distribution<double> uniform;
  std::vector<Example> examples(static_cast<std::size_t>(count));
  for (Example& example : examples) {
    float sum = 0;
    for (std::uint64_t& feature : example.features) {
      feature = static_cast<std::uint64_t>(static_cast<double>(features) * std::pow(uniform(draw), 2));
      sum += hidden_weight(feature);
    }
    example.label = uniform(draw) < 1 / (1 + std::exp(-sum)) ? 1.0F : 0.0F;
  }
  return examples;
}

// Weights of the features of some examples, and the gradient of their mean loss.
struct Batch {
  std::vector<std::uint64_t> keys;
  Tensor weights, gradient;

  explicit Batch(const std::vector<Example>& examples) {
    for (const Example& example : examples) keys.insert(keys.end(), example.features, std::end(example.features));
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    weights = Tensor({static_cast<std::int64_t>(keys.size()), 1}, DType::f32);
    gradient = Tensor::zeros(weights.shape(), DType::f32);
  }
  double mean_loss(const std::vector<Example>& examples) {
    double loss = 0;
    const auto count = static_cast<float>(examples.size());
    for (const Example& example : examples) {
      std::size_t places[features_of_an_example];
      float sum = 0;
      for (int i = 0; i < features_of_an_example; ++i) {
        const auto found = std::lower_bound(keys.begin(), keys.end(), example.features[i]);
        places[i] = static_cast<std::size_t>(found - keys.begin());
        sum += weights.data<float>()[places[i]];
      }
      const float p = 1 / (1 + std::exp(-sum));
      loss -= std::log(std::max(1e-9F, example.label > 0 ? p : 1 - p)) / count;
      for (const std::size_t place : places) gradient.data<float>()[place] += (p - example.label) / count;
    }
    return loss;
  }
};

// A server function of one's own: a gradient step, then the soft threshold, of the features that were pushed. Each push is a
// share of a step, so that eventually consistent servers, which apply pushes one by one, go as far.
void proximal_step(const ServerUpdate& update) {
  auto* const weights = update.values.data<float>();
  const auto* const gradient = update.pushed.data<float>();
  const float shrink = step_size * penalty * static_cast<float>(update.pushes) / workers;
  for (std::int64_t i = 0; i < update.values.size(); ++i) {
    const float weight = weights[i] - step_size / workers * gradient[i];
    weights[i] = std::copysign(std::max(0.0F, std::fabs(weight) - shrink), weight);
  }
}

void train(const Communicator& world, int count, const char* name, Consistency consistency,
           std::vector<FilterKind> filters) {
  ServerSet set(world, {{.name = "weights", .update = {proximal_step}, .width = 1, .filters = std::move(filters)}},
                {.servers = servers, .consistency = consistency});
  if (set.is_server()) return set.serve();
  const std::vector<Example> mine = examples_of(world.rank(), count);
  const auto begin = std::chrono::steady_clock::now();
  const int steps = count / batch;
  for (int step = 0; step < steps; ++step) {
    const std::vector<Example> some(mine.begin() + step * batch, mine.begin() + (step + 1) * batch);
    Batch now(some);
    set.wait(set.pull(0, now.keys, now.weights));
    now.mean_loss(some);
    std::this_thread::sleep_for(std::chrono::milliseconds(world.rank() == 0 ? 10 : 1));
    set.wait(set.push(0, now.keys, now.gradient));
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const double pushed = static_cast<double>(set.traffic().payload) / 1e6;
  std::printf("%s, worker %d: %d steps in %.2f s, %.2f MB sent\n", name, world.rank(), steps, took.count(), pushed);
  if (world.rank() == 0) {  // the slowest one, behind all pushes of the others but the last few
    const std::vector<Example> unseen = examples_of(workers, 10000);
    Batch all(unseen);
    all.weights.zero();
    const double untrained = all.mean_loss(unseen);
    set.wait(set.pull(0, all.keys, all.weights));
    const auto* const weights = all.weights.data<float>();
    const auto others = std::count_if(weights, weights + all.keys.size(), [](float weight) { return weight != 0; });
    std::printf("%s: loss %.3f -> %.3f on other examples, %d of %d weights are not 0\n", name, untrained,
                all.mean_loss(unseen), static_cast<int>(others), static_cast<int>(all.keys.size()));
  }
  std::fflush(stdout);
  set.leave();
}

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::max(batch, std::atoi(argv[1])) : 20000;
  return launch(workers + servers, [&](const Communicator& world) {
    train(world, count, "sequential", Consistency::sequential(), {});
    train(world, count, "sequential, filtered", Consistency::sequential(), {push_filters::kkt(penalty)});
    train(world, count, "at most 2 behind", Consistency::bounded(2), {push_filters::kkt(penalty)});
    train(world, count, "eventual", Consistency::eventual(), {push_filters::kkt(penalty)});
  });
}
