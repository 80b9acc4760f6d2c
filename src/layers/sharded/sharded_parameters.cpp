#include "stretto/layers/sharded_parameters.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "core/fail.hpp"
#include "core/split_mix.hpp"
#include "layers/first_of_copies.hpp"
#include "layers/optimizer/local_vectors.hpp"
#include "layers/optimizer/matrices/powersgd.hpp"
#include "layers/record_check.hpp"
#include "layers/served/served_unit.hpp"
#include "layers/sharded/unit_cut.hpp"
#include "overlap/offload/offloaded_unit.hpp"
#include "overlap/postponement_choice.hpp"
#include "stretto/device.hpp"
#include "stretto/kernels.hpp"

namespace stretto {

ShardedParameters::ShardedParameters(Parameters& parameters, const Mesh& mesh, const Options& options, ServerSet* servers)
    : parameters_(parameters),
      mesh_(mesh),
      options_(options),
      errors_(std::make_unique<ErrorFeedback>()),
      servers_(servers) {
  options.check(mesh.shape());
  if (servers != nullptr) served_traffic_ = std::make_unique<ServedTraffic>(*servers, mesh.world(), options.overlap);
  check_records(parameters, mesh);
  make_units();
  make_ranges();
  index_uses();
  std::vector<UnitStore*> units;
  for (const auto& unit : units_) units.push_back(unit.get());
  const bool divided =
      std::any_of(members_.begin(), members_.end(), [&](const UnitMembers& members) { return !members.axes.empty(); });
  const bool streams = options.overlap && divided && !is_served();  // whose traffic has a stream of its own
  UnitTraffic::Options how{.prefetch = options.prefetch,
                           .overlap = options.overlap,
                           .keep_through_step = keeps_through_step(mesh.shape(), options),
                           .delay = options.delay};
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (members_[unit].trainable && members_[unit].at_both_ends()) how.summed_last.push_back(unit);
  }
  traffic_ = std::make_unique<UnitTraffic>(units, streams ? Stream("parameters", Priority::urgent) : computation(),
                                           streams ? Stream("dp", Priority::background) : computation(), how);
  shown_.resize(units_.size());
  show_all();
  // With a delay, gradients have a step's time to travel, and values would have none. Without a flush there are no steps.
  // PowerSGD's sums are whole on all ranks.
  const bool chooses = options.delay == 0 && options.versions == 0 && options.measured_steps > 0 && !options.powersgd.any();
  if (options.zero == ZeroStage::none && chooses && streams) make_choice();
}

ShardedParameters::~ShardedParameters() = default;

// The ranks of a pipeline stage choose alike. Units at both ends stay as they are.
void ShardedParameters::make_choice() {
  std::vector<PostponementChoice::Unit> units;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    units.push_back(
        {.ranks = members_[i].at_both_ends() || !members_[i].trainable ? 1 : mesh_.over(members_[i].axes).size(),
         .elements = static_cast<double>(units_[i]->elements()),
         .values_width = static_cast<double>(size_of(options_.dtype)) / static_cast<double>(size_of(options_.gradients()))});
  }
  choice_ =
      std::make_unique<PostponementChoice>(mesh_.over(token_axes | Axis::tensor), std::move(units), options_.measured_steps);
}

