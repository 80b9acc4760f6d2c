#include "stretto/layers/optimizer.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>
#include <utility>

#include "collectives/job/throw_together.hpp"
#include "core/fail.hpp"
#include "layers/offload_use.hpp"
#include "stretto/kernels.hpp"

namespace stretto {
namespace {

void fill(const Tensor& tensor, double value) {
  const Tensor values(tensor.shape(), tensor.dtype(), Device::cpu);
  for (std::int64_t i = 0; i < values.size(); ++i) values.set(i, value);
  tensor.copy_from(values);
}

// Times the ranks of each sum.
double squares_of_local_gradients(const ShardedParameters& parameters) {
  double squares = 0;
  for (const LocalGradients& local : parameters.local_gradients()) {
    std::vector<Tensor> gradients;
    for (const LocalGradients::Piece& piece : local.pieces) {
      if (piece.counts) gradients.push_back(local.vector.view(piece.first, {piece.count}));
    }
    for (const double each : kernels::sums_of_squares(gradients)) squares += each * local.group.size();
  }
  return squares;
}

}  // namespace

double gradient_norm(const ShardedParameters& parameters) { return gradient_norm(parameters, parameters.mesh().world()); }

double gradient_norm(const ShardedParameters& parameters, const Communicator& group) {
  double squares = parameters.sums_gradients() ? 0 : squares_of_local_gradients(parameters);
  if (parameters.sums_gradients()) {
    for (const double each : parameters.squares_of_gradients()) squares += each;
    if (parameters.is_served()) squares *= group.size();
  }
  if (group.size() > 1) {
    group.all_reduce(&squares, &squares, 1, DType::f64, ReduceOp::sum, Stream::inline_(), {.tag = "gradient norm"}).wait();
  }
  return std::sqrt(squares);
}

std::int64_t OptimizerKind::state_bytes(DType compute, bool of_matrix) const {
  const DType wide = kernels::accumulator(compute);
  std::size_t bytes = compute == wide ? 0 : size_of(wide);
  for (const StateSlot& slot : slots) bytes += slot.of_matrices || !of_matrix ? size_of(slot.dtype.value_or(wide)) : 0;
  return static_cast<std::int64_t>(bytes);
}

std::string to_string(const OptimizerKind& kind) {
  std::vector<std::string> names;
  for (const StateSlot& slot : kind.slots) names.push_back(slot.name);
  return names.empty() ? kind.name + " without slots" : fmt::format("{} ({})", kind.name, fmt::join(names, ", "));
}

Optimizer::Optimizer(ShardedParameters& parameters, OptimizerKind kind) : parameters_(parameters), kind_(std::move(kind)) {
  place_states();
  parameters.set_updates(0);
}

Optimizer::~Optimizer() = default;

void Optimizer::add_slots(const std::vector<StateSlot>& slots) {
  kind_.slots.insert(kind_.slots.end(), slots.begin(), slots.end());
  place_states();
}

// The tensors of a unit's ranges lie in a block, one behind the other, so that a file is read and written in large pieces.
void Optimizer::place_states() {
  std::set<std::string> names;
  for (const StateSlot& slot : kind_.slots) {
    require(names.insert(slot.name).second, "Optimizer {} has two slots '{}'; give each a name of its own.", kind_.name,
            slot.name);
  }
  const DType dtype = parameters_.options().dtype;
  const DType wide = kernels::accumulator(dtype);
  values_are_masters_ = dtype == wide;
  std::vector<std::int64_t> bytes(parameters_.unit_count(), 0);
  places_.assign(parameters_.ranges().size(), {});
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const ShardedParameters::Range& range = parameters_.ranges()[i];
    if (!range.gradient) continue;
    std::int64_t& end = bytes[range.unit];
    const auto place = [&](std::optional<std::size_t> slot, DType its) {
      const auto size = static_cast<std::int64_t>(size_of(its));
      const std::int64_t offset = (end + size - 1) / size * size;
      places_[i].push_back({i, slot, offset, its});
      end = offset + range.count * size;
    };
    if (!values_are_masters_) place({}, wide);
    const Parameter& parameter = *parameters_.parameters().all()[range.parameter];
    for (std::size_t slot = 0; slot < kind_.slots.size(); ++slot) {
      if (kind_.slots[slot].is_of(parameter) && !parameters_.is_served())
        place(slot, kind_.slots[slot].dtype.value_or(wide));
    }
  }
  std::int64_t widest = static_cast<std::int64_t>(size_of(wide));
  for (const StateSlot& slot : kind_.slots)
    widest = std::max(widest, static_cast<std::int64_t>(size_of(slot.dtype.value_or(wide))));
  for (std::int64_t& each : bytes) each = (each + widest - 1) / widest * widest;
  const ShardedParameters::Options& options = parameters_.options();
  const std::vector<std::int64_t> in_file = options.offload.optimizer.in_file(bytes);
  offloaded_.reset();
  if (!options.offload.optimizer.directory.empty()) {
    throw_together(parameters_.mesh().world(), "make its scratch file", [&] {
      if (std::ranges::none_of(in_file, [](std::int64_t each) { return each > 0; })) return;
      offloaded_ = std::make_unique<UnitFile>(options.offload.optimizer.directory, in_file,
                                              UnitFile::Options{.overlap = options.overlap,
                                                                .two_places = options.offload.speculates,
                                                                .name = "optimizer state",
                                                                .gate = options.offload.gate});
    });
  }
  std::int64_t in_memory = 0;
  for (std::size_t unit = 0; unit < bytes.size(); ++unit) in_memory += in_file[unit] > 0 ? 0 : bytes[unit];
  const MemoryScope memory(MemoryKind::optimizer);
  const Tensor all = Tensor::zeros({in_memory}, DType::u8);
  std::vector<Tensor> blocks;
  std::int64_t first = 0;
  for (std::size_t unit = 0; unit < bytes.size(); ++unit) {
    blocks.push_back(in_file[unit] > 0 ? offloaded_->mapped(unit) : all.view(first, {bytes[unit]}));
    first += in_file[unit] > 0 ? 0 : bytes[unit];
  }
  states_.clear();
  for (std::size_t i = 0; i < places_.size(); ++i) {
    states_.push_back(state_in(blocks[parameters_.ranges()[i].unit], i));
    for (const Place& place : places_[i]) {
      const double initial = place.slot ? kind_.slots[*place.slot].initial : 0;
      if (initial != 0) fill(states_.back().slots[*place.slot], initial);
    }
    release_behind(i);
  }
  adopt_values();
}

