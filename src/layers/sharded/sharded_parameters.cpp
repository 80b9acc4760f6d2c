#include "stretto/layers/sharded_parameters.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "core/split_mix.hpp"
#include "layers/first_of_copies.hpp"
#include "layers/optimizer/matrices/powersgd.hpp"
#include "layers/record_check.hpp"
#include "layers/served/served_unit.hpp"
#include "layers/sharded/unit_cut.hpp"
#include "overlap/offload/offloaded_unit.hpp"
#include "overlap/postponement_choice.hpp"
#include "stretto/device.hpp"

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
  if (may_postpone(options_) && streams) make_choice();
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

}  // namespace stretto
