// Sums of gradients in low-rank factors: what they are, keep, send and hold.
#include "layers/optimizer/matrices/powersgd.hpp"

#include <gmock/gmock.h>

#include <cmath>

#include "own_gradient_checks.hpp"
#include "stretto/kernels.hpp"
#include "stretto/planning/training_memory.hpp"
#include "support/error.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

constexpr std::int64_t matrix_rows = 10, matrix_columns = 40, vector_elements = 9;  // of the model's parameters

OwnGradientLayout low_rank(int ranks, const PowerSGDOptions& powersgd, ZeroStage stage = ZeroStage::none) {
  return {.mesh = {{Axis::data, ranks}}, .stage = stage, .optimizer = SGD::Options{}, .powersgd = powersgd};
}

// A matrix of this rank, with other left factors on each rank of the job and in each step, and the same right ones.
OwnGradient gradient_of_rank(int matrix_rank) {
  return [matrix_rank](int rank, int step, const std::string& name, std::int64_t i) {
    double sum = 0;
    for (int factor = 0; factor < matrix_rank; ++factor) {
      const auto normal = [&](const char* which, std::int64_t at) {
        return random_normal(5, fmt::format("{} {} {}", name, which, factor), static_cast<std::uint64_t>(at));
      };
      sum += normal("left", i / matrix_columns + 100 * step + 10000 * rank) * normal("right", i % matrix_columns);
    }
    return sum;
  };
}

NumbersByElement exact_sums(const OwnGradient& gradient, int ranks, int step) {
  NumbersByElement result;
  for (const auto& [name, elements] :
       {std::pair<std::string, std::int64_t>{"divided", matrix_rows * matrix_columns}, {"replicated", vector_elements}}) {
    for (std::int64_t i = 0; i < elements; ++i) {
      double& sum = result[fmt::format("{}[{}]", name, i)];
      for (int rank = 0; rank < ranks; ++rank) sum += gradient(rank, step, name, i);
    }
  }
  return result;
}

// The sums of each step, on the first rank.
std::vector<NumbersByElement> sums_of(const OwnGradientLayout& layout, const OwnGradient& gradient, int steps) {
  std::vector<NumbersByElement> result;
  run_threads(static_cast<int>(layout.mesh.ranks()), [&](const Communicator& world) {
    OwnGradientTraining training(world, layout, gradient);
    for (int step = 1; step <= steps; ++step) {
      training.compute(step);
      const NumbersByElement sums = training.sums();
      if (world.rank() == 0) result.push_back(sums);
      training.update();
    }
  });
  return result;
}

double largest(const NumbersByElement& numbers) {
  double most = 0;
  for (const auto& entry : numbers) most = std::max(most, std::abs(entry.second));
  return most;
}

// The control: a rank more than factors have columns.
TEST(PowerSGD, SumsAGradientOfItsRankExactly) {
  for (const int ranks : {2, 3}) {
    for (const ZeroStage stage : own_gradient_stages) {
      for (const int matrix_rank : {1, 2, 3}) {
        const OwnGradient gradient = gradient_of_rank(matrix_rank);
        const auto sums = sums_of(low_rank(ranks, {.rank = 2}, stage), gradient, 4);
        for (int step = 2; step <= 4; ++step) {
          const NumbersByElement expected = exact_sums(gradient, ranks, step);
          const double share = largest_difference(sums[static_cast<std::size_t>(step - 1)], expected) / largest(expected);
          if (matrix_rank <= 2) {
            EXPECT_LT(share, 1e-5) << matrix_rank << " on " << ranks << " ranks, step " << step;
          } else {
            EXPECT_GT(share, 1e-2);
          }
        }
      }
    }
  }
}

// Where factors would not be smaller: 8 (10 + 40) = 10 x 40. The control: one column less.
TEST(PowerSGD, SumsWholeWhatFactorsDoNotMakeSmaller) {
  for (const ZeroStage stage : own_gradient_stages) {
    for (const int rank : {7, 8, 10, 1000}) {
      const auto sums = sums_of(low_rank(3, {.rank = rank}, stage), integer_gradient, 3);
      for (int step = 1; step <= 3; ++step) {
        const NumbersByElement& found = sums[static_cast<std::size_t>(step - 1)];
        const NumbersByElement expected = exact_sums(integer_gradient, 3, step);
        EXPECT_EQ(found == expected, rank >= 8) << rank;
        for (std::int64_t i = 0; i < vector_elements; ++i) {
          const std::string element = fmt::format("replicated[{}]", i);
          EXPECT_EQ(found.at(element), expected.at(element)) << "vectors have no factors";
        }
      }
    }
  }
}

