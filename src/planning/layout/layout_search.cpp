#include "stretto/planning/layout_search.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <tuple>

#include "core/fail.hpp"

namespace stretto {
namespace {

constexpr std::array<Recompute, 3> recompute_levels = {Recompute::none, Recompute::selective, Recompute::full};
constexpr std::int64_t most_sequences = 64;  // of a microbatch
constexpr int most_chunks = 8;
constexpr std::int64_t least_tokens = 1024, most_pieces = 16;  // of a sequence that is divided
constexpr double nearly = 1.02;  // times the fastest: nearer than predictions are to measured steps

std::vector<int> divisors(std::int64_t number, std::int64_t most) {
  std::vector<int> result;
  for (std::int64_t i = 1; i <= std::min(number, most); ++i) {
    if (number % i == 0) result.push_back(static_cast<int>(i));
  }
  return result;
}

bool is_window_kind(const std::string& schedule) {
  return std::ranges::any_of(all_window_kinds(), [&](const WindowKind& kind) { return schedule == kind.name; });
}

// Refusals that differ in numbers only.
class Refusals {
 public:
  void add(const std::string& sentence) {
    std::string kind;
    for (const char c : sentence) {
      if (c < '0' || c > '9') kind += c;
    }
    const auto [place, is_new] = places_.try_emplace(kind, all_.size());
    if (is_new) all_.push_back({0, sentence});
    ++all_[place->second].count;
  }
  std::vector<LayoutSearch::Refusal> all() const {
    std::vector<LayoutSearch::Refusal> sorted = all_;
    std::ranges::stable_sort(sorted, std::greater(), &LayoutSearch::Refusal::count);
    return sorted;
  }

 private:
  std::map<std::string, std::size_t> places_;
  std::vector<LayoutSearch::Refusal> all_;
};

class Enumeration {
 public:
  Enumeration(const LayoutSpace& space, const LayoutCosts& costs)
      : space_(space), costs_(costs), divides_rows_(space.divides_rows), recompute_(space.recompute) {
    const ShardedParameters::Options::Offload& files = space.sharding.offload;
    if (!files.gradients.directory.empty()) least_zero_ = ZeroStage::gradients;
    if (!files.values.directory.empty() || space.tiles > 1) least_zero_ = ZeroStage::values;
    if (!divides_rows_ && (space.keeps_gathered || space.partitions_activations)) divides_rows_ = space.keeps_gathered;
    const bool keeps_inputs_alone = space.partitions_activations || !space.activations_directory.empty();
    if (!recompute_ && keeps_inputs_alone) recompute_ = Recompute::full;
  }

  std::vector<TrainingOptions> layouts() {
    const int ring = space_.ring.value_or(1), ulysses = space_.ulysses.value_or(1);
    require(space_.ranks % (std::int64_t{ring} * ulysses) == 0, "{} ranks do not divide into groups of {}{}{}.",
            space_.ranks, space_.ring ? fmt::format("{} ring ranks", ring) : "",
            space_.ring && space_.ulysses ? " times " : "", space_.ulysses ? fmt::format("{} ulysses ranks", ulysses) : "");
    const std::int64_t pieces = std::min(space_.model.sequence / least_tokens, most_pieces);
    for (const int rings : sequence_values(space_.ring, pieces / ulysses)) {
      for (const int heads : sequence_values(space_.ulysses, std::min(pieces / rings, space_.model.heads))) {
        if (space_.ranks % (std::int64_t{rings} * heads) == 0) with_sequence(rings, heads);
      }
    }
    return std::move(layouts_);
  }
  std::vector<LayoutSearch::Refusal> refused() const { return refusals_.all(); }

 private:
  static std::vector<int> values(const std::optional<int>& fixed, std::int64_t ranks, std::int64_t most) {
    return fixed ? std::vector<int>{*fixed} : divisors(ranks, most);
  }

  static std::vector<int> sequence_values(const std::optional<int>& fixed, std::int64_t most) {
    if (fixed) return {*fixed};
    std::vector<int> result{1};
    while (2 * result.back() <= most) result.push_back(2 * result.back());
    return result;
  }

