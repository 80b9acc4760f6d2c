#pragma once
#include <compare>
#include <limits>
#include <mutex>

#include "by_hand.hpp"

// Finds the place where a wrong training step begins to differ, by the inputs and results of attention in every layer, of
// every sequence, in both passes, on any layout beside one rank.
namespace parity {

// In the order in which one sequence's step computes them.
enum class Observed : std::uint8_t { qkv, attended, attended_gradient, qkv_gradient };
inline const char* name(Observed what) {
  switch (what) {
    case Observed::qkv: return "queries, keys and values";
    case Observed::attended: return "result of attention";
    case Observed::attended_gradient: return "gradient of attention's result";
    default: return "gradient of queries, keys and values";
  }
}

// Whole tensors of a step's sequences, put together from the pieces of all ranks.
class Observations {
 public:
  struct Place {
    std::int64_t sequence = 0;  // of the step
    int layer = 0;
    Observed what = Observed::qkv;
    bool is_backward() const { return what >= Observed::attended_gradient; }
    // All of forward, and then all of backward; sequences in their order.
    std::strong_ordering operator<=>(const Place& other) const {
      const auto order = [](const Place& place) {
        return std::tuple(place.is_backward(), place.sequence, place.is_backward() ? -place.layer : place.layer, place.what);
      };
      return order(*this) <=> order(other);
    }
    bool operator==(const Place&) const = default;
  };

  // Heads of a piece's rows, one row for each position: `count` of the head_size columns that `heads` gives, which become
  // those from `first` on of a whole of so many columns.
  void put(const Place& place, const kernels::TokenHeads& heads, std::int64_t first_row, std::int64_t count,
           std::int64_t head_size, const std::vector<std::int64_t>& positions, std::int64_t length, std::int64_t first,
           std::int64_t columns) {
    const std::lock_guard lock(mutex_);
    Whole& whole = tensors_[place];
    whole.columns = columns;
    whole.values.resize(static_cast<std::size_t>(length * columns), std::numeric_limits<double>::quiet_NaN());
    for (std::size_t row = 0; row < positions.size(); ++row) {
      for (std::int64_t i = 0; i < count * head_size; ++i) {
        const std::int64_t from = heads.column(i / head_size, head_size) + i % head_size;
        whole.values[static_cast<std::size_t>(positions[row] * columns + first + i)] =
            heads.tensor.at((first_row + static_cast<std::int64_t>(row)) * heads.tensor.columns() + from);
      }
    }
  }

  // Names the first difference from `expected`; empty if there is none.
  std::string first_divergence(const Observations& expected) const {
    for (const auto& [place, whole] : expected.tensors_) {
      const auto found = tensors_.find(place);
      if (found == tensors_.end()) return text_of(place) + " was not computed";
      double scale = 0;
      for (const double value : whole.values) scale = std::max(scale, std::abs(value));
      for (std::size_t i = 0; i < whole.values.size(); ++i) {
        const double is = found->second.values[i];
        if (std::abs(is - whole.values[i]) <= parity_tolerance * scale) continue;  // NaN is within no tolerance
        const auto at = static_cast<std::int64_t>(i);
        return fmt::format("{}, token {}, column {}: expected {:.17g}, but it is {:.17g}", text_of(place),
                           at / whole.columns, at % whole.columns, whole.values[i], is);
      }
    }
    return {};
  }

 private:
  struct Whole {
    std::int64_t columns = 0;
    std::vector<double> values;
  };
  static std::string text_of(const Place& place) {
    return fmt::format("sequence {}, layer {}, {}", place.sequence, place.layer, name(place.what));
  }
  std::mutex mutex_;
  std::map<Place, Whole> tensors_;
};

// One rank's part in them: sees each call of a core between begin() and the next one.
class ObservedAttention final : public AttentionCore {
 public:
  ObservedAttention(std::shared_ptr<const AttentionCore> core, Observations& to, const Mesh& mesh,
                    const TrainingOptions& options, const Schedule& schedule)
      : core_(std::move(core)), to_(to), mesh_(mesh), options_(options), schedule_(schedule) {}