void ShardedParameters::make_units() {
  struct Groups {
    Communicator gathers, sums, secondary;
  };
  std::map<std::pair<Axes, bool>, Groups> groups;
  const auto groups_of = [&](const UnitMembers& members) -> const Groups& {
    const auto [place, is_new] = groups.try_emplace({members.axes, members.has_second_copy()});
    if (is_new) {
      Groups& fresh = place->second;
      fresh.sums = mesh_.gradient_group(members.axes);
      const std::string name = fresh.sums.name();
      fresh.gathers = fresh.sums.size() > 1 ? fresh.sums.duplicate(name + " parameters") : fresh.sums;
      // What others do in the mesh's group, such as the sum of the loss, would wait for sums that are in flight.
      if (options_.delay > 0 && fresh.sums.size() > 1) fresh.sums = fresh.sums.duplicate(name + " gradients");
      if (options_.hpz_size > 1 && members.has_second_copy()) {
        fresh.secondary = fresh.gathers.split(fresh.gathers.rank() / options_.hpz_size, fresh.gathers.rank(), "hpz");
      }
    }
    return place->second;
  };
  places_.resize(parameters_.all().size());  // of parameters that are elsewhere: without a unit
  members_ = cut_units(parameters_, mesh_.shape(), options_);
  make_files();
  for (const UnitMembers& members : members_) {
    const Groups& over = groups_of(members);
    const Parameter& first = *parameters_.all()[members.parameters.front()];
    ShardedUnit::Options options{
        .stage = members.stage(options_),
        .trainable = members.trainable,
        .ordered = options_.versions == 0,
        .older_versions = members.trainable ? std::max(0, options_.versions - 1) : 0,
        .has_earlier_gradients = members.trainable && options_.delay > 0,
        .stored = members.stored,
        .secondary = over.secondary,
        .weights = members.format(options_.qwz),
        .gradients = members.format(options_.qgz),
        .gradient_rounding = options_.qgz_rounding,
        .seed = split_mixed(options_.seed + (units_.size() + 1) * split_mix_step),  // far from those of other units
        .errors = options_.qgz_error_feedback ? errors_.get() : nullptr,
        .name = first.name};
    std::vector<Shape> shapes;
    for (const std::size_t i : members.parameters) {
      Parameter& parameter = *parameters_.all()[i];
      places_[i] = {units_.size(), shapes.size()};
      shapes.push_back(parameter.extents);
      options.overwritten.push_back(parameter.overwrites_gradient);
    }
    const OffloadedUnit::Files files{values_file_.get(), gradients_file_.get(), units_.size()};
    if (is_served() && members.trainable) {
      auto unit = std::make_unique<ServedUnit>(mesh_.over(Axes()), std::move(shapes), options_.dtype, options_.gradients(),
                                               options, *served_traffic_, static_cast<int>(served_.size()));
      offloaded_.push_back(nullptr);
      served_.push_back(unit.get());
      units_.push_back(std::move(unit));
    } else if (files.any()) {
      auto unit = std::make_unique<OffloadedUnit>(over.gathers, over.sums, std::move(shapes), options_.dtype,
                                                  options_.gradients(), options, files);
      offloaded_.push_back(unit.get());
      units_.push_back(std::move(unit));
    } else {
      offloaded_.push_back(nullptr);
      units_.push_back(std::make_unique<ShardedUnit>(over.gathers, over.sums, std::move(shapes), options_.dtype,
                                                     options_.gradients(), options));
    }
    for (std::size_t member = 0; member < members.parameters.size(); ++member) {
      Parameter& parameter = *parameters_.all()[members.parameters[member]];
      parameter.unset = parameter.overwrites_gradient ? units_.back()->unset(member) : nullptr;
    }
  }
}

void ShardedParameters::make_ranges() {
  ranges_of_.resize(units_.size());
  for (std::size_t u = 0; u < units_.size(); ++u) {
    ShardedUnit& unit = *units_[u];
    std::int64_t in_share = 0;  // owned ranges follow each other in the share
    std::vector<std::int64_t> done(members_[u].parameters.size(), 0);
    const auto add = [&](std::size_t member, std::int64_t first, std::int64_t count, bool own) {
      const std::size_t parameter = members_[u].parameters[member];
      Range range{
          .index = ranges_.size(), .unit = u, .parameter = parameter, .first = first, .count = count, .in_share = own};
      const bool is_copy = is_served() && mesh_.rank(Axis::data) > 0;  // every worker has the whole unit
      range.owned = own && !is_copy && first_of_copies(*parameters_.all()[parameter], mesh_);
      if (members_[u].trainable) {
        range.gradient = own ? unit.gradient_share().view(in_share, {count}) : unit.gradients()[member].view(first, {count});
        if (options_.delay > 0) {
          range.late = std::move(range.gradient);
          range.gradient = own ? unit.earlier_gradient_share().view(in_share, {count})
                               : unit.earlier_gradients()[member].view(first, {count});
        }
      }
      if (own) in_share += count;
      ranges_of_[u].all.push_back(ranges_.size());
      if (own) ranges_of_[u].in_share.push_back(ranges_.size());
      ranges_.push_back(std::move(range));
      done[member] = first + count;
    };
    const bool updates_all = unit.stage() == ZeroStage::none;
    const auto fill = [&](std::size_t member, std::int64_t until) {
      if (updates_all && done[member] < until) add(member, done[member], until - done[member], false);
    };
    for (const ElementRange& own : unit.owned()) {
      fill(own.tensor, own.first);
      add(own.tensor, own.first, own.count, true);
    }
    for (std::size_t member = 0; member < members_[u].parameters.size(); ++member) {
      fill(member, parameters_.all()[members_[u].parameters[member]]->elements());
    }
    set_range_values(u, unit.share());
  }
}

