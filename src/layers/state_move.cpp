#include "stretto/layers/state_move.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/fail.hpp"
#include "layers/checkpoint/state_tensors.hpp"
#include "layers/numbers_of_ranks.hpp"
#include "stretto/kernels.hpp"
#include "stretto/move.hpp"
#include "stretto/require_same.hpp"

namespace stretto {

// The elements of a whole parameter that a rank has, and the ranges of ShardedParameters that they lie in, in their order.
struct MovedElements {
  std::vector<Box> boxes;
  std::vector<std::size_t> ranges;

  std::int64_t count() const {
    return std::accumulate(boxes.begin(), boxes.end(), std::int64_t{0},
                           [](std::int64_t sum, const Box& box) { return sum + box.elements(); });
  }
};

// A parameter by its name in files: several records may have parts of it.
struct MovedParameter {
  Shape shape;
  std::vector<std::optional<DType>> types;  // of the tensors of its state, as tensor_of() numbers them; empty: it has none
  MovedElements elements;                   // on this rank
  std::vector<Tensor> tensors;              // this rank's elements of each, one behind the other
};
using MovedByName = std::map<std::string, MovedParameter>;  // all ranks have the same names in the same order

// What is said of a state beside its tensors.
struct MovedFacts {
  int ranks = 0;     // that have it
  std::string kind;  // to_string() of the optimizer's
  std::int64_t steps = 0;
  std::map<std::string, std::string> notes;
  bool has_late = false;
};

struct StateMove::State {
  MovedFacts facts;
  MovedByName moved;
};

namespace {

constexpr std::int64_t most_bytes = std::int64_t{64} << 20;  // of parameters that are moved at a time, and of messages

std::vector<std::optional<DType>> types_of(const ShardedParameters& parameters, const Optimizer& optimizer,
                                           const Parameter& parameter) {
  const DType dtype = parameters.options().dtype, wide = kernels::accumulator(dtype);
  std::vector<std::optional<DType>> types(2 + optimizer.kind().slots.size());
  types[0] = parameter.trainable ? wide : dtype;
  if (!parameter.trainable) return types;
  for (std::size_t i = 0; i < optimizer.kind().slots.size(); ++i) {
    const StateSlot& slot = optimizer.kind().slots[i];
    if (slot.is_of(parameter)) types[1 + i] = slot.dtype.value_or(wide);
  }
  if (has_late(parameters.options())) types.back() = parameters.options().gradients();
  return types;
}

// Ranges that follow each other are one run of elements, so that ranks which have the same elements have the same boxes.
MovedByName moved_by_name(const ShardedParameters& parameters, const Optimizer& optimizer, bool owned_only) {
  MovedByName result;
  std::vector<std::vector<std::size_t>> ranges_of(parameters.parameters().all().size());
  for (std::size_t i = 0; i < parameters.ranges().size(); ++i) {
    const ShardedParameters::Range& range = parameters.ranges()[i];
    if (range.count > 0 && (range.owned || !owned_only)) ranges_of[range.parameter].push_back(i);
  }
  for (const auto& parameter : parameters.parameters().all()) {
    MovedParameter& moved = result[parameter->global_name()];
    moved.shape = parameter->global_shape;
    moved.types = types_of(parameters, optimizer, *parameter);
    Box slice{parameter->first, parameter->first};
    for (std::size_t d = 0; d < slice.end.size(); ++d) slice.end[d] += parameter->extents[d];
    const std::vector<std::size_t>& ranges = ranges_of[parameter->index];
    for (std::size_t i = 0; i < ranges.size();) {
      const std::int64_t first = parameters.ranges()[ranges[i]].first;
      std::int64_t end = first;
      for (; i < ranges.size() && parameters.ranges()[ranges[i]].first == end; ++i) {
        end += parameters.ranges()[ranges[i]].count;
        moved.elements.ranges.push_back(ranges[i]);
      }
      const std::vector<Box> boxes = flat_range(slice, first, end);
      moved.elements.boxes.insert(moved.elements.boxes.end(), boxes.begin(), boxes.end());
    }
  }
  return result;
}

// Calls f(this rank's tensor of a range's state, its place in MovedParameter::tensors of that number).
template <class F>
void for_each_tensor(const ShardedParameters& parameters, const Optimizer& optimizer, const MovedParameter& moved,
                     std::size_t number, F f) {
  std::int64_t first = 0;
  for (const std::size_t range : moved.elements.ranges) {
    const std::int64_t count = parameters.ranges()[range].count;
    f(tensor_of(parameters, optimizer, range, number), moved.tensors[number].view(first, {count}));
    first += count;
  }
}

// The boxes of each rank of each parameter.
using BoxesOfRanks = std::map<std::string, std::vector<std::vector<Box>>>;

BoxesOfRanks boxes_of_ranks(const Communicator& ranks, const MovedByName& mine) {
  std::vector<std::int64_t> numbers;
  for (const auto& [name, moved] : mine) {
    numbers.push_back(static_cast<std::int64_t>(moved.elements.boxes.size()));
    for (const Box& box : moved.elements.boxes) {
      numbers.insert(numbers.end(), box.begin.begin(), box.begin.end());
      numbers.insert(numbers.end(), box.end.begin(), box.end.end());
    }
  }
  BoxesOfRanks result;
  const std::int64_t* next = nullptr;
  const auto corner = [&](std::size_t dimensions) {
    Shape shape(dimensions, 0);
    for (std::int64_t& each : shape) each = *next++;
    return shape;
  };
  for (const std::vector<std::int64_t>& of_rank : numbers_of_ranks(ranks, numbers, "move")) {
    next = of_rank.data();
    for (const auto& [name, moved] : mine) {
      std::vector<Box>& boxes = result[name].emplace_back(static_cast<std::size_t>(*next++));
      for (Box& box : boxes) {
        box.begin = corner(moved.shape.size());
        box.end = corner(moved.shape.size());
      }
    }
  }
  return result;
}

Division division_of(const std::vector<std::vector<Box>>& boxes) {
  Division division;
  for (std::size_t rank = 0; rank < boxes.size(); ++rank) {
    if (boxes[rank].empty()) continue;
    division.ranks.push_back(static_cast<int>(rank));
    division.boxes.push_back(boxes[rank]);
  }
  return division;
}

void check_can_move(const ShardedParameters& parameters, const Optimizer& optimizer) {
  const ShardedParameters::Options& options = parameters.options();
  const bool is_stored = std::ranges::any_of(parameters.parameters().all(),
                                             [](const auto& each) { return each->stored != StoredFormat::plain; });
  const bool is_on_gpu = std::ranges::any_of(
      parameters.ranges(), [](const auto& each) { return each.value && each.value.device() != Device::cpu; });
  const char* const what = options.versions > 0         ? "older versions of a pipeline without a flush"
                           : options.qgz_error_feedback ? "errors of quantized sums that are fed back"
                           : options.qgz != QuantizedFormat::none && options.qgz_rounding == Rounding::stochastic
                               ? "random numbers of quantized sums"
                           : options.powersgd.any()             ? "errors and factors of PowerSGD"
                           : !optimizer.kind().sums_gradients() ? "the errors of a momentum exchange"
                           : is_stored                          ? "frozen values in a stored format"
                           : is_on_gpu                          ? "values on a GPU"
                                                                : nullptr;
  require(what == nullptr,
          "The state of this training has {}, which cannot be moved to another layout; save a checkpoint, or train without.",
          what == nullptr ? "" : what);
}

// The targets' parameters, of which this rank brings nothing.
MovedByName without_elements(const MovedByName& targets) {
  MovedByName result;
  for (const auto& [name, target] : targets) {
    MovedParameter& moved = result[name];
    moved.shape = target.shape;
    moved.types = target.types;
    moved.tensors.resize(target.types.size());
  }
  return result;
}

// Tells the ranks that join what rank 0 knows.
void share(const Communicator& ranks, MovedFacts& facts) {
  constexpr const char* tag = "move";
  std::int64_t numbers[3] = {facts.ranks, facts.steps, facts.has_late ? 1 : 0};
  ranks.broadcast(numbers, numbers, 3, DType::i64, 0, Stream::inline_(), {.tag = tag}).wait();
  facts.ranks = static_cast<int>(numbers[0]);
  facts.steps = numbers[1];
  facts.has_late = numbers[2] != 0;
  broadcast_text(ranks, facts.kind, tag);
  broadcast_texts(ranks, facts.notes, tag);
}

}  // namespace

StateMove::StateMove() : state_(std::make_unique<State>()) {}

StateMove::StateMove(const ShardedParameters& parameters, const Optimizer& optimizer) : state_(std::make_unique<State>()) {
  check_can_move(parameters, optimizer);
  parameters.wait_for_late();
  State& state = *state_;
  state.facts = {parameters.mesh().world().size(), to_string(optimizer.kind()), optimizer.steps(), optimizer.notes(),
                 parameters.has_late()};
  state.moved = moved_by_name(parameters, optimizer, true);
  const MemoryScope buffers(MemoryKind::buffers);
  for (auto& [name, moved] : state.moved) {
    moved.tensors.resize(moved.types.size());
    for (std::size_t number = 0; number < moved.types.size(); ++number) {
      const bool is_late = number + 1 == moved.types.size();
      if (!moved.types[number] || moved.elements.boxes.empty() || (is_late && !state.facts.has_late)) continue;
      moved.tensors[number] = Tensor({moved.elements.count()}, *moved.types[number], Device::cpu);
      for_each_tensor(parameters, optimizer, moved, number,
                      [](const Tensor& of_range, const Tensor& here) { here.copy_from(of_range); });
    }
    for (const std::size_t range : moved.elements.ranges) optimizer.release(parameters.ranges()[range].unit);
  }
}

StateMove::~StateMove() = default;

std::int64_t StateMove::into(ShardedParameters& parameters, Optimizer& optimizer) {
  require(state_ != nullptr, "The state has been moved; make a StateMove of the layout that it is in now.");
  check_can_move(parameters, optimizer);
  const Communicator& world = parameters.mesh().world();
  MovedByName targets = moved_by_name(parameters, optimizer, false);
  auto facts = state_->facts;  // of one that joins they stay empty if its training is refused
  const bool joins = facts.ranks == 0;
  share(world, facts);
  require(world.size() >= facts.ranks && joins == (world.rank() >= facts.ranks),
          "The state of {} ranks cannot be moved to a mesh of {}, in which this is rank {}; take the same ranks, and behind "
          "them those that join.",
          facts.ranks, world.size(), world.rank());
  require(facts.kind == to_string(optimizer.kind()),
          "The state is that of {}, but this optimizer is {}; make the one that it was.", facts.kind,
          to_string(optimizer.kind()));
  if (joins) state_->moved = without_elements(targets);
  require(!facts.has_late || has_late(parameters.options()),
          "The state has gradients that no update has taken yet; train on with a delay of 1.");
  require(state_->moved.size() == targets.size(), "The state has {} parameters, but this model has {}.",
          state_->moved.size(), targets.size());
  for (const auto& [name, target] : targets) {
    const auto source = state_->moved.find(name);
    require(source != state_->moved.end() && source->second.shape == target.shape &&
                (source->second.types == target.types ||
                 (!facts.has_late && source->second.types.front() == target.types.front())),
            "The state has no parameter {} of shape [{}] and the types of this training; make the model that it was.", name,
            fmt::join(target.shape, ", "));
  }
  state_->facts = std::move(facts);
  const std::unique_ptr<State> state = std::move(state_);

  const Communicator ranks = world.duplicate("move");
  const BoxesOfRanks from = boxes_of_ranks(ranks, state->moved), to = boxes_of_ranks(ranks, targets);
  struct Part {  // a tensor of a move
    std::string name;
    std::size_t number;
  };
  std::vector<MovedTensor> tensors;
  std::vector<Part> parts;
  std::int64_t bytes = 0, received = 0;
  const auto move_them = [&] {
    if (parts.empty()) return;
    const MemoryScope buffers(MemoryKind::buffers);
    std::vector<Tensor> inputs, outputs;
    for (const auto& [name, number] : parts) {
      MovedParameter& target = targets.at(name);
      target.tensors.resize(target.types.size());
      if (!target.elements.boxes.empty()) {
        target.tensors[number] = Tensor({target.elements.count()}, *target.types[number], Device::cpu);
      }
      inputs.push_back(std::exchange(state->moved.at(name).tensors[number], Tensor()));
      outputs.push_back(target.tensors[number]);
    }
    const Move move(ranks, plan_move(std::exchange(tensors, {}), ranks.size(), ranks.nodes(), most_bytes));
    received += move.plan().bytes_into(ranks.rank());
    move.start(inputs, outputs, Stream::inline_()).wait();
    for (const auto& [name, number] : parts) {
      MovedParameter& target = targets.at(name);
      for_each_tensor(parameters, optimizer, target, number,
                      [](const Tensor& of_range, const Tensor& here) { of_range.copy_from(here); });
      target.tensors[number] = {};
      for (const std::size_t range : target.elements.ranges) optimizer.release(parameters.ranges()[range].unit);
    }
    parts.clear();
    bytes = 0;
  };
  for (const auto& [name, target] : targets) {
    std::int64_t most = 0;  // elements of a rank
    for (const std::vector<Box>& boxes : to.at(name)) most = std::max(most, MovedElements{boxes, {}}.count());
    for (std::size_t number = 0; number < target.types.size(); ++number) {
      const bool is_late = number + 1 == target.types.size();
      if (!target.types[number] || (is_late && !state->facts.has_late)) continue;
      const std::int64_t its = most * static_cast<std::int64_t>(size_of(*target.types[number]));
      if (bytes + its > most_bytes) move_them();
      bytes += its;
      tensors.push_back({*target.types[number], target.shape, division_of(from.at(name)), division_of(to.at(name))});
      parts.push_back({name, number});
    }
  }
  move_them();
  optimizer.read_notes(state->facts.notes);
  if (has_late(parameters.options())) parameters.set_late(state->facts.has_late);
  optimizer.restore(state->facts.steps);
  return received;
}

}  // namespace stretto
