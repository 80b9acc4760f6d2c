// The rates and the corrected weights of PipeMare, on parameters without a model.
#include "stretto/layers/pipemare.hpp"

#include <gmock/gmock.h>

#include <cmath>

#include "stretto/layers/sgd.hpp"
#include "support/error.hpp"
#include "two_parameters.hpp"

namespace stretto {
namespace {

using Numbers = std::vector<double>;

TEST(PipeMareRates, AreThoseOfThePaper) {
  const PipeMareOptions options{.annealing_steps = 4};
  // tau^(-q) with q = 1, 3/4, 1/2, 1/4, and from then on 0.
  for (const double delay : {2.0, 3.0, 26.75}) {
    for (int step = 0; step < 4; ++step) {
      EXPECT_DOUBLE_EQ(options.rate_factor(delay, step), std::pow(delay, -(1 - step / 4.0))) << delay << ", " << step;
    }
    EXPECT_EQ(options.rate_factor(delay, 4), 1);
    EXPECT_EQ(options.rate_factor(delay, 1000), 1);
    EXPECT_LT(options.rate_factor(delay, 0), 1) << "the control";
  }
  // No stage gets a larger rate than it is given.
  for (const double delay : {0.0, 0.125, 1.0}) EXPECT_EQ(options.rate_factor(delay, 0), 1);
  EXPECT_EQ(PipeMareOptions().rate_factor(7, 0), 1) << "without annealing";
}

TEST(PipeMareRates, KeepLessOfTheChangesTheShorterTheDelay) {
  // The delays of 4 stages with 8 microbatches to an update in the paper.
  for (const double delay : {0.875, 0.625, 0.375, 0.125}) {
    const auto expected =
        static_cast<double>(std::pow(static_cast<long double>(0.135), 1 / static_cast<long double>(delay)));
    EXPECT_NEAR(PipeMareOptions().keeping(delay), expected, std::nextafter(expected, 1) - expected);
  }
  EXPECT_DOUBLE_EQ(PipeMareOptions{.decay = 0.25}.keeping(0.5), 0.0625);
}

// What a training of a few updates reads forward and backward, by update.
struct Read {
  std::vector<Numbers> latest, corrected;
  bool operator==(const Read&) const = default;
};

constexpr int updates = 5;

double gradient(const std::string& name, std::int64_t i, int update) {
  return std::floor(16 * random_uniform(3, name, static_cast<std::uint64_t>(i + 1000 * update))) - 8;
}

Numbers numbers_of(const Parameters& parameters) {
  Numbers numbers;
  for (const auto& parameter : parameters.all()) {
    for (std::int64_t i = 0; i < parameter->value.size(); ++i) numbers.push_back(parameter->value.at(i));
  }
  return numbers;
}

std::vector<Read> trained(int ranks, ZeroStage zero, double discrepancy, const PipeMareOptions& options,
                          DType dtype = DType::f64, int begin_again_at = -1) {
  std::vector<Read> found(static_cast<std::size_t>(ranks));
  run_threads(ranks, [&](const Communicator& world) {
    const Mesh mesh(world, {{Axis::data, ranks}});
    Parameters parameters;
    add_parameters(parameters, mesh);
    ShardedParameters sharded(parameters, mesh, {.zero = zero, .dtype = dtype, .versions = discrepancy > 0 ? 2 : 1});
    sharded.initialise(1);
    SGD optimizer(sharded, {.momentum = 0.5});
    PipeMare correction(sharded, optimizer, discrepancy, options);
    EXPECT_EQ(to_string(optimizer.kind()), "sgd (momentum, delta)");
    Read& mine = found[static_cast<std::size_t>(world.rank())];
    const auto read = [&](int version) {
      sharded.read_version(version);
      const InUse in_use(sharded, *parameters.used().front(), Pass::forward);
      return numbers_of(parameters);
    };
    int made = 0;
    sharded.begin_versions();
    correction.begin();
    for (int update = 0; update < updates; ++update) {
      if (update == begin_again_at) {
        sharded.begin_versions();
        correction.begin();
        made = 0;
      }
      mine.latest.push_back(read(made));
      mine.corrected.push_back(read(discrepancy > 0 ? made - 1 : made));
      sum_gradients(sharded, parameters, [&](const std::string& name, std::int64_t i) { return gradient(name, i, update); });
      sharded.keep_version();
      optimizer.step(0.25, 1);
      correction.updated();
      ++made;
    }
  });
  return found;
}

// The same by the equations.
Read by_equations(const Numbers& begin, double discrepancy, double decay, double sign = 1) {
  const double gamma = std::pow(decay, 1 / discrepancy);
  Numbers value = begin, momentum(begin.size(), 0), delta(begin.size(), 0);
  Read result;
  for (int update = 0; update < updates; ++update) {
    Numbers corrected;
    for (std::size_t i = 0; i < begin.size(); ++i) corrected.push_back(value[i] + -discrepancy * delta[i]);
    result.latest.push_back(value);
    result.corrected.push_back(corrected);
    for (std::size_t i = 0; i < begin.size(); ++i) {
      const double before = value[i];
      const bool first = i < 40;  // of two parameters
      const double g = gradient(first ? "divided" : "replicated", static_cast<std::int64_t>(first ? i : i - 40), update);
      momentum[i] = 0.5 * momentum[i] + g;
      value[i] -= 0.25 * momentum[i];
      delta[i] = gamma * delta[i] + (1 - gamma) * (sign * (value[i] - before));
    }
  }
  return result;
}

double farthest(const Read& a, const Read& b) {
  double most = 0;
  for (int update = 0; update < updates; ++update) {
    for (std::size_t i = 0; i < a.latest[update].size(); ++i) {
      most = std::max(most, std::abs(a.latest[update][i] - b.latest[update][i]));
      most = std::max(most, std::abs(a.corrected[update][i] - b.corrected[update][i]));
    }
  }
  return most;
}

TEST(PipeMareCorrection, IsThatOfTheEquations) {
  for (const double discrepancy : {0.375, 1.0, 3.0}) {
    for (const double decay : {0.135, 0.5}) {
      for (const auto& [ranks, zero] : {std::pair{1, ZeroStage::none}, {2, ZeroStage::none}, {2, ZeroStage::optimizer}}) {
        const std::vector<Read> found = trained(ranks, zero, discrepancy, {.decay = decay});
        for (const Read& each : found) {
          EXPECT_EQ(each, found.front());
          EXPECT_LT(farthest(each, by_equations(each.latest.front(), discrepancy, decay)), 1e-12);
          EXPECT_GT(farthest(each, by_equations(each.latest.front(), discrepancy, decay, -1)), 0.1) << "the control";
        }
      }
    }
  }
}

TEST(PipeMareCorrection, StaysCloseInTypesOf16Bits) {
  const Read wide = trained(1, ZeroStage::none, 2, {}).front();
  const Read narrow = trained(1, ZeroStage::none, 2, {}, DType::bf16).front();
  EXPECT_LT(farthest(wide, narrow), 0.25);  // values are up to 60, whose last bits are 0.25
}

TEST(PipeMareCorrection, GoesOnWhereThePipelineIsEmptied) {
  const auto through = trained(2, ZeroStage::optimizer, 2, {});
  EXPECT_EQ(trained(2, ZeroStage::optimizer, 2, {}, DType::f64, 3), through);
}

TEST(PipeMareCorrection, OfNoDiscrepancyHasNoEffect) {
  const Read found = trained(2, ZeroStage::optimizer, 0, {}).front();
  EXPECT_EQ(found.latest, found.corrected);
  EXPECT_EQ(found.latest, trained(2, ZeroStage::optimizer, 2, {}).front().latest) << "updates are the optimizer's";
  EXPECT_NE(found.corrected, trained(2, ZeroStage::optimizer, 2, {}).front().corrected) << "the control";
}

TEST(PipeMareCorrection, RefusesWhatCannotBe) {
  EXPECT_THAT(sentence_of([] { PipeMareOptions{.annealing_steps = -1}.check(); }), testing::HasSubstr("-1 steps"));
  for (const double decay : {0.0, 1.0, -0.5}) {
    EXPECT_THAT(sentence_of([&] { PipeMareOptions{.decay = decay}.check(); }), testing::HasSubstr("above 0, below 1"));
  }
  run_threads(1, [](const Communicator& world) {
    const Mesh mesh(world, {});
    Parameters parameters;
    add_parameters(parameters, mesh);
    ShardedParameters sharded(parameters, mesh, {.versions = 1});
    SGD optimizer(sharded, {});
    EXPECT_THAT(sentence_of([&] { PipeMare(sharded, optimizer, -1, {}); }), testing::HasSubstr("-1 updates"));
    EXPECT_THAT(sentence_of([&] { PipeMare(sharded, optimizer, 1, {}); }), testing::HasSubstr("let them be 2"));
  });
}

}  // namespace
}  // namespace stretto
