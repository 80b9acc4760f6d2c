#include "stretto/layers/demo.hpp"

#include <fmt/format.h>

#include <string>

#include "core/fail.hpp"
#include "layers/optimizer/local_vectors.hpp"
#include "layers/optimizer/matrices/coefficient_exchange.hpp"
#include "stretto/device.hpp"
#include "stretto/kernels.hpp"
#include "stretto/require_same.hpp"

namespace stretto {

OptimizerKind DeMo::Options::kind() const {
  return {.name = "demo", .slots = {}, .coefficients = CoefficientChoice{compression_chunk, compression_topk}};
}

void DeMo::Options::check(const ShardedParameters::Options& sharding) const {
  require(compression_chunk >= 1 && compression_chunk <= CoefficientVector::largest_chunk,
          "A chunk of DeMo cannot have sides of {}; give 1 to {}, so that the place of a coefficient fits into 16 bits.",
          compression_chunk, CoefficientVector::largest_chunk);
  require(compression_topk >= 1, "DeMo cannot send {} coefficients of each chunk; give 1 or more.", compression_topk);
  require(compression_decay >= 0 && compression_decay < 1,
          "A decay of {} lets DeMo's momentum grow without end; give 0 or more, below 1.", compression_decay);
  check_own_gradients("DeMo", sharding);
  require(sharding.dtype != DType::f64,
          "DeMo sends coefficients of 32 bits, and values of {} have momentum of 64; give a type of 32 or 16 bits.",
          training_name(sharding.dtype));
}

DeMo::DeMo(ShardedParameters& parameters, const Options& options)
    : Optimizer(parameters, options.kind()), options_(options) {
  options.check(parameters.options());
  require(current_device() == Device::cpu, "DeMo runs on the host; choose another optimizer on a GPU.");
  // Ranks index their chunks by the places that others send.
  require_same(parameters.mesh().world(),
               {{"The chunk of DeMo", std::to_string(options.compression_chunk)},
                {"The number of coefficients that DeMo sends of a chunk", std::to_string(options.compression_topk)},
                {"The decay of DeMo", fmt::format("{}", options.compression_decay)}});
  parameters.keep_gradients_local(true);
  exchange_ = std::make_unique<CoefficientExchange>(parameters, *kind().coefficients, options.compression_decay);
}

DeMo::~DeMo() = default;

void DeMo::prepare(const Step& step) { exchange_->run(step.lr * step.gradient_scale); }

void DeMo::update(const ShardedParameters::Range& range, const Parameter& parameter, const State& state, const Step& step) {
  const kernels::SGDStep descent{
      .lr = step.lr, .momentum = 0, .weight_decay = parameter.decays ? options_.weight_decay : 0, .gradient_scale = 1};
  kernels::sgd(descent, exchange_->sign_of(range), state.master, {}, range.value);
}

}  // namespace stretto