void ShardedParameters::set_range_values(std::size_t unit, const Tensor& share) {
  const ShardedUnit& of = *units_[unit];
  std::int64_t in_share = 0;  // owned ranges follow each other in the share
  for (const std::size_t i : ranges_of_[unit].all) {
    Range& range = ranges_[i];
    range.value = {};
    if (share) {
      range.value = range.in_share ? share.view(in_share, {range.count})
                                   : of.values()[places_[range.parameter].member].view(range.first, {range.count});
    }
    if (range.in_share) in_share += range.count;
  }
}

void ShardedParameters::store() { change_stored(&ShardedUnit::store); }
void ShardedParameters::restore() { change_stored(&ShardedUnit::restore); }

void ShardedParameters::change_stored(void (ShardedUnit::*change)()) {
  traffic_->wait_for_values();
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (members_[unit].stored == StoredFormat::plain) continue;
    (*units_[unit].*change)();
    set_range_values(unit, units_[unit]->share());
    show(unit);
  }
}

// Called after every call that may have given up a unit's values or gradients: parameters must not keep them alive, and what
// comes later may lie elsewhere.
void ShardedParameters::show(std::size_t unit) {
  ShardedUnit& of = *units_[unit];
  const bool is_older = options_.versions > 1 && read_ < made_ && members_[unit].trainable;
  const Shown now{of.has_values(), of.has_gradients(), is_older ? place_of(read_) : latest};
  if (std::exchange(shown_[unit], now) == now) return;
  for (std::size_t i = 0; i < members_[unit].parameters.size(); ++i) {
    Parameter& parameter = *parameters_.all()[members_[unit].parameters[i]];
    parameter.value = is_older ? of.version(now.older)[i] : of.has_values() ? of.values()[i] : Tensor();
    parameter.gradient = of.has_gradients() ? of.gradients()[i] : Tensor();
  }
}

void ShardedParameters::show_all() {
  for (std::size_t unit = 0; unit < units_.size(); ++unit) show(unit);
}

// ---- values

void ShardedParameters::initialise(std::uint64_t seed) {
  traffic_->wait_for_values();
  for (const auto& unit : units_) unit->share_changed();
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (!parameters_.all()[i]->is_here) continue;
    const ShardedUnit& unit = *units_[places_[i].unit];
    if (unit.has_values()) set_initial_values(*parameters_.all()[i], seed, 0, unit.values()[places_[i].member]);
  }
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (units_[unit]->has_values()) continue;
    for (const std::size_t i : ranges_of_[unit].all) {
      set_initial_values(*parameters_.all()[ranges_[i].parameter], seed, ranges_[i].first, ranges_[i].value);
    }
    release(unit);
  }
}

void ShardedParameters::share_values() {
  if (is_served()) meet_at_servers_values();
  for (std::size_t unit = 0; unit < units_.size(); ++unit) share_values(unit);
}

void ShardedParameters::share_values(std::size_t unit) {
  traffic_->wait_for_values();
  units_[unit]->share_changed();
  if (units_[unit]->has_values()) computation().wait(units_[unit]->gather(computation()));
}

