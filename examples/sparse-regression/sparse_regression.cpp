// Logistic regression with an L1 penalty on sparse features, the use for which parameter servers were made (Li et al. 2014):
//   sparse_regression [EXAMPLES]              generated as they are needed, 60000 unless said
//   sparse_regression --data FILE [PASSES]    a data set in LIBSVM's format (examples.hpp), 20 passes unless said
// Each of three workers has examples of its own, and a batch has few of the features: a worker pulls and pushes those only.
// Two servers hold a weight for each feature that has been seen, and take proximal steps. The KKT filter keeps gradients at
// home that the penalty would cancel. Worker 0 takes ten times as long for an example, or --slow N times (1: as long as the
// others). With --balance its batches are as much smaller.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "examples.hpp"
#include "stretto/launch.hpp"
#include "stretto/server.hpp"

using namespace stretto;

constexpr std::size_t workers = 3, servers = 2;

struct Problem {
  std::function<NextExamples(std::size_t worker)> examples_of;
  Examples unseen;
  std::size_t batch = 0, steps = 0;  // of a worker
  float step_size = 2, penalty = 0.001F;
  std::size_t slowness = 10;
  bool balanced = false;
};

float soft_threshold(float weight, float shrink) {
  return std::copysign(std::max(0.0F, std::fabs(weight) - shrink), weight);
}

// A row of the table: a weight, and if it is not 0, the number of the update that has shrunk it last. The penalty shrinks
// all weights in each update. Those that an update has no push of are shrunk for it later: by the server when they are next
// pushed, and by a worker, in its copy, when it pulls them.
constexpr int row_width = 2;

// A server function of one's own: the shrinking that is due, and a gradient step. Each push is a share of a step, so that
// eventually consistent servers, which apply pushes one by one, go as far.
auto proximal_step(const Problem& problem) {
  return [step = problem.step_size / workers, penalty = problem.penalty](const ServerUpdate& update) {
    auto* const rows = update.values.data<float>();
    const auto* const gradient = update.pushed.data<float>();
    const float shrink = step * penalty * static_cast<float>(update.pushes);
    const auto number = static_cast<float>(update.updates + 1);
    for (std::int64_t i = 0; i < update.values.size(); i += row_width) {
      const float due = rows[i] == 0 ? 0 : number - 1 - rows[i + 1];
      const float weight = soft_threshold(rows[i], due * shrink) - step * gradient[i];
      rows[i] = soft_threshold(weight, shrink);
      rows[i + 1] = rows[i] == 0 ? 0 : number;
    }
  };
}

// Rows of the features of some examples, and the gradient of their mean loss.
struct Batch {
  const Examples& examples;
  std::vector<std::uint64_t> keys;
  std::vector<std::size_t> places;  // in rows, of each feature of the examples
  Tensor rows, gradient;

  explicit Batch(const Examples& these) : examples(these), keys(these.keys) {
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    for (const std::uint64_t key : examples.keys) {
      const auto found = std::lower_bound(keys.begin(), keys.end(), key);
      places.push_back(row_width * static_cast<std::size_t>(found - keys.begin()));
    }
    rows = Tensor::zeros({static_cast<std::int64_t>(keys.size()), row_width}, DType::f32);
    gradient = Tensor::zeros(rows.shape(), DType::f32);
  }

  // Parts are at different versions, except with sequential consistency, and version() is the least of them: rows of a part
  // that is ahead then lack some of the shrinking, in this copy only.
  void pull(ServerSet& set, float shrink_of_update, const ServerSet::Task& task = {}) {
    set.wait(set.pull(0, keys, rows, {}, task));
    const auto newest = static_cast<float>(set.version(0));
    auto* const row = rows.data<float>();
    for (std::int64_t i = 0; i < rows.size(); i += row_width) {
      if (row[i] != 0) row[i] = soft_threshold(row[i], std::max(0.0F, newest - row[i + 1]) * shrink_of_update);
    }
  }

  struct Outcome {
    double loss = 0, right = 0;  // means over the examples
  };
  Outcome evaluate() const {
    Outcome mean;
    const auto count = static_cast<float>(examples.size());
    for (std::size_t example = 0; example < examples.size(); ++example) {
      const std::size_t begin = examples.begin_of(example), end = examples.ends[example];
      float sum = 0;
      for (std::size_t k = begin; k < end; ++k) sum += rows.data<float>()[places[k]] * examples.values[k];
      const float p = 1 / (1 + std::exp(-sum)), label = examples.labels[example];
      mean.loss -= std::log(std::max(1e-9F, label > 0 ? p : 1 - p)) / count;
      mean.right += (sum > 0) == (label > 0) ? 1 / count : 0;
      const float slope = (p - label) / count;
      for (std::size_t k = begin; k < end; ++k) gradient.data<float>()[places[k]] += slope * examples.values[k];
    }
    return mean;
  }
  std::size_t kept() const {
    std::size_t kept = 0;
    for (std::int64_t i = 0; i < rows.size(); i += row_width) kept += rows.data<float>()[i] != 0 ? 1 : 0;
    return kept;
  }
};