// The mean of many steps is the gradient, which stays. The control: without error feedback it stays off.
TEST(PowerSGD, FeedsBackWhatSumsHaveLeftOut) {
  constexpr int steps = 100;
  const OwnGradient gradient = [](int rank, int, const std::string& name, std::int64_t i) {
    return gradient_of_rank(8)(rank, 1, name, i);
  };
  const NumbersByElement expected = exact_sums(gradient, 2, 1);
  const auto off_by = [&](bool use_error_feedback) {
    NumbersByElement mean;
    const PowerSGDOptions options{.rank = 2, .use_error_feedback = use_error_feedback};
    for (const NumbersByElement& sums : sums_of(low_rank(2, options), gradient, steps)) {
      for (const auto& [element, value] : sums) mean[element] += value / steps;
    }
    return largest_difference(mean, expected) / largest(expected);
  };
  EXPECT_LT(off_by(true), 0.1);
  EXPECT_GT(off_by(false), 0.2);
}

// Sums of all steps + what the errors of all ranks hold = all gradients.
TEST(PowerSGD, LosesNothingButWhatTheErrorsHold) {
  NumbersByElement sums, held, expected;
  constexpr int ranks = 3, steps = 6;
  for (int step = 1; step <= steps; ++step) {
    for (const auto& [element, value] : exact_sums(normal_gradient, ranks, step)) expected[element] += value;
  }
  run_threads(ranks, [&](const Communicator& world) {
    OwnGradientTraining training(world, low_rank(ranks, {.rank = 1}), normal_gradient);
    for (int step = 1; step <= steps; ++step) {
      training.compute(step);
      const NumbersByElement found = training.sums();
      for (const auto& [element, value] : found) {
        if (world.rank() == 0) sums[element] += value;
      }
      training.update();
    }
    const ShardedParameters& sharded = training.sharded();
    const LocalGradients& vector = sharded.local_gradients().front();
    const Tensor errors =
        sharded.errors().state(PowerSGD::error_name(vector), Hop::contribution, vector.vector.size()).clone();
    world.all_reduce(errors, ReduceOp::sum, Stream::inline_()).wait();
    for (const LocalGradients::Piece& piece : vector.pieces) {
      const std::string& name = sharded.parameters().all()[piece.parameter]->name;
      for (std::int64_t i = 0; i < piece.count && world.rank() == 0; ++i) {
        held[fmt::format("{}[{}]", name, i)] = errors.at(piece.first + i);
      }
    }
  });
  EXPECT_GT(largest_difference(sums, expected), 0.1) << "the control: without what the errors hold";
  for (const auto& [element, value] : held) sums[element] += value;
  EXPECT_LT(largest_difference(sums, expected), 1e-4);
}

// A gradient that stays: power iteration finds its largest directions. The control: the first factors in every step.
TEST(PowerSGD, BeginsWithTheFactorsOfTheStepBefore) {
  const OwnGradient gradient = [](int rank, int, const std::string& name, std::int64_t i) {
    return gradient_of_rank(2)(rank, 1, name, i) + 0.2 * gradient_of_rank(8)(rank, 2, name, i);
  };
  const auto left_out = [&](bool warm_start, std::size_t step) {
    const PowerSGDOptions options{.rank = 2, .use_error_feedback = false, .warm_start = warm_start};
    const NumbersByElement found = sums_of(low_rank(2, options), gradient, 6)[step];
    double squares = 0;
    for (const auto& [element, value] : exact_sums(gradient, 2, 1)) squares += std::pow(found.at(element) - value, 2);
    return std::sqrt(squares);
  };
  EXPECT_EQ(left_out(true, 0), left_out(false, 0));
  EXPECT_EQ(left_out(false, 5), left_out(false, 0));
  EXPECT_LT(left_out(true, 5), 0.95 * left_out(false, 5));
}

