#include "stretto/layers/muon.hpp"

#include <algorithm>
#include <cmath>

#include "core/fail.hpp"
#include "layers/optimizer/adamw_step.hpp"
#include "layers/optimizer/matrices/matrix_exchange.hpp"
#include "layers/optimizer/matrices/newton_schulz.hpp"
#include "stretto/kernels.hpp"

namespace stretto {

double muon_scale(MuonScale scale, std::int64_t rows, std::int64_t columns) {
  const auto m = static_cast<double>(rows), n = static_cast<double>(columns);
  return scale == MuonScale::keller ? std::sqrt(std::max(1.0, m / n)) : 0.2 * std::sqrt(std::max(m, n));
}

OptimizerKind Muon::Options::kind() const {
  return {.name = "muon", .slots = {{"m"}, {.name = "v", .of_matrices = false}}, .whole_matrices = true};
}

void Muon::Options::check(DType values) const {
  require(momentum >= 0 && momentum < 1, "A momentum of {} makes no mean of gradients; give 0 or more, below 1.", momentum);
  require(!bf16_products || values != DType::f64,
          "Muon's products cannot be in bf16 beside values of {}, which would lose their precision; leave one of them out.",
          training_name(values));
}

Muon::Muon(ShardedParameters& parameters, const Options& options)
    : Optimizer(parameters, options.kind()), parameters_(parameters), options_(options) {
  options.check(parameters.options().dtype);
  for (const auto& each : parameters.parameters().all()) {
    require(each->tiles == 1 || !each->trainable, "Muon updates whole matrices, and {} is one of {} tiles; leave tiles out.",
            each->name, each->tiles);
  }
  require(std::ranges::any_of(parameters.parameters().all(),
                              [](const auto& each) { return each->trainable && !each->matrices.empty(); }),
          "Muon has nothing to do, since no hidden matrix is trained; give AdamW, also for adapters.");
  exchange_ = std::make_unique<MatrixExchange>(parameters);
}

Muon::~Muon() = default;

// kernels::sgd() with an lr of -momentum does both lines: m <- momentum m + x, x <- x + momentum m, for x = (1 - momentum)
// g.
void Muon::prepare(const Step& step) {
  if (exchange_->matrices().empty()) return;
  exchange_->adapt();
  const MemoryScope buffers(MemoryKind::buffers);
  const DType wide = kernels::accumulator(parameters_.options().dtype);
  Tensor sent({exchange_->contributed_elements()}, wide);
  std::vector<std::size_t> units;
  for (const MatrixExchange::Chunk& chunk : exchange_->contributed()) {  // in the order of ranges
    const std::size_t unit = parameters_.ranges()[chunk.range].unit;
    if (units.empty() || units.back() != unit) units.push_back(unit);
  }
  auto next = exchange_->contributed().begin();
  visit(units, [&](const ShardedParameters::Range& range, const State& state) {
    for (; next != exchange_->contributed().end() && next->range == range.index; ++next) {
      const auto part = [&](const Tensor& whole) { return whole.view(next->first, {next->count}); };
      const Tensor x = sent.view(next->at, {next->count});
      kernels::convert(part(range.gradient), x);
      kernels::scale(x, (1 - options_.momentum) * step.gradient_scale);
      if (options_.momentum == 0) continue;
      kernels::sgd({.lr = -options_.momentum, .momentum = options_.momentum}, x, x, part(state.slots[0]), x);
    }
  });
  require(next == exchange_->contributed().end(),
          "The pieces of matrices that a rank sends are not in the order of ranges.");
  updates_ = exchange_->run(
      std::move(sent), [&](std::size_t, const Tensor& values) { return orthogonalised(values, options_.bf16_products); });
  const std::vector<MatrixExchange::Chunk>& updated = exchange_->updated();
  pending_ = updated.size();
  chunks_of_.assign(parameters_.ranges().size(), updated.size());
  for (std::size_t i = updated.size(); i-- > 0;) chunks_of_[updated[i].range] = i;
}

void Muon::update(const ShardedParameters::Range& range, const Parameter& parameter, const State& state, const Step& step) {
  if (parameter.matrices.empty()) return update_by_adamw(options_, range, parameter, state, step);
  const std::vector<MatrixExchange::Chunk>& updated = exchange_->updated();
  for (std::size_t i = chunks_of_[range.index]; i < updated.size() && updated[i].range == range.index; ++i) {
    const auto& [unused, matrix, first, count, at] = updated[i];
    const HiddenMatrix& its = exchange_->matrices()[matrix];
    const kernels::SGDStep descent{.lr = step.lr * options_.matrix_lr,
                                   .momentum = 0,
                                   .weight_decay = parameter.decays ? options_.weight_decay : 0,
                                   .gradient_scale = muon_scale(options_.scale, its.rows, its.columns)};
    kernels::sgd(descent, updates_.view(at, {count}), state.master.view(first, {count}), {},
                 range.value.view(first, {count}));
    --pending_;
  }
  if (pending_ == 0) updates_ = {};
}

}  // namespace stretto
