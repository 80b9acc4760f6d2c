#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "layers/optimizer/matrices/powersgd.hpp"
#include "own_gradients.hpp"
#include "stretto/kernels.hpp"

// What holds of every training whose ranks exchange something else than sums of gradients.
namespace stretto {

inline constexpr ZeroStage own_gradient_stages[] = {ZeroStage::none, ZeroStage::optimizer, ZeroStage::gradients};

// After each step all ranks have the same weights, at every stage those of ZeRO 0. The control: the ranks' own errors
// differ.
inline void expect_equal_weights_at_every_stage(OwnGradientLayout layout, int ranks, int steps) {
  std::vector<NumbersByElement> first;  // by step, at ZeRO 0
  layout.mesh = {{Axis::data, ranks}};
  for (const ZeroStage stage : own_gradient_stages) {
    layout.stage = stage;
    std::vector<NumbersByElement> own(static_cast<std::size_t>(ranks));
    std::vector<double> errors(static_cast<std::size_t>(ranks));
    run_threads(ranks, [&](const Communicator& world) {
      const auto rank = static_cast<std::size_t>(world.rank());
      OwnGradientTraining training(world, layout);
      for (int step = 1; step <= steps; ++step) {
        training.step(step);
        own[rank] = training.values();
        if (stage == ZeroStage::none && rank == 0) first.push_back(own[rank]);
        world.barrier(Stream::inline_()).wait();
        EXPECT_EQ(own[rank], own.front()) << ranks << " ranks, step " << step;
        EXPECT_EQ(own[rank], first[static_cast<std::size_t>(step - 1)]) << "stage " << static_cast<int>(stage);
        world.barrier(Stream::inline_()).wait();
      }
      for (const ErrorFeedback::Entry& entry : training.sharded().errors().entries()) {
        if (entry.hop != Hop::contribution || PowerSGD::is_factor(entry.tensor)) continue;
        errors[rank] = kernels::sum_of_squares(entry.values);
      }
    });
    for (int rank = 1; rank < ranks; ++rank) EXPECT_NE(errors[static_cast<std::size_t>(rank)], errors.front());
  }
}

// Of 2 data-parallel x 2 tensor-parallel ranks.
inline void expect_equal_copies_at_every_stage(OwnGradientLayout layout, int steps) {
  layout.mesh = {{Axis::tensor, 2}, {Axis::data, 2}};
  for (const ZeroStage stage : own_gradient_stages) {
    layout.stage = stage;
    const auto values = trained_values(layout, steps);
    for (const auto& [element, value] : values[0]) {
      EXPECT_EQ(value, values[2].at(element));
      if (element.starts_with("replicated")) {
        EXPECT_EQ(value, values[1].at(element)) << element;
      }
    }
  }
}

// 2 or 4 microbatches train to the bits of one, at every stage those of ZeRO 0.
inline void expect_microbatches_to_change_nothing(OwnGradientLayout layout, int steps) {
  const auto expected = trained_values(layout, steps, integer_gradient);
  for (const ZeroStage stage : own_gradient_stages) {
    for (const int microbatches : {2, 4}) {
      layout.stage = stage;
      layout.microbatches = microbatches;
      EXPECT_EQ(trained_values(layout, steps, integer_gradient), expected) << microbatches << " microbatches";
    }
  }
}

// A step before `number` whose gradient is infinite on one rank is left out by all, and leaves nothing behind. The control:
// a step more.
inline void expect_nothing_of_a_step_left_out(OwnGradientLayout layout, int number, int steps) {
  for (const ZeroStage stage : own_gradient_stages) {
    layout.stage = stage;
    const auto after = [&](bool computes_it, bool takes_it) {
      std::vector<NumbersByElement> values(static_cast<std::size_t>(layout.mesh.ranks()));
      const auto gradient = [&](int rank, int step, const std::string& name, std::int64_t i) {
        const bool is_bad = step == 100 && !takes_it && rank == 1 && i == 5;
        return is_bad ? std::numeric_limits<double>::infinity() : normal_gradient(rank, step, name, i);
      };
      run_threads(static_cast<int>(layout.mesh.ranks()), [&](const Communicator& world) {
        OwnGradientTraining training(world, layout, gradient);
        for (int step = 1; step <= steps; ++step) {
          if (step == number && computes_it) {
            training.compute(100);
            EXPECT_EQ(std::isfinite(gradient_norm(training.sharded())), takes_it);
            if (takes_it) training.update();
          }
          training.step(step);
        }
        values[static_cast<std::size_t>(world.rank())] = training.values();
      });
      return values;
    };
    const auto expected = after(false, true);
    EXPECT_EQ(after(true, false), expected);
    EXPECT_NE(after(true, true), expected);
  }
}

}  // namespace stretto