TEST(PowerSGD, AllRanksHaveEqualWeightsAfterEachStepAtEveryStage) {
  for (const OptimizerOptions& optimizer : {OptimizerOptions(AdamW::Options{}), OptimizerOptions(Muon::Options{})}) {
    for (const int ranks : {2, 3, 5}) {
      OwnGradientLayout layout = low_rank(ranks, {.rank = 2, .start = 2});
      layout.optimizer = optimizer;
      expect_equal_weights_at_every_stage(layout, ranks, 6);
    }
  }
}

TEST(PowerSGD, KeepsCopiesOfTensorParallelRanksEqual) { expect_equal_copies_at_every_stage(low_rank(1, {.rank = 2}), 6); }

// Before the start it is the sums of an optimizer without it. The control: a start within these steps.
TEST(PowerSGD, BeginsBehindItsStart) {
  const auto after = [](const PowerSGDOptions& powersgd) { return trained_values(low_rank(3, powersgd), 4); };
  const auto expected = after({});
  EXPECT_EQ(after({.rank = 2, .start = 4}), expected);
  EXPECT_NE(after({.rank = 2, .start = 3}), expected);
}

TEST(PowerSGD, TakesMicrobatches) { expect_microbatches_to_change_nothing(low_rank(2, {.rank = 2}), 4); }

TEST(PowerSGD, AStepLeftOutLeavesNothingBehind) {
  for (const MeshShape& mesh : {MeshShape{{Axis::data, 3}}, {{Axis::tensor, 2}, {Axis::data, 2}}}) {
    OwnGradientLayout layout = low_rank(1, {.rank = 2});
    layout.mesh = mesh;
    expect_nothing_of_a_step_left_out(layout, 3, 5);
  }
}

// Factors of zeros have no direction; those of the first gradient that is not 0 are found nevertheless.
TEST(PowerSGD, GoesOnBehindGradientsOfZero) {
  const OwnGradient late = [](int rank, int step, const std::string& name, std::int64_t i) {
    return step <= 3 ? 0 : gradient_of_rank(1)(rank, 4, name, i);
  };
  const auto sums = sums_of(low_rank(2, {.rank = 2}), late, 8);
  for (std::size_t step = 0; step < 3; ++step) EXPECT_EQ(largest(sums[step]), 0);
  const NumbersByElement expected = exact_sums(late, 2, 4);
  EXPECT_LT(largest_difference(sums[7], expected), 1e-5 * largest(expected));
}

TEST(PowerSGD, TheNormIsThatOfTheSum) {
  run_threads(2, [](const Communicator& world) {
    OwnGradientTraining training(world, low_rank(2, {.rank = 2}, ZeroStage::optimizer));
    training.compute(1);
    double squares = 0;
    for (const auto& entry : training.sums()) squares += entry.second * entry.second;
    EXPECT_NEAR(gradient_norm(training.sharded()), std::sqrt(squares), 1e-5 * std::sqrt(squares));
  });
}

// Two all-reduces a step, of r (m + n) elements and the vectors. The control: a step before the start.
TEST(PowerSGD, SendsTheBytesOfItsFormula) {
  const Variable ring("STRETTO_ALGO", "all_reduce:ring;reduce_scatter:ring;all_gather:ring");
  for (const int ranks : {2, 4}) {
    for (const ZeroStage stage : own_gradient_stages) {
      for (const int rank : {1, 3}) {
        run_threads(ranks, [&](const Communicator& world) {
          OwnGradientTraining training(world, low_rank(ranks, {.rank = rank, .start = 1}, stage));
          const auto sent = [&](int step) {
            training.sharded().wait_for_values();
            world.barrier(Stream::inline_()).wait();
            const std::uint64_t since = world.job().ledger().next_sequence();
            training.step(step);
            training.sharded().wait_for_values();
            std::map<std::string, std::vector<std::int64_t>> by_tag;  // operations, elements, bytes
            for (const Record& record : world.job().ledger().records(since)) {
              auto& its = by_tag[record.tag];
              its.resize(3);
              ++its[0];
              its[1] += record.count;
              its[2] += static_cast<std::int64_t>(record.bytes_sent);
            }
            return by_tag;
          };
          auto before = sent(1), found = sent(2);
          EXPECT_GT(before["gradients"].at(2), 0);
          EXPECT_FALSE(before.contains("powersgd"));
          EXPECT_FALSE(found.contains("gradients"));
          EXPECT_EQ(found["powersgd"].at(0), 2);
          EXPECT_EQ(found["powersgd"].at(1), rank * (matrix_rows + matrix_columns) + vector_elements);
          EXPECT_EQ(found.contains("parameters"), stage != ZeroStage::none);
          const ShardedParameters& sharded = training.sharded();
          const auto planned = state_traffic(sharded.parameters(), sharded.mesh().shape(), sharded.options(), 1).at("dp");
          const std::int64_t all = found["powersgd"].at(2) + (stage == ZeroStage::none ? 0 : found["parameters"].at(2));
          EXPECT_NEAR(static_cast<double>(all), static_cast<double>(planned), ranks == 2 ? 0 : 4 * 2 * 2);
        });
      }
    }
  }
}