Optimizer::State Optimizer::state_in(const Tensor& block, std::size_t range) const {
  const ShardedParameters::Range& its = parameters_.ranges()[range];
  State state;
  if (!its.gradient) return state;
  state.master = its.value;
  state.slots.resize(kind_.slots.size());
  for (const Place& place : places_[range]) {
    (place.slot ? state.slots[*place.slot] : state.master) =
        block.view(static_cast<std::size_t>(place.offset), {its.count}, place.dtype);
  }
  return state;
}

std::optional<OffloadUse> Optimizer::offloaded() const {
  if (!offloaded_) return {};
  return use_of(*offloaded_, parameters_.options().offload.optimizer);
}

void Optimizer::release(std::size_t unit) const {
  if (offloaded_) offloaded_->release(unit);
  parameters_.release(unit);
}

void Optimizer::release_behind(std::size_t range) const {
  const std::vector<ShardedParameters::Range>& ranges = parameters_.ranges();
  if (range + 1 == ranges.size() || ranges[range + 1].unit != ranges[range].unit) release(ranges[range].unit);
}

const std::vector<Optimizer::State>& Optimizer::states() const {
  if (offloaded_) offloaded_->touch();
  return states_;
}

void Optimizer::step(double lr, double gradient_scale) {
  const Step step{.lr = lr, .gradient_scale = gradient_scale, .number = ++steps_};
  prepare(step);
  if (offloaded_) offloaded_->begin(parameters_.update_order());
  parameters_.update([&](std::size_t unit) { update_unit(unit, step, false); });
  finished(step);
  parameters_.set_updates(steps_);
}

void Optimizer::update_unit(std::size_t unit, const Step& step, bool apart) {
  const Tensor block = offloaded_ ? offloaded_->take(unit) : Tensor();
  const ShardedParameters::Shares shares = apart ? parameters_.take_apart(unit) : ShardedParameters::Shares();
  std::int64_t first = 0;  // ranges whose values or gradients lie in files follow each other in the share
  for (const std::size_t i : parameters_.ranges_to_update(unit)) {
    ShardedParameters::Range with_apart;
    if (apart) {
      with_apart = parameters_.ranges()[i];
      if (shares.values) with_apart.value = shares.values.view(first, {with_apart.count});
      if (shares.gradients) with_apart.gradient = shares.gradients.view(first, {with_apart.count});
      first += with_apart.count;
      if (values_are_masters_) apart_.values[i].copy_from(with_apart.value);
      with_apart.value = apart_.values[i];
    }
    const ShardedParameters::Range& range = apart ? with_apart : parameters_.ranges()[i];
    State state = block ? state_in(block, i) : states_[i];
    if (values_are_masters_) state.master = range.value;  // which may lie elsewhere during an update
    update(range, *parameters_.parameters().all()[range.parameter], state, step);
  }
  if (block) offloaded_->give_back(unit);
  if (apart) parameters_.give_back_apart(unit);
}