void ShardedParameters::share(std::size_t unit, const std::function<Tensor(std::size_t range)>& of_range) {
  ShardedUnit& of = *units_[unit];
  if (of.ranks() == 1 || ranges_of_[unit].all.empty()) return;
  traffic_->wait_for_values();
  const DType dtype = of_range(ranges_of_[unit].all.front()).dtype();
  const MemoryScope buffers(MemoryKind::buffers);
  const Tensor own = Tensor::zeros({of.padded_elements() / of.ranks()}, dtype);
  std::int64_t first = 0;  // owned ranges follow each other in the share
  for (const std::size_t i : ranges_of_[unit].in_share) {
    own.view(first, {ranges_[i].count}).copy_from(of_range(i));
    first += ranges_[i].count;
  }
  const std::vector<Tensor> whole = of.views_of(of.whole(own));
  for (const std::size_t i : ranges_of_[unit].all) {
    if (ranges_[i].in_share) continue;
    of_range(i).copy_from(whole[places_[ranges_[i].parameter].member].view(ranges_[i].first, {ranges_[i].count}));
  }
}

// ---- a step

void ShardedParameters::index_uses() {
  for (const auto& used : parameters_.used()) {
    std::vector<std::size_t>& units = units_of_use_.emplace_back();
    for (const Parameter* parameter : used->parameters) {
      const std::size_t unit = places_[parameter->index].unit;
      if (std::find(units.begin(), units.end(), unit) == units.end()) units.push_back(unit);
    }
  }
}

const std::vector<std::size_t>& ShardedParameters::units_of(const UsedParameters& used) const {
  require(
      used.index < units_of_use_.size() && parameters_.used()[used.index].get() == &used,
      "A use of parameter {} has a handle that was made after these parameters were sharded, or of other parameters; make "
      "it with the layer (Parameters::used_together).",
      used.parameters.empty() ? "" : used.parameters.front()->name);
  return units_of_use_[used.index];
}

void ShardedParameters::begin(const UsedParameters& used, Pass pass) {
  for (const std::size_t unit : units_of(used)) {
    traffic_->begin_use(unit, pass, microbatch_);
    show(unit);
  }
}

void ShardedParameters::end(const UsedParameters& used, Pass /*pass*/) {
  for (const std::size_t unit : units_of(used)) {
    traffic_->end_use(unit);
    show(unit);
  }
}

void ShardedParameters::learn(const std::function<void()>& step) {
  traffic_->learn(step);
  show_all();
}

// The gradients of the last step become those that an update takes, and its former ones are added to next.
void ShardedParameters::exchange_gradients() {
  if (gradients_file_ && options_.delay > 0) gradients_file_->exchange();
  for (const auto& unit : units_) unit->exchange_gradients();
  for (Range& range : ranges_) std::swap(range.gradient, range.late);
  sums_arrived_ = std::exchange(has_late_, false);
  shown_.assign(units_.size(), std::nullopt);  // since gradients lie elsewhere
  show_all();
}

void ShardedParameters::take_late() {
  traffic_->wait_for_sums();
  exchange_gradients();
}

void ShardedParameters::square_sums(const Stream& stream, double& squares) const {
  std::vector<Tensor> gradients;  // the ranges refer to others when the next step begins
  for (const Range& range : ranges_) {
    if (range.owned && range.late) gradients.push_back(range.late);
  }
  for (std::size_t unit = 0; unit < units_.size(); ++unit) traffic_->wait_for_sum(unit, stream);
  stream.enqueue([gradients = std::move(gradients), &squares] {
    squares = 0;
    for (const double each : kernels::sums_of_squares(gradients)) squares += each;
  });
}

void ShardedParameters::take_sums() {
  if (has_late_) return take_late();
  traffic_->wait_for_late_sums(computation());
}

void ShardedParameters::begin_step() {
  if (choice_) choice_->begin_step();
  sums_arrived_ = false;
  if (options_.delay > 0) exchange_gradients();
  if (values_file_) values_file_->release();
  traffic_->begin_step();
}