  void begin(const Action& action) const {
    action_ = action;
    calls_ = 0;
  }
  Tensor forward(const Shape& shape, const QueriesKeysValues& of, Saved& saved) const override {
    Tensor result = core_->forward(shape, of, saved);
    if (action_.kind == ActionKind::forward) {  // recomputation calls it in backward, too
      put(Observed::qkv, of, shape);
      put(Observed::attended, result, shape);
      ++calls_;
    }
    return result;
  }
  void backward(const Tensor& dattended, const Saved& saved, const QueriesKeysValues& gradients) const override {
    put(Observed::attended_gradient, dattended, saved.shape);
    core_->backward(dattended, saved, gradients);
    put(Observed::qkv_gradient, gradients, saved.shape);
    ++calls_;
  }

 private:
  void put(Observed what, const Tensor& attended, const Shape& shape) const {
    put(what, shape, {{{attended}, shape.heads}});
  }
  void put(Observed what, const QueriesKeysValues& of, const Shape& shape) const {
    put(what, shape, {{of.q, shape.heads}, {of.k, shape.kv_heads}, {of.v, shape.kv_heads}});
  }
  // The heads of this rank beside those of other tensor-parallel ranks, one tensor behind the other.
  void put(Observed what, const Shape& shape,
           const std::vector<std::pair<kernels::TokenHeads, std::int64_t>>& tensors) const {
    const int part = schedule_.part_of(mesh_.rank(Axis::pipeline), action_.chunk);
    const ModelCut cut = options_.cut(schedule_, mesh_.rank(Axis::pipeline));
    std::int64_t layer = 0;
    for (int before = 0; before < part; ++before) layer += cut.blocks[static_cast<std::size_t>(before)];
    Observations::Place place{.what = what};
    layer += place.is_backward() ? cut.blocks[static_cast<std::size_t>(part)] - 1 - calls_ : calls_;
    place.layer = static_cast<int>(layer);
    const std::vector<std::int64_t> positions =
        options_.on(mesh_.shape())
            .division()
            .positions(options_.model.sequence, mesh_.rank(Axis::ring), mesh_.rank(Axis::ulysses));
    const std::int64_t first_sequence =
        options_.global_batch / mesh_.size(Axis::data) * mesh_.rank(Axis::data) + action_.microbatch * options_.micro_batch;
    std::int64_t columns = 0;
    for (const auto& [heads, count] : tensors) columns += mesh_.size(Axis::tensor) * count * shape.head_size;
    for (std::int64_t i = 0; i < shape.batch; ++i) {
      place.sequence = first_sequence + i;
      std::int64_t first = 0;
      for (const auto& [heads, count] : tensors) {
        const std::int64_t width = count * shape.head_size;
        to_.put(place, heads, i * shape.rows, count, shape.head_size, positions, options_.model.sequence,
                first + mesh_.rank(Axis::tensor) * width, columns);
        first += mesh_.size(Axis::tensor) * width;
      }
    }
  }

  std::shared_ptr<const AttentionCore> core_;
  Observations& to_;
  const Mesh& mesh_;
  const TrainingOptions& options_;
  const Schedule& schedule_;
  mutable Action action_;
  mutable int calls_ = 0;
};

// Trains one step with a fault, and says where it begins to differ from one rank's without.
inline std::string first_divergence(Layout layout, const TrainingOptions& options, const Fault& fault = {}) {
  const auto observe = [](Layout on, const TrainingOptions& as, const Fault& wrong, Observations& to) {
    run_threads(on.ranks(), [&](const Communicator& world) {
      const Mesh mesh(world, on.mesh());
      const Schedule schedule = as.stages.schedule(on.pipeline, as.global_batch / as.micro_batch / on.data);
      std::shared_ptr<const ObservedAttention> core;
      Fault with = wrong;
      with.around_attention = [&](std::shared_ptr<const AttentionCore> inner) {
        return core = std::make_shared<ObservedAttention>(std::move(inner), to, mesh, as, schedule);
      };
      with.in_stage = [&](PipelineStage& stage, const Action& action, Tensor input) {
        core->begin(action);
        return wrong.in_stage ? wrong.in_stage(stage, action, std::move(input)) : stage.compute(action, std::move(input));
      };
      train_by_hand(world, on, as, with, 1);
    });
  };
  Observations expected, actual;
  observe({}, on_one_rank(options), {}, expected);
  observe(layout, options, fault, actual);
  const std::string text = actual.first_divergence(expected);
  return text.empty() ? "All layers agree in the first step, before gradients are summed." : "It begins in " + text + ".";
}

}  // namespace parity