void Optimizer::visit(const std::vector<std::size_t>& units, const Visit& action, bool writes) {
  if (offloaded_) offloaded_->begin(units);
  parameters_.begin_gradients(units);
  for (const std::size_t unit : units) {
    const Tensor block = offloaded_ ? offloaded_->take(unit) : Tensor(), gradients = parameters_.take_gradients(unit);
    std::int64_t first = 0;  // ranges whose gradients lie in files follow each other in the share
    for (const std::size_t i : parameters_.ranges_of_[unit].all) {
      ShardedParameters::Range range = parameters_.ranges()[i];
      if (gradients) range.gradient = gradients.view(first, {range.count});
      first += range.count;
      action(range, block ? state_in(block, i) : states_[i]);
    }
    if (block) offloaded_->give_back(unit, writes);
    parameters_.give_back_gradients(unit);
  }
}

// ---- updates whose values wait

void Optimizer::make_apart(const std::vector<std::size_t>& units) {
  const MemoryScope scope(MemoryKind::values);
  apart_.values.assign(parameters_.ranges().size(), {});
  for (const std::size_t unit : units) {
    for (const std::size_t i : parameters_.ranges_to_update(unit)) {
      apart_.values[i] = Tensor({parameters_.ranges()[i].count}, parameters_.options().dtype);
    }
  }
}

std::vector<std::size_t> Optimizer::in_file(std::vector<std::size_t> units) const {
  std::erase_if(units, [&](std::size_t unit) { return !offloaded_ || !offloaded_->has(unit); });
  return units;
}

void Optimizer::begin_apart(const std::vector<std::size_t>& order, double lr, double gradient_scale, bool may_be_dropped) {
  apart_.has_begun = true;
  apart_.waits.assign(parameters_.unit_count(), false);
  for (const std::size_t unit : order) apart_.waits[unit] = true;
  apart_.step = {.lr = lr, .gradient_scale = gradient_scale, .number = steps_ + 1};
  prepare(apart_.step);
  if (offloaded_) offloaded_->begin(order, may_be_dropped ? UnitFile::Place::other : UnitFile::Place::same);
  parameters_.begin_apart(order);
}

void Optimizer::update_apart(std::size_t unit) { update_unit(unit, apart_.step, true); }

void Optimizer::show_apart() {
  require(std::exchange(apart_.has_begun, false),
          "There is no update of {} whose values could be shown: none has begun, or it was left out.", kind_.name);
  steps_ = apart_.step.number;
  if (offloaded_) {
    std::vector<bool> moved(parameters_.unit_count());
    for (const std::size_t unit : offloaded_->accept()) moved[unit] = true;
    for (std::size_t i = 0; i < places_.size(); ++i) {
      const std::size_t unit = parameters_.ranges()[i].unit;
      if (moved[unit]) states_[i] = state_in(offloaded_->mapped(unit), i);
    }
    std::vector<std::size_t> left = parameters_.update_order();
    std::erase_if(left, [&](std::size_t unit) { return apart_.waits[unit]; });
    offloaded_->begin(left);
  }
  const auto show = [&](std::size_t unit) {
    if (!apart_.waits[unit]) return update_unit(unit, apart_.step, false);
    for (const std::size_t i : parameters_.ranges_to_update(unit)) {
      parameters_.ranges()[i].value.copy_from(apart_.values[i]);
    }
  };
  parameters_.update(show, std::ranges::count(apart_.waits, true) < std::ssize(parameters_.update_order()));
  finished(apart_.step);
}

void Optimizer::drop_apart() {
  require(std::exchange(apart_.has_begun, false), "There is no update of {} that could be taken back; begin one first.",
          kind_.name);
}

void Optimizer::restore(std::int64_t steps) {
  steps_ = steps;
  for (std::size_t i = 0; i < states().size(); ++i) {
    if (states_[i].master) kernels::convert(states_[i].master, parameters_.ranges()[i].value);
    release_behind(i);
  }
  parameters_.share_values();
  restored();
  parameters_.set_updates(steps_);
}

void Optimizer::adopt_values() {
  for (std::size_t i = 0; i < states().size(); ++i) {
    if (states_[i].master) kernels::convert(parameters_.ranges()[i].value, states_[i].master);
    release_behind(i);
  }
}

const Tensor& Optimizer::weights(std::size_t range) const {
  return states()[range].master ? states_[range].master : parameters_.ranges()[range].value;
}

double CosineSchedule::at(std::int64_t step) const {
  if (step < warmup_steps) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  const auto span = static_cast<double>(std::max<std::int64_t>(1, total_steps - warmup_steps));
  const double progress = std::min(1.0, static_cast<double>(step - warmup_steps) / span);
  return floor + (peak - floor) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

}  // namespace stretto
