#pragma once
#include <array>

#include "stretto/layers/optimizer.hpp"

namespace stretto {

using StateTensor = Tensor AdamWOptimizer::State::*;

// The tensors of a parameter's state, and what precedes the parameter's name in a checkpoint. Values come first.
struct NamedStateTensor {
  const char* prefix;
  StateTensor tensor;
};
inline constexpr std::array<NamedStateTensor, 3> state_tensors = {
    {{"", &AdamWOptimizer::State::master}, {"m.", &AdamWOptimizer::State::m}, {"v.", &AdamWOptimizer::State::v}}};

}  // namespace stretto
