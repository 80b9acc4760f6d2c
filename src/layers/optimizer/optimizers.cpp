#include "stretto/layers/optimizers.hpp"

namespace stretto {
namespace {

struct Maker {
  ShardedParameters& parameters;

  std::unique_ptr<Optimizer> operator()(const AdamW::Options& options) const {
    return std::make_unique<AdamW>(parameters, options);
  }
  std::unique_ptr<Optimizer> operator()(const SGD::Options& options) const {
    return std::make_unique<SGD>(parameters, options);
  }
  std::unique_ptr<Optimizer> operator()(const Muon::Options& options) const {
    return std::make_unique<Muon>(parameters, options);
  }
  std::unique_ptr<Optimizer> operator()(const OneBitAdam::Options& options) const {
    return std::make_unique<OneBitAdam>(parameters, options);
  }
  std::unique_ptr<Optimizer> operator()(const DeMo::Options& options) const {
    return std::make_unique<DeMo>(parameters, options);
  }
};

}  // namespace

OptimizerKind kind_of(const OptimizerOptions& options) {
  return std::visit([](const auto& its) { return its.kind(); }, options);
}

std::unique_ptr<Optimizer> make_optimizer(ShardedParameters& parameters, const OptimizerOptions& options) {
  return std::visit(Maker{parameters}, options);
}

}  // namespace stretto