void train(const Communicator& world, const Problem& problem, const char* name, Consistency consistency, bool filtered) {
  const auto worker = static_cast<std::size_t>(world.rank());
  const Communicator all_workers = world.split(worker < workers ? 0 : -1, world.rank(), "workers");
  std::vector<FilterKind> filters;
  if (filtered) filters.push_back(push_filters::kkt(problem.penalty));
  ServerSet set(world, {{.name = "weights", .update = {proximal_step(problem)}, .width = row_width, .filters = filters}},
                {.servers = servers, .consistency = consistency});
  if (set.is_server()) return set.serve();
  const std::size_t slowness = worker == 0 ? problem.slowness : 1;
  const std::size_t batch = problem.balanced ? std::max<std::size_t>(1, problem.batch / slowness) : problem.batch;
  const float shrink = problem.step_size * problem.penalty / (consistency.kind == Consistency::Kind::eventual ? workers : 1);
  const NextExamples next = problem.examples_of(worker);
  const auto begin = std::chrono::steady_clock::now();
  for (std::size_t step = 0; step < problem.steps; ++step) {
    const std::clock_t step_begin = std::clock();
    const Examples some = next(batch);
    Batch now(some);
    const std::clock_t made = std::clock();
    now.pull(set, shrink);
    const std::clock_t pulled = std::clock();
    now.evaluate();
    const auto computed = static_cast<double>(made - step_begin + std::clock() - pulled) / CLOCKS_PER_SEC;
    std::this_thread::sleep_for(std::chrono::duration<double>(static_cast<double>(slowness - 1) * computed));
    set.wait(set.push(0, now.keys, now.gradient));
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::printf("%s, worker %zu: %zu steps in %.2f s, %.0f examples/s, %.2f MB sent\n", name, worker, problem.steps,
              took.count(), static_cast<double>(problem.steps * batch) / took.count(),
              static_cast<double>(set.traffic().payload) / 1e6);
  std::fflush(stdout);
  if (worker == 0) {
    Batch unseen(problem.unseen);
    const Batch::Outcome untrained = unseen.evaluate();
    unseen.pull(set, shrink, {.consistency = Consistency::sequential()});  // behind all pushes of all workers
    const Batch::Outcome trained = unseen.evaluate();
    std::printf("%s: loss %.3f -> %.3f, right %.1f%% -> %.1f%%, of %zu other examples; %zu of %zu weights are not 0\n", name,
                untrained.loss, trained.loss, 100 * untrained.right, 100 * trained.right, problem.unseen.size(),
                unseen.kept(), unseen.keys.size());
    std::fflush(stdout);
  }
  all_workers.barrier(Stream::inline_()).wait();  // none leaves before the pull
  set.leave();
}

[[noreturn]] void fail(const std::string& sentence) {
  std::fprintf(stderr, "sparse_regression: %s\n", sentence.c_str());
  std::exit(2);
}

std::size_t number(std::string_view word) {
  std::size_t number = 0;
  const auto [behind, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || behind != word.data() + word.size() || number == 0) {
    fail("'" + std::string(word) +
         "' is no number from 1 on; give [EXAMPLES] or --data FILE [PASSES], --slow N, --balance.");
  }
  return number;
}

// Of words that say the same thing, none may be ignored.
template <class Value>
void set_once(std::optional<Value>& given, Value value, std::string_view name, std::string_view word) {
  if (given) fail(std::string(name) + " is given again, as '" + std::string(word) + "'; give it once.");
  given = std::move(value);
}

// data: read here, so that the ranks, which are forked, share its memory.
Problem problem_of(int argc, char** argv, DataSet& data) {
  Problem problem;
  std::optional<std::string> file;
  std::optional<std::size_t> count, slowness;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const bool has_value = word == "--data" || word == "--slow";
    if (has_value && i + 1 == argc) fail(std::string(word) + " needs a value.");
    const char* const value = has_value ? argv[++i] : argv[i];
    if (word == "--data") {
      set_once(file, std::string(value), word, value);
    } else if (word == "--slow") {
      set_once(slowness, number(value), word, value);
    } else if (word == "--balance") {
      problem.balanced = true;
    } else {
      set_once(count, number(value), "EXAMPLES or PASSES", value);
    }
  }
  problem.slowness = slowness.value_or(problem.slowness);
  if (problem.balanced && problem.slowness == 1) fail("--balance has no effect with --slow 1; leave one of them out.");
  std::size_t size = count.value_or(60000), passes = 1;
  if (!file) {
    problem.examples_of = [](std::size_t worker) { return generated(worker + 1); };
    problem.unseen = generated(workers + 1)(10000);
  } else {
    data = read_examples(*file);
    size = data.trained.size();
    passes = count.value_or(20);
    if (data.unseen.size() == 0) fail(*file + " has " + std::to_string(size) + " examples; give 10 or more.");
    problem.examples_of = [&data](std::size_t worker) { return shuffled(data.trained, worker, workers); };
    problem.unseen = data.unseen;
    problem.step_size = 8;
    problem.penalty = 1 / static_cast<float>(size);  // as LIBLINEAR's with C = 1
  }
  problem.batch = std::clamp<std::size_t>(size / (workers * 100), 1, 2000);
  problem.steps = std::max<std::size_t>(1, passes * size / (workers * problem.batch));
  return problem;
}

int main(int argc, char** argv) try {
  DataSet data;
  const Problem problem = problem_of(argc, argv, data);
  return launch(workers + servers, [&](const Communicator& world) {
    train(world, problem, "sequential", Consistency::sequential(), false);
    train(world, problem, "sequential, filtered", Consistency::sequential(), true);
    train(world, problem, "at most 8 behind", Consistency::bounded(8), true);
    train(world, problem, "eventual", Consistency::eventual(), true);
  });
} catch (const std::exception& error) {
  fail(error.what());
}