  void with_sequence(int ring, int ulysses) {
    const std::int64_t ranks = space_.ranks / ring / ulysses;
    for (const int tensor : values(space_.tensor, ranks, space_.model.heads)) {
      for (const int pipeline : values(space_.pipeline, ranks / tensor, space_.model.layers)) {
        const auto data = static_cast<int>(ranks / tensor / pipeline);
        if (std::int64_t{data} * tensor * pipeline != ranks) continue;
        if (space_.data && *space_.data != data) continue;
        with_mesh({{Axis::tensor, tensor},
                   {Axis::ulysses, ulysses},
                   {Axis::ring, ring},
                   {Axis::data, data},
                   {Axis::pipeline, pipeline}});
      }
    }
  }

  // Runs something that throws for what does not divide.
  template <class F>
  bool allowed(F check) {
    try {
      check();
      return true;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_argument) throw;
      refusals_.add(error.what());
      return false;
    }
  }

  void with_mesh(const MeshShape& mesh) {
    TrainingOptions layout{.model = space_.model,
                           .adapters = space_.adapters,
                           .mesh = mesh,
                           .sharding = space_.sharding,
                           .optimizer = space_.optimizer,
                           .micro_batch = space_.micro_batch.value_or(1),
                           .global_batch = space_.global_batch,
                           .tiles = space_.tiles,
                           .sequence_layout = space_.sequence_layout,
                           .mask = space_.mask};
    layout.sharding.zero = space_.zero.value_or(least_zero_);
    if (!allowed([&] { costs_.check(mesh); })) return;
    if (space_.micro_batch) {
      with_batch(layout);
      return;
    }
    const std::int64_t sequences = layout.rank_batch();
    for (layout.micro_batch = 1; layout.micro_batch == 1 || layout.micro_batch <= std::min(sequences, most_sequences);
         layout.micro_batch *= 2) {
      if (layout.micro_batch > 1 && sequences % layout.micro_batch != 0) break;
      if (!with_batch(layout)) break;
    }
  }

  bool with_batch(TrainingOptions& layout) {
    if (!allowed([&] { layout.check_sizes(); })) return false;
    if (space_.schedule && is_window_kind(*space_.schedule)) {
      layout.stages.schedule_name = *space_.schedule;
      layout.stages.virtual_stages = space_.virtual_stages.value_or(1);
      if (allowed([&] { layout.check(); })) with_rows(layout);
      return true;
    }
    for (const auto& [kind, chunks] : schedules(layout)) {
      layout.stages.schedule_name = name(kind);
      layout.stages.virtual_stages = chunks;
      with_schedule(layout, kind, chunks);
    }
    return true;
  }

  std::vector<std::pair<ScheduleKind, int>> schedules(const TrainingOptions& layout) const {
    using enum ScheduleKind;
    std::vector<std::pair<ScheduleKind, int>> result;
    const auto add = [&](ScheduleKind kind) {
      if (kind != interleaved || space_.virtual_stages) {
        result.emplace_back(kind, space_.virtual_stages.value_or(usual_chunks(kind)));
        return;
      }
      for (int chunks = 2;
           chunks <= most_chunks && std::int64_t{chunks} * layout.mesh[Axis::pipeline] <= space_.model.layers; ++chunks) {
        result.emplace_back(kind, chunks);
      }
    };
    if (space_.schedule) {
      add(schedule_kind_from_name(*space_.schedule));
      return result;
    }
    // Without a pipeline, all schedules are gradient accumulation.
    if (layout.mesh[Axis::pipeline] == 1 && !space_.virtual_stages) return {{one_forward_one_backward, 1}};
    if (!space_.virtual_stages || *space_.virtual_stages == 1) add(one_forward_one_backward);
    if (!space_.virtual_stages || *space_.virtual_stages > 1) add(interleaved);
    if (!space_.may_split_backward) return result;
    for (const ScheduleKind kind : {zb_h1, zb_h2, zb_v}) {
      if (!space_.virtual_stages || *space_.virtual_stages == usual_chunks(kind)) add(kind);
    }
    return result;
  }

  void with_schedule(TrainingOptions& layout, ScheduleKind kind, int chunks) {
    const std::int64_t microbatches = layout.microbatches();
    const std::int64_t parts = std::int64_t{layout.mesh[Axis::pipeline]} * chunks;
    if (!allowed([&] {
          require(parts <= layout.model.layers,
                  "{} layers cannot be divided into {} parts; give fewer stages or virtual stages, or more layers.",
                  layout.model.layers, parts);
          require(parts * microbatches <= 1 << 22,
                  "{} microbatches through {} stages x {} chunks are more than 2^22 computations; give fewer.", microbatches,
                  layout.mesh[Axis::pipeline], chunks);
          require(kind != ScheduleKind::interleaved || microbatches % layout.mesh[Axis::pipeline] == 0,
                  "interleaved needs a multiple of its {} stages as microbatches, not {}; choose another number, or 1f1b.",
                  layout.mesh[Axis::pipeline], microbatches);
        })) {
      return;
    }
    with_rows(layout);
  }