void ShardedParameters::end_microbatch() {
  traffic_->end_microbatch();
  show_all();
}

void ShardedParameters::finish_sums() {
  if (choice_) choice_->computed();
  traffic_->finish_sums();
  if (!std::exchange(uses_are_checked_, true)) check_uses();
  if (powersgd_) powersgd_->sum();
  show_all();
  if (options_.delay > 0) {
    has_late_ = true;
  } else {
    sums_arrived_ = true;
  }
}

// After the first step: what layers have added to a gradient outside a use stays on the rank.
void ShardedParameters::check_uses() const {
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (traffic_->adds_gradients_to(unit) || !units_[unit]->has_gradients()) continue;
    for (const std::size_t member : members_[unit].parameters) {
      const Parameter& parameter = *parameters_.all()[member];
      require(
          kernels::sum_of_squares(parameter.gradient) == 0,
          "A layer has added to the gradient of parameter {} without a use of it in backward, so that ranks do not sum it; "
          "let the layer hold an InUse of it meanwhile.",
          parameter.name);
    }
  }
}

const std::vector<std::size_t>& ShardedParameters::ranges_to_update(std::size_t unit) const {
  return traffic_->is_whole(unit) ? ranges_of_[unit].all : ranges_of_[unit].in_share;
}

void ShardedParameters::update(const std::function<void(std::size_t unit)>& update, bool reads_gradients) {
  if (powersgd_) powersgd_->taken();
  if (choice_) choice_->update_begins();
  const std::vector<std::size_t> order = update_order();
  UnitFile* const gradients = reads_gradients ? gradients_file_.get() : nullptr;
  if (gradients != nullptr && options_.delay > 0) gradients->exchange();  // an update takes those of the step before
  for (UnitFile* const file : {values_file_.get(), gradients}) {
    if (file != nullptr) file->begin(order);
  }
  for (const std::size_t unit : order) {
    take_from_files(unit, gradients);
    update(unit);
    give_back_to_files(unit, gradients);
    traffic_->updated(unit);
  }
  if (gradients != nullptr && options_.delay > 0) gradients->exchange();
  if (values_file_) values_file_->end();
  if (choice_ && choice_->end_step(*traffic_)) choice_.reset();
}

std::vector<std::size_t> ShardedParameters::trained_units() const {
  std::vector<std::size_t> units;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (members_[unit].trainable) units.push_back(unit);
  }
  return units;
}

// Units whose values travel come first: they travel while the others are updated.
std::vector<std::size_t> ShardedParameters::update_order() const {
  std::vector<std::size_t> order;
  for (const bool whole : {false, true}) {
    for (const std::size_t unit : traffic_->forward_order()) {
      if (traffic_->is_whole(unit) == whole && members_[unit].trainable) order.push_back(unit);
    }
  }
  return order;
}

// ---- for checks and exports

std::vector<Tensor> ShardedParameters::whole(const std::function<Tensor(const ShardedUnit&)>& own) const {
  traffic_->wait_for_values();  // they travel over the same communicator, in another stream
  std::vector<std::vector<Tensor>> by_unit;
  for (const auto& unit : units_) {
    const Tensor its = own(*unit);
    by_unit.push_back(its ? unit->views_of(unit->whole(its)) : std::vector<Tensor>(unit->shapes().size()));
  }
  std::vector<Tensor> result;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    result.push_back(parameters_.all()[i]->is_here ? by_unit[places_[i].unit][places_[i].member] : Tensor());
  }
  return result;
}

std::vector<Tensor> ShardedParameters::whole_values() const {
  return whole([](const ShardedUnit& unit) { return unit.share(); });
}

std::vector<Tensor> ShardedParameters::whole_gradients() const {
  const bool late = options_.delay > 0;
  return whole([&](const ShardedUnit& unit) { return late ? unit.earlier_gradient_share() : unit.gradient_share(); });
}

}  // namespace stretto
