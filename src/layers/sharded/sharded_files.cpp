// ShardedParameters: what lies in files.
#include <algorithm>

#include "collectives/job/throw_together.hpp"
#include "layers/offload_use.hpp"
#include "layers/sharded/unit_cut.hpp"
#include "overlap/offload/offloaded_unit.hpp"
#include "stretto/kernels.hpp"
#include "stretto/layers/sharded_parameters.hpp"

namespace stretto {
namespace {

// A unit's block in a loop of the file, as elements; empty if it has none.
Tensor taken(UnitFile* file, std::size_t unit, DType dtype) {
  const Tensor block = file != nullptr ? file->take(unit) : Tensor();
  return block ? elements_in(block, dtype) : Tensor();
}

}  // namespace

void ShardedParameters::make_files() {
  const SharesInFiles shares = shares_in_files(members_, mesh_.shape(), options_);
  const auto file = [&](const std::string& directory, const std::vector<std::int64_t>& bytes, const char* what,
                        bool two_places) {
    const bool any = std::ranges::any_of(bytes, [](std::int64_t each) { return each > 0; });
    const UnitFile::Options how{
        .overlap = options_.overlap, .two_places = two_places, .name = what, .gate = options_.offload.gate};
    return any ? std::make_unique<UnitFile>(directory, bytes, how) : nullptr;
  };
  if (options_.offload.values.directory.empty() && options_.offload.gradients.directory.empty()) return;
  throw_together(mesh_.world(), "make its scratch files", [&] {
    values_file_ = file(options_.offload.values.directory, shares.values, "values", false);
    gradients_file_ = file(options_.offload.gradients.directory, shares.gradients, "gradients", options_.delay > 0);
  });
}

// Where a unit's gradients lie in a file, all of its ranges are parts of the share.
void ShardedParameters::set_range_gradients(std::size_t unit, const Tensor& share) {
  std::int64_t first = 0;
  for (const std::size_t i : ranges_of_[unit].all) {
    ranges_[i].gradient = share.view(first, {ranges_[i].count});
    first += ranges_[i].count;
  }
}

void ShardedParameters::take_from_files(std::size_t unit, UnitFile* gradients_file) {
  if (const Tensor values = taken(values_file_.get(), unit, options_.dtype)) set_range_values(unit, values);
  if (const Tensor gradients = taken(gradients_file, unit, options_.gradients())) set_range_gradients(unit, gradients);
}

UnitFile* ShardedParameters::masters_file() const {
  return kernels::accumulator(options_.dtype) == options_.dtype ? values_file_.get() : nullptr;
}

void ShardedParameters::begin_apart(const std::vector<std::size_t>& order) {
  if (UnitFile* const values = masters_file()) values->begin(order);
  begin_gradients(order);
}

ShardedParameters::Shares ShardedParameters::take_apart(std::size_t unit) {
  return {taken(masters_file(), unit, options_.dtype), take_gradients(unit)};
}

void ShardedParameters::give_back_apart(std::size_t unit) {
  if (UnitFile* const values = masters_file()) values->give_back(unit, false);
  give_back_gradients(unit);
}

// With a delay an update takes those of the step before.
void ShardedParameters::begin_gradients(const std::vector<std::size_t>& order) {
  if (!gradients_file_) return;
  gradients_file_->begin(order, UnitFile::Place::same, options_.delay > 0 ? UnitFile::Place::other : UnitFile::Place::same);
}

Tensor ShardedParameters::take_gradients(std::size_t unit) {
  return taken(gradients_file_.get(), unit, options_.gradients());
}

void ShardedParameters::give_back_gradients(std::size_t unit) {
  if (gradients_file_) gradients_file_->give_back(unit, false);
}

void ShardedParameters::give_back_to_files(std::size_t unit, UnitFile* gradients_file) {
  if (values_file_ && values_file_->has(unit)) {
    set_range_values(unit, units_[unit]->share());
    values_file_->give_back(unit);
  }
  if (gradients_file != nullptr && gradients_file->has(unit)) {
    set_range_gradients(unit, options_.delay > 0 ? units_[unit]->earlier_gradient_share() : units_[unit]->gradient_share());
    gradients_file->give_back(unit, false);
  }
}

// The next step's norm takes the squares of late gradients in files from here: no sum has noted them.
void ShardedParameters::set_late(bool has_late) {
  has_late_ = has_late;
  for (std::size_t unit = 0; has_late && unit < units_.size(); ++unit) {
    if (!gradients_file_ || !gradients_file_->has(unit)) continue;
    offloaded_[unit]->gradients_changed();
    release(unit);
  }
}

void ShardedParameters::release(std::size_t unit) const {
  for (UnitFile* const file : {values_file_.get(), gradients_file_.get()}) {
    if (file != nullptr) file->release(unit);
  }
}

std::vector<double> ShardedParameters::squares_of_gradients() const {
  std::vector<double> squares;
  std::vector<Tensor> in_memory;
  std::vector<std::size_t> places;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    const bool in_file = gradients_file_ && gradients_file_->has(unit);
    for (std::size_t k = 0; k < ranges_of_[unit].all.size(); ++k) {
      const Range& range = ranges_[ranges_of_[unit].all[k]];
      if ((!range.owned && !is_served()) || !range.gradient) continue;
      if (!in_file) {
        places.push_back(squares.size());
        in_memory.push_back(range.gradient);
      }
      squares.push_back(in_file ? offloaded_[unit]->squares()[k] : 0);
    }
  }
  const std::vector<double> found = kernels::sums_of_squares(in_memory);
  for (std::size_t i = 0; i < places.size(); ++i) squares[places[i]] = found[i];
  return squares;
}

std::vector<OffloadUse> ShardedParameters::offloaded() const {
  std::vector<OffloadUse> uses;
  if (values_file_) uses.push_back(use_of(*values_file_, options_.offload.values));
  if (gradients_file_) uses.push_back(use_of(*gradients_file_, options_.offload.gradients));
  return uses;
}

}  // namespace stretto