  void with_rows(const TrainingOptions& layout) {
    for (const bool rows : {false, true}) {
      if (rows != divides_rows_.value_or(rows) || (rows && !divides_rows_ && layout.mesh[Axis::tensor] == 1)) continue;
      for (const Recompute level : recompute_levels) {
        if (level == recompute_.value_or(level)) with_recompute(layout, rows, level);
      }
    }
  }

  void with_recompute(TrainingOptions layout, bool rows, Recompute level) {
    layout.divides_rows = rows;
    layout.keeps_gathered = space_.keeps_gathered;
    layout.recompute = {level, space_.partitions_activations, space_.activations_directory};
    if (!allowed([&] { layout.check_sizes(); })) return;
    const int ranks = layout.mesh.ranks_over(token_axes);
    for (const ZeroStage zero : zero_stages) {
      if (space_.zero ? zero != *space_.zero : zero < least_zero_ || (ranks == 1 && zero != least_zero_)) continue;
      if (zero > ZeroStage::optimizer && is_window_kind(layout.stages.schedule_name)) continue;  // it keeps versions
      layout.sharding.zero = zero;
      with_files(layout);
    }
  }

  void with_files(TrainingOptions layout) {
    layouts_.push_back(layout);
    if (space_.files_directory.empty()) return;
    ShardedParameters::Options::Offload& files = layout.sharding.offload;
    for (auto* const each : {&files.optimizer, &files.gradients, &files.values}) {
      if (each == &files.gradients && layout.sharding.zero < ZeroStage::gradients) continue;
      if (each == &files.values && layout.sharding.zero < ZeroStage::values) continue;
      each->directory = space_.files_directory;
      if (!allowed([&] { layout.check_sizes(); })) return;
      layouts_.push_back(layout);
    }
  }

  const LayoutSpace& space_;
  const LayoutCosts& costs_;
  // The space's own choices; where it leaves them open, those that its other settings force.
  std::optional<bool> divides_rows_;
  std::optional<Recompute> recompute_;
  ZeroStage least_zero_ = ZeroStage::none;  // that what lies in files needs, and tiles
  std::vector<TrainingOptions> layouts_;
  Refusals refusals_;
};

// Less is simpler: state in files, axes that divide the model or sequences, then 1f1b, interleaved, and schedules that split
// backward, then recomputation, and ZeRO's stage.
auto complexity(const TrainingOptions& layout) {
  const MeshShape& mesh = layout.mesh;
  const int axes = (mesh[Axis::tensor] > 1) + (mesh[Axis::pipeline] > 1) + (mesh[Axis::ring] > 1) +
                   (mesh[Axis::ulysses] > 1) + layout.divides_rows;
  const std::string& schedule = layout.stages.schedule_name;
  const int order = mesh[Axis::pipeline] == 1 || schedule == name(ScheduleKind::one_forward_one_backward) ? 0
                    : schedule == name(ScheduleKind::interleaved)                                         ? 1
                                                                                                          : 2;
  const ShardedParameters::Options::Offload& files = layout.sharding.offload;
  const int in_files = int{!files.optimizer.directory.empty()} + int{!files.gradients.directory.empty()} +
                       int{!files.values.directory.empty()};
  return std::tuple(in_files, axes, order, layout.recompute.level, layout.sharding.zero);
}

bool is_less(const FoundLayout& a, const FoundLayout& b) {
  return std::tuple(a.cost.seconds, a.cost.memory.total()) < std::tuple(b.cost.seconds, b.cost.memory.total());
}

// The fastest layout of each division by tensor parallelism and pipeline, and the simplest of all that are nearly as fast as
// the fastest.
class Leaders {
 public:
  explicit Leaders(std::size_t most) : most_(most) {}

  // No layout that takes so long at least can be among those that are returned.
  bool are_faster_than(double least) const { return least > slowest_ && !is_near(least); }
  bool may_take(const TrainingOptions& layout, double least) const {
    const auto known = fastest_.find(division(layout));
    const bool may_lead = known == fastest_.end() ? least <= slowest_ : least <= known->second.cost.seconds;
    return may_lead || is_near(least);
  }

