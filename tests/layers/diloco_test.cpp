// The outer steps of replicas, on parameters without a model.
#include "stretto/layers/diloco.hpp"

#include <gmock/gmock.h>

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include "stretto/kernels.hpp"
#include "stretto/layers/sgd.hpp"
#include "support/error.hpp"
#include "two_parameters.hpp"

namespace stretto {
namespace {

using Numbers = std::vector<double>;

Numbers numbers_of(const std::vector<Tensor>& tensors) {
  Numbers numbers;
  for (const Tensor& each : tensors) {
    for (std::int64_t i = 0; i < each.size(); ++i) numbers.push_back(each.at(i));
  }
  return numbers;
}

double whole_number(const std::string& name, std::int64_t i, int replica, int step) {
  return std::floor(16 * random_uniform(3, name, static_cast<std::uint64_t>(i + 100 * replica + 1000 * step)));
}

// The values on each replica after some steps of gradient descent with whole gradients, each multiplied by a half.
std::vector<Numbers> values_after(int steps, const DiLoCoOptions& options, bool begins_apart = false) {
  std::vector<Numbers> values(static_cast<std::size_t>(options.replicas));
  run_threads(options.replicas, [&](const Communicator& world) {
    const ReplicaGroups groups = split_into_replicas(world, options.replicas);
    const Mesh mesh(groups.replica, {});
    Parameters parameters;
    add_parameters(parameters, mesh);
    ShardedParameters sharded(parameters, mesh, {});
    sharded.initialise(begins_apart ? static_cast<std::uint64_t>(1 + world.rank()) : 1);
    SGD optimizer(sharded, {.momentum = 0});
    DiLoCo outer(sharded, optimizer, groups.peers, options);
    for (int step = 0; step < steps; ++step) {
      outer.begin_step();
      sum_gradients(sharded, parameters,
                    [&](const std::string& name, std::int64_t i) { return whole_number(name, i, world.rank(), step); });
      optimizer.step(0.5, 1);
      outer.end_step();
    }
    values[static_cast<std::size_t>(world.rank())] = numbers_of(sharded.whole_values());
  });
  return values;
}

// The same by the equations, in f64, for one fragment without delay. Replicas begin with `begin`.
Numbers by_equations(const Numbers& begin, int steps, const DiLoCoOptions& options, double sign = 1) {
  Numbers theta = begin, momentum(begin.size(), 0);
  std::vector<Numbers> local(static_cast<std::size_t>(options.replicas), begin);
  for (int step = 0; step < steps; ++step) {
    for (int replica = 0; replica < options.replicas; ++replica) {
      for (std::size_t k = 0; k < begin.size(); ++k) {
        const bool first = k < 40;  // of two parameters
        local[static_cast<std::size_t>(replica)][k] -=
            0.5 *
            whole_number(first ? "divided" : "replicated", static_cast<std::int64_t>(first ? k : k - 40), replica, step);
      }
    }
    if ((step + 1) % options.sync_every != 0) continue;
    for (std::size_t k = 0; k < begin.size(); ++k) {
      double delta = 0;
      for (const Numbers& each : local) delta += sign * (theta[k] - each[k]) / options.replicas;
      momentum[k] = options.momentum * momentum[k] + delta;
      theta[k] -= options.lr * (delta + options.momentum * momentum[k]);
      for (Numbers& each : local) {
        each[k] = (1 - options.fragment_update_alpha) * theta[k] + options.fragment_update_alpha * each[k];
      }
    }
  }
  return local.front();
}

double largest_difference(const Numbers& a, const Numbers& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

// H = 1, an outer rate of 1 and no momentum: the mean of the replicas, which is data-parallel descent. Gradients are whole
// and the values multiples of a power of two, so that every sum is exact.
TEST(DiLoCo, IsDataParallelDescentWhereReplicasAgreeInEachStep) {
  for (const int replicas : {2, 4}) {
    Numbers data_parallel;
    const DiLoCoOptions each_step{.replicas = replicas, .sync_every = 1, .lr = 1, .momentum = 0};
    const auto rounded = [](ShardedParameters& sharded) {
      for (const ShardedParameters::Range& range : sharded.ranges()) {
        for (std::int64_t i = 0; i < range.count; ++i) range.value.set(i, std::round(range.value.at(i) * 64) / 64);
      }
    };
    std::vector<Numbers> found(static_cast<std::size_t>(replicas));
    for (const bool apart : {false, true}) {
      run_threads(replicas, [&](const Communicator& world) {
        const ReplicaGroups groups = apart ? split_into_replicas(world, replicas) : ReplicaGroups{world, {}};
        const Mesh mesh(groups.replica, {{Axis::data, groups.replica.size()}});
        Parameters parameters;
        add_parameters(parameters, mesh);
        ShardedParameters sharded(parameters, mesh, {.zero = ZeroStage::none});
        sharded.initialise(1);
        rounded(sharded);
        SGD optimizer(sharded, {.momentum = 0});
        const auto outer = apart ? std::make_unique<DiLoCo>(sharded, optimizer, groups.peers, each_step) : nullptr;
        for (int step = 0; step < 4; ++step) {
          if (outer) outer->begin_step();
          sum_gradients(sharded, parameters, [&](const std::string& name, std::int64_t i) {
            double all = 0;  // data-parallel ranks: only the first one adds gradients
            for (int replica = 0; replica < replicas; ++replica) all += whole_number(name, i, replica, step);
            return apart ? whole_number(name, i, world.rank(), step) : all / replicas;
          });
          optimizer.step(0.5, 1);
          if (outer) outer->end_step();
        }
        const Numbers its = numbers_of(sharded.whole_values());
        if (apart) found[static_cast<std::size_t>(world.rank())] = its;
        if (!apart && world.rank() == 0) data_parallel = its;
      });
    }
    for (const Numbers& its : found) EXPECT_EQ(its, data_parallel);
    DiLoCoOptions seldom = each_step;
    seldom.sync_every = 3;  // the control: behind the last round each goes its own way
    EXPECT_GT(largest_difference(values_after(4, seldom)[0], values_after(4, seldom)[1]), 0.1);
  }
}

// Nesterov's step in the form of torch.optim.SGD. The controls: the other sign of the change, and no momentum.
TEST(DiLoCo, StepsByItsEquations) {
  const Numbers begin = values_after(0, {.replicas = 2, .sync_every = 1}).front();
  for (const double alpha : {0.0, 0.25}) {
    const DiLoCoOptions options{.replicas = 2, .sync_every = 3, .fragment_update_alpha = alpha};
    const Numbers found = values_after(9, options).front();
    EXPECT_LT(largest_difference(found, by_equations(begin, 9, options)), 1e-4);
    EXPECT_GT(largest_difference(found, by_equations(begin, 9, options, -1)), 1);
    DiLoCoOptions other = options;
    other.momentum = 0;
    EXPECT_GT(largest_difference(found, by_equations(begin, 9, other)), 1);
  }
}

// Replica 1 sends only when replica 0 has computed the step behind the one in which it has sent. Without a delay (the
// control) replica 0 cannot get there.
TEST(DiLoCo, ComputesWhileAFragmentIsExchanged) {
  for (const std::int64_t delay : {1, 0}) {
    std::atomic<bool> has_gone_on = false;
    bool seen = false;
    run_threads(2, [&](const Communicator& world) {
      const ReplicaGroups groups = split_into_replicas(world, 2);
      const Mesh mesh(groups.replica, {});
      Parameters parameters;
      add_parameters(parameters, mesh);
      ShardedParameters sharded(parameters, mesh, {});
      sharded.initialise(1);
      SGD optimizer(sharded, {.momentum = 0});
      DiLoCo outer(sharded, optimizer, groups.peers, {.replicas = 2, .sync_every = 2, .fragment_sync_delay = delay});
      outer.begin_step();
      for (int step = 0; step < 4; ++step) {
        sum_gradients(sharded, parameters, [](const std::string&, std::int64_t) { return 1; });
        optimizer.step(0.5, 1);
        if (world.rank() == 0 && step == 2) has_gone_on = true;
        for (int look = 0; world.rank() == 1 && step == 1 && look < (delay > 0 ? 20000 : 200) && !has_gone_on; ++look)
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        if (world.rank() == 1 && step == 1) seen = has_gone_on;
        outer.end_step();
      }
    });
    EXPECT_EQ(seen, delay > 0);
  }
}

TEST(DiLoCo, RefusesReplicasThatBeginApart) {
  expect_refusal([] { values_after(1, {.replicas = 2, .sync_every = 2}, true); },
                 "Replica 1 begins with other weights than replica 0");
}

TEST(DiLoCo, RefusesNumbersThatDoNotGoTogether) {
  const auto refusal = [](const DiLoCoOptions& options) { return [options] { options.check(); }; };
  expect_refusal(refusal({.replicas = 0}), "0 replicas");
  expect_refusal(refusal({.replicas = 2, .sync_every = 0}), "every 0 steps");
  expect_refusal(refusal({.replicas = 2, .sync_every = 10, .fragments = 3}), "3 fragments do not divide the 10 steps");
  expect_refusal(refusal({.replicas = 2, .sync_every = 10, .fragments = 5, .fragment_sync_delay = 2}), "arrives 2 steps");
  expect_refusal(refusal({.replicas = 2, .fragment_update_alpha = 1.5}), "1.5");
  expect_refusal(refusal({.replicas = 2, .lr = 0}), "rate of 0");
  expect_refusal(refusal({.replicas = 2, .momentum = 1}), "momentum of 1");
  expect_refusal(refusal({.replicas = 2, .format = QuantizedFormat::onebit}), "onebit");
  DiLoCoOptions{.replicas = 2, .sync_every = 10, .fragments = 5, .fragment_sync_delay = 1}.check();
  DiLoCoOptions{.sync_every = 0}.check();  // of one replica
  run_threads(3, [](const Communicator& world) {
    expect_refusal([&] { split_into_replicas(world, 2); }, "2 replicas do not divide 3 ranks");
  });
}

TEST(DiLoCo, SendsEachFragmentOnceARoundAndMergesItBehindTheDelay) {
  const DiLoCoOptions options{.replicas = 2, .sync_every = 6, .fragments = 3, .fragment_sync_delay = 1};
  std::vector<int> sent, merged;  // -1: none
  for (std::int64_t step = 0; step <= 12; ++step) {
    sent.push_back(options.sent_at(step).value_or(-1));
    merged.push_back(options.merged_at(step).value_or(-1));
  }
  EXPECT_THAT(sent, testing::ElementsAre(-1, -1, 0, -1, 1, -1, 2, -1, 0, -1, 1, -1, 2));
  EXPECT_THAT(merged, testing::ElementsAre(-1, -1, -1, 0, -1, 1, -1, 2, -1, 0, -1, 1, -1));
  EXPECT_FALSE(DiLoCoOptions{.sync_every = 1}.sent_at(1)) << "one replica sends nothing";
}

// Of equally large parameters each fragment has as many; frozen ones are in none.
TEST(DiLoCo, CutsTheModelIntoEvenFragments) {
  Parameters parameters;
  for (int i = 0; i < 12; ++i) {
    parameters.add(Parameter::whole(fmt::format("p{}", i), {5}, token_axes, {.trainable = i % 3 != 0}));
  }
  EXPECT_THAT(fragments_of(parameters, 4), testing::ElementsAre(-1, 0, 0, -1, 1, 1, -1, 2, 2, -1, 3, 3));
  EXPECT_THAT(fragments_of(parameters, 1), testing::ElementsAre(-1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0));
  expect_refusal([&] { fragments_of(parameters, 9); }, "9 fragments");
}

TEST(DiLoCo, AddsSlotsThatTheInnerOptimizerLeavesAlone) {
  run_threads(2, [](const Communicator& world) {
    const ReplicaGroups groups = split_into_replicas(world, 2);
    const Mesh mesh(groups.replica, {});
    Parameters parameters;
    add_parameters(parameters, mesh);
    ShardedParameters sharded(parameters, mesh, {});
    sharded.initialise(1);
    SGD optimizer(sharded, {.momentum = 0});
    const DiLoCo outer(sharded, optimizer, groups.peers, {.replicas = 2, .sync_every = 2});
    EXPECT_EQ(to_string(optimizer.kind()), "sgd (outer, outer_momentum)");
    sum_gradients(sharded, parameters, [](const std::string&, std::int64_t) { return 1; });
    optimizer.step(0.5, 1);
    for (const Optimizer::State& state : optimizer.states()) {
      for (const Tensor& slot : state.slots) EXPECT_EQ(kernels::sum_of_squares(slot), 0);
    }
    expect_refusal([&] { optimizer.add_slots({{"outer"}}); }, "two slots 'outer'");
  });
}

}  // namespace
}  // namespace stretto