// The control: sums as they are, which take less.
TEST(PowerSGD, TakesTheMemoryOfItsFormula) {
  for (const ZeroStage stage : {ZeroStage::none, ZeroStage::gradients}) {
    run_threads(2, [&](const Communicator& world) {
      const std::int64_t before[] = {bytes_of_both(world, MemoryKind::optimizer), bytes_of_both(world, MemoryKind::buffers)};
      OwnGradientLayout layout = low_rank(2, {.rank = 2}, stage);
      layout.optimizer = SGD::Options{.momentum = 0};  // without a state
      OwnGradientTraining training(world, layout);
      const ShardedParameters& sharded = training.sharded();
      constexpr std::int64_t elements = matrix_rows * matrix_columns + vector_elements;
      EXPECT_EQ(bytes_of_both(world, MemoryKind::optimizer) - before[0], 2 * 4 * elements);
      EXPECT_EQ(bytes_of_both(world, MemoryKind::buffers) - before[1], 2 * 4 * (elements + 2 * matrix_columns))
          << "errors and Q";
      const auto planned = [&](const PowerSGDOptions& powersgd) {
        ShardedParameters::Options options = sharded.options();
        options.powersgd = powersgd;
        return state_memory(sharded.parameters(), sharded.mesh().shape(), options, training.optimizer().kind());
      };
      const TrainingMemory with = planned({.rank = 2}), without = planned({});
      EXPECT_EQ(with.optimizer - without.optimizer, 4 * elements);
      const std::int64_t messages = 2 * matrix_rows + vector_elements + 2 * matrix_columns + matrix_rows * matrix_columns;
      EXPECT_EQ(with.buffers - without.buffers, 4 * (elements + 2 * 2 * matrix_columns + messages));
    });
  }
}

TEST(PowerSGD, RefusesWhatCannotBe) {
  using testing::HasSubstr;
  const auto refusal = [](const ShardedParameters::Options& options) {
    return sentence_of([&] { options.check({{Axis::data, 2}}); });
  };
  const PowerSGDOptions two{.rank = 2};
  EXPECT_EQ(refusal({.powersgd = two}), "");
  EXPECT_THAT(refusal({.zero = ZeroStage::values, .powersgd = two}), HasSubstr("ZeRO stage 3"));
  EXPECT_THAT(refusal({.delay = 1, .powersgd = two}), HasSubstr("leave delays"));
  EXPECT_THAT(refusal({.powersgd = two, .versions = 2}), HasSubstr("without a flush"));
  EXPECT_THAT(refusal({.dtype = DType::f64, .powersgd = two}), HasSubstr("give a type of 32 or 16 bits"));
  EXPECT_THAT(refusal({.zero = ZeroStage::gradients, .powersgd = two, .offload = {.gradients = {"/scratch"}}}),
              HasSubstr("none of them can lie in /scratch"));
  EXPECT_THAT(refusal({.powersgd = {.rank = -1}}), HasSubstr("-1 columns"));
  EXPECT_THAT(refusal({.powersgd = {.rank = 1, .start = -1}}), HasSubstr("-1 updates"));
  EXPECT_THAT(refusal({.powersgd = {.start = 3}}), HasSubstr("has no rank"));
  EXPECT_THAT(sentence_of([&] { OneBitAdam::Options().check({.powersgd = two}); }), HasSubstr("PowerSGD of rank 2"));
}

}  // namespace
}  // namespace stretto