  void take(FoundLayout found) {
    const auto [known, is_new] = fastest_.try_emplace(division(found.layout), found);
    if (!is_new && is_less(found, known->second)) known->second = found;
    if (found.cost.seconds < best_) best_ = found.cost.seconds;
    near_.push_back(std::move(found));
    std::erase_if(near_, [&](const FoundLayout& each) { return !is_near(each.cost.seconds); });
    if (fastest_.size() < most_) return;
    std::vector<double> seconds;
    for (const auto& [key, each] : fastest_) seconds.push_back(each.cost.seconds);
    std::ranges::nth_element(seconds, seconds.begin() + static_cast<std::ptrdiff_t>(most_ - 1));
    slowest_ = seconds[most_ - 1];
  }

  // The simplest one, then the others, the fastest first.
  std::vector<FoundLayout> in_order() const {
    if (near_.empty()) return {};
    std::vector<FoundLayout> fast = near_;
    std::ranges::stable_sort(fast, is_less);
    const FoundLayout& chosen =
        *std::ranges::min_element(fast, {}, [](const FoundLayout& found) { return complexity(found.layout); });
    std::vector<FoundLayout> result;
    for (const auto& [key, found] : fastest_) {
      if (key != division(chosen.layout)) result.push_back(found);
    }
    std::ranges::stable_sort(result, is_less);
    result.insert(result.begin(), chosen);
    result.erase(result.begin() + static_cast<std::ptrdiff_t>(std::min(most_, result.size())), result.end());
    return result;
  }

 private:
  using Division = std::pair<int, int>;
  static Division division(const TrainingOptions& layout) {
    return {layout.mesh[Axis::tensor], layout.mesh[Axis::pipeline]};
  }
  bool is_near(double seconds) const { return seconds <= nearly * best_; }

  std::size_t most_;
  std::map<Division, FoundLayout> fastest_;
  std::vector<FoundLayout> near_;
  double best_ = std::numeric_limits<double>::infinity();
  double slowest_ = std::numeric_limits<double>::infinity();  // of the `most` fastest divisions
};

}  // namespace

std::vector<TrainingOptions> all_layouts(const LayoutSpace& space, const LayoutCosts& costs,
                                         std::vector<LayoutSearch::Refusal>* refused) {
  Enumeration enumeration(space, costs);
  std::vector<TrainingOptions> layouts = enumeration.layouts();
  if (refused != nullptr) *refused = enumeration.refused();
  return layouts;
}

LayoutSearch search_layouts(const LayoutSpace& space, const TrainingCluster& cluster, std::size_t most,
                            const TrainingSystem& system, const LookedAt& looked_at) {
  LayoutCosts costs(space.model, cluster, space.ranks, system);
  LayoutSearch search;
  const std::vector<TrainingOptions> layouts = all_layouts(space, costs, &search.refused);
  search.tried = static_cast<std::int64_t>(layouts.size());
  search.least_memory = std::numeric_limits<std::int64_t>::max();
  std::vector<std::pair<double, const TrainingOptions*>> fitting;
  const auto too_large = [&](std::int64_t bytes) {
    if (bytes <= space.memory_bytes) return false;
    ++search.without_memory;
    search.least_memory = std::min(search.least_memory, bytes);
    return true;
  };
  std::int64_t looked = 0;
  for (const TrainingOptions& layout : layouts) {
    if (looked_at) looked_at(looked++, search.tried);
    if (!too_large(costs.least_memory(layout))) fitting.emplace_back(costs.least_seconds(layout), &layout);
  }
  std::ranges::stable_sort(fitting, {}, &std::pair<double, const TrainingOptions*>::first);
  const std::int64_t all = search.tried + static_cast<std::int64_t>(fitting.size());
  Leaders leaders(most);
  for (const auto& [least, layout] : fitting) {
    if (looked_at) looked_at(looked++, all);
    if (leaders.are_faster_than(least)) break;
    if (!leaders.may_take(*layout, least)) continue;
    LayoutCost cost = costs.time(*layout);
    if (!leaders.may_take(*layout, cost.seconds)) continue;
    cost.memory = costs.memory(*layout, &cost.memory_stage);
    if (!too_large(cost.memory.total())) leaders.take({*layout, std::move(cost)});
  }
  search.best = leaders.in_order();
  return search;
}

}  // namespace stretto
