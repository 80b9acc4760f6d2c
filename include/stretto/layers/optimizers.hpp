#pragma once
#include <memory>
#include <variant>

#include "stretto/layers/adamw.hpp"
#include "stretto/layers/demo.hpp"
#include "stretto/layers/muon.hpp"
#include "stretto/layers/onebit_adam.hpp"
#include "stretto/layers/sgd.hpp"

// A choice among the optimizers of this library, for programs whose users choose.
namespace stretto {

using OptimizerOptions = std::variant<AdamW::Options, SGD::Options, Muon::Options, OneBitAdam::Options, DeMo::Options>;
STRETTO_API OptimizerKind kind_of(const OptimizerOptions& options);
// `parameters` must outlive the optimizer.
STRETTO_API std::unique_ptr<Optimizer> make_optimizer(ShardedParameters& parameters, const OptimizerOptions& options);

}  // namespace stretto
