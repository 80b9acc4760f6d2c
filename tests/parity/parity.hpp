#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "stretto/models/trainer.hpp"
#include "stretto/stretto.hpp"
#include "support/variables.hpp"

// Shared by the parity tests: a small model trained on a layout, each rank's trace of it, and the comparison of two traces.
namespace parity {

using namespace stretto;

struct Layout {
  int data = 1, tensor = 1, pipeline = 1, ring = 1, ulysses = 1;
  int ranks() const { return data * tensor * pipeline * ring * ulysses; }
  MeshShape mesh() const {
    return {{Axis::tensor, tensor},
            {Axis::ulysses, ulysses},
            {Axis::ring, ring},
            {Axis::data, data},
            {Axis::pipeline, pipeline}};
  }
};

// Fixed algorithms, so that a tuning file of the machine does not change these tests.
inline const Variable algorithms("STRETTO_ALGO",
                                 "all_reduce:0-4k:recursive_doubling,4k-inf:ring;reduce_scatter:ring;all_gather:ring");

// Any tensor-parallel size divides the heads; none above 1 divides the vocabulary of 61 entries. Activations have 12 KiB in
// f64, so that they travel in shares. Units are small, so that there are several.
inline TrainingOptions tiny(Layout layout, DType dtype = DType::f64) {
  TrainingOptions options;
  options.model.layers = 2;
  options.model.heads = (8 + layout.tensor - 1) / layout.tensor * layout.tensor;
  options.model.hidden = 4 * options.model.heads;
  options.model.sequence = 48;
  options.model.vocabulary = 61;
  options.sharding.dtype = dtype;
  options.micro_batch = 1;
  options.global_batch = 2L * layout.data;
  options.clip_norm = 0.25;  // below all norms in these tests, so that every step depends on the norm
  options.sharding.unit_bytes = std::size_t{16} << 10;
  return options;
}

// Tokens depend only on the global number of their sequence. Small tokens are frequent, so that there is something to learn.
inline FillSlot text_of_step(const TrainingOptions& options, std::int64_t step) {
  return [model = options.model, first = step * options.global_batch](std::int64_t slot, std::int32_t* tokens,
                                                                      std::int32_t* targets) {
    const auto token = [&](std::int64_t place) {
      const std::int64_t index = (first + slot) * (model.sequence + 1) + place;
      const double u = random_uniform(7, "parity", static_cast<std::uint64_t>(index));
      return static_cast<std::int32_t>(u * u * static_cast<double>(model.vocabulary));
    };
    for (std::int64_t i = 0; i < model.sequence; ++i) {
      tokens[i] = token(i);
      targets[i] = token(i + 1);
    }
  };
}

// A rank's slice of a tensor, and its place in the whole.
struct Piece {
  Shape global_shape, first, extents;
  std::vector<double> values;
  std::string parameter = {};  // Parameter::global_name()
};
using Pieces = std::map<std::string, Piece>;  // by the name of the record

inline Piece piece_of(const Parameter& parameter, const Tensor& tensor) {
  Piece piece{parameter.global_shape, parameter.first, parameter.extents, {}, parameter.global_name()};
  const Tensor here = tensor.on(Device::cpu);
  if (here.dtype() == DType::f64) {
    piece.values.assign(here.data<double>(), here.data<double>() + here.size());
  } else {
    for (std::int64_t i = 0; i < here.size(); ++i) piece.values.push_back(here.at(i));
  }
  return piece;
}

// tensors: by parameter.
inline Pieces pieces_of(const Trainer& trainer, const std::vector<Tensor>& tensors) {
  Pieces pieces;
  for (const auto& parameter : trainer.parameters().all()) {
    if (parameter->is_here) pieces[parameter->name] = piece_of(*parameter, tensors[parameter->index]);
  }
  return pieces;
}

// The loss of one batch by the whole model on one stage, whose gradients are added up.
inline double loss_with_gradients(const Decoder& model, const Batch& batch, double factor, ParameterUse& use) {
  Microbatches one(model, use, batch, batch.sequences, factor);
  one.compute({ActionKind::forward, 0, 0}, {});
  one.compute({ActionKind::backward, 0, 0}, {});
  return one.losses().front().loss();
}

// One rank's results of a few steps.
struct Trace {
  std::vector<double> losses, norms;
  std::vector<Pieces> gradients;               // by step
  Pieces parameters;                           // after the last step
  std::vector<Record> records;                 // of the operations of the last step
  std::vector<std::int64_t> shares;            // elements of a rank's share, padding included, by unit
  std::vector<int> share_ranks;                // the ranks over which gradients are summed, by unit
  std::map<std::string, std::size_t> unit_of;  // by parameter
};

using TextOfStep = std::function<FillSlot(const TrainingOptions& options, std::int64_t step)>;

inline Trace advance(Trainer& trainer, std::int64_t first_step, std::int64_t steps, const TextOfStep& text = text_of_step) {
  Trace trace;
  for (std::int64_t step = first_step; step < first_step + steps; ++step) {
    const std::uint64_t since = trainer.mesh().world().job().ledger().next_sequence();
    const StepResult result = trainer.step(text(trainer.options(), step), 3e-3);
    trace.records = trainer.mesh().world().job().ledger().records(since);
    trace.losses.push_back(result.loss);
    trace.norms.push_back(result.gradient_norm);
    trace.gradients.push_back(pieces_of(trainer, trainer.sharded().whole_gradients()));
  }
  trace.parameters = pieces_of(trainer, trainer.sharded().whole_values());
  trace.share_ranks.resize(trainer.sharded().unit_count());
  for (const auto& parameter : trainer.parameters().all()) {
    if (!parameter->is_here) continue;
    const std::size_t unit = trace.unit_of[parameter->name] = trainer.sharded().unit_of(*parameter);
    trace.share_ranks[unit] = trainer.mesh().shape().gradient_ranks(parameter->sum_gradient_over);
  }
  for (std::size_t unit = 0; unit < trainer.sharded().unit_count(); ++unit) {
    const int ranks = trace.share_ranks[unit];
    trace.shares.push_back((trainer.sharded().unit_elements(unit) + ranks - 1) / ranks);
  }
  return trace;
}

inline constexpr std::int64_t trained_steps = 3;

// Trains three steps on ranks that are threads and returns their traces by rank. `prepare` may change the trainer before.
inline std::vector<Trace> train(Layout layout, const TrainingOptions& options,
                                const std::function<void(Trainer&)>& prepare = {}) {
  std::vector<Trace> traces(static_cast<std::size_t>(layout.ranks()));
  run_threads(layout.ranks(), [&](const Communicator& world) {
    Trainer trainer(Mesh(world, layout.mesh()), options);
    if (prepare) prepare(trainer);
    traces[static_cast<std::size_t>(world.rank())] = advance(trainer, 0, trained_steps);
  });
  return traces;
}

// The same training on one rank, which accumulates over the same global batch.
inline TrainingOptions on_one_rank(TrainingOptions options) {
  options.stages = {};
  options.divides_rows = options.keeps_gathered = false;
  options.tiles = 1;
  options.sequence_layout = SequenceLayout::zigzag;
  options.sharding.zero = ZeroStage::none;
  options.recompute = {};
  return options;
}

// Its trace; known ones are not trained again.
inline const Trace& of_one_rank(const TrainingOptions& options, std::int64_t steps = trained_steps) {
  const kernels::AttentionMask& mask = options.mask;
  using Key = std::vector<std::int64_t>;
  static std::map<std::pair<Key, double>, Trace> known;
  const Key key = {options.model.layers,
                   options.model.kv_heads,
                   options.model.hidden,
                   options.model.sequence,
                   static_cast<std::int64_t>(options.model.positions),
                   options.model.tied,
                   options.model.qk_norm,
                   options.model.biases.qkv,
                   options.global_batch,
                   mask.window,
                   mask.stride,
                   mask.global,
                   steps};
  const auto found = known.try_emplace({key, options.clip_norm}, Trace());
  Trace& trace = found.first->second;
  if (found.second) {
    run_threads(1, [&](const Communicator& world) {
      Trainer trainer(Mesh(world, {}), on_one_rank(options));
      trace = advance(trainer, 0, steps);
    });
  }
  return trace;
}

// The first divergence of each kind, with name, index and both values; empty if there is none.
struct Comparison {
  std::string loss, norm, gradient, parameter;
  double worst = 0;  // the largest difference, relative to the largest magnitude of its tensor
  std::string all() const { return loss + norm + gradient + parameter; }
};

inline constexpr double parity_tolerance = 1e-10;
inline constexpr double equal_bits = 0;  // as a tolerance: compares bits

// The parameters of which the actual rank has pieces. Those of a stage are compared together by missing().
enum class Has { all, those_of_its_stage };
inline Has has_of(Layout layout) { return layout.pipeline > 1 ? Has::those_of_its_stage : Has::all; }

inline std::set<std::string> parameters_of(const Pieces& pieces) {
  std::set<std::string> names;
  for (const auto& entry : pieces) names.insert(entry.second.parameter);
  return names;
}

class Comparer {
 public:
  explicit Comparer(double tolerance, Has has = Has::all) : tolerance_(tolerance), has_(has) {}

  // Each expected piece is the whole tensor or the same slice as the actual piece.
  std::string pieces(const Pieces& expected, const Pieces& actual, const std::string& what) {
    if (has_ == Has::all && parameters_of(expected).size() != parameters_of(actual).size())
      return what + " all parameters: they are not as many\n";
    std::string first;
    for (const auto& entry : actual) {
      const std::string& name = entry.first;
      const Piece& piece = entry.second;
      auto found = expected.find(name);
      if (found == expected.end()) found = expected.find(piece.parameter);
      if (found == expected.end()) return what + " " + name + " is new\n";
      const Piece& other = found->second;
      const bool whole = other.extents == other.global_shape;
      if (other.global_shape != piece.global_shape || (!whole && other.first != piece.first)) {
        return what + " " + name + " has another shape\n";
      }
      double scale = 0;
      for (const double value : other.values) scale = std::max(scale, std::abs(value));
      for_each_run(piece.global_shape, piece.first, piece.extents,
                   [&](std::int64_t here, std::int64_t there, std::int64_t count) {
                     for (std::int64_t i = 0; i < count; ++i) {
                       const double expected_value = other.values[static_cast<std::size_t>((whole ? there : here) + i)];
                       const double actual_value = piece.values[static_cast<std::size_t>(here + i)];
                       if (same(expected_value, actual_value, scale) || !first.empty()) continue;
                       first = values(expected_value, actual_value, scale, what + " " + name, there + i);
                     }
                   });
    }
    return first;
  }

  std::string values(double expected, double actual, double scale, const std::string& what, std::int64_t index) {
    if (same(expected, actual, scale)) return {};
    return fmt::format("{}[{}]: expected {:.17g}, but it is {:.17g}\n", what, index, expected, actual);
  }

  std::string numbers(const std::vector<double>& expected, const std::vector<double>& actual, const std::string& what) {
    if (expected.size() != actual.size()) return what + " are not as many\n";
    std::string first;
    for (std::size_t i = 0; i < actual.size(); ++i) {
      const std::string text = values(expected[i], actual[i], std::abs(expected[i]), what, static_cast<std::int64_t>(i));
      if (first.empty()) first = text;
    }
    return first;
  }

  double worst() const { return worst_; }

 private:
  bool same(double expected, double actual, double scale) {
    const double difference = std::abs(actual - expected);
    if (difference > 0) worst_ = std::max(worst_, difference / scale);
    if (tolerance_ == equal_bits) return std::bit_cast<std::uint64_t>(actual) == std::bit_cast<std::uint64_t>(expected);
    return difference <= tolerance_ * scale;  // NaN is within no tolerance
  }

  double tolerance_;
  Has has_;
  double worst_ = 0;
};

inline Comparison compare(const Trace& expected, const Trace& actual, double tolerance, Has has = Has::all) {
  Comparer comparer(tolerance, has);
  Comparison result;
  result.loss = comparer.numbers(expected.losses, actual.losses, "loss");
  result.norm = comparer.numbers(expected.norms, actual.norms, "gradient norm");
  for (std::size_t step = 0; step < std::min(expected.gradients.size(), actual.gradients.size()); ++step) {
    const std::string text =
        comparer.pieces(expected.gradients[step], actual.gradients[step], fmt::format("in step {}, the gradient of", step));
    if (result.gradient.empty()) result.gradient = text;
  }
  result.parameter = comparer.pieces(expected.parameters, actual.parameters, "after the steps, parameter");
  result.worst = comparer.worst();
  return result;
}

// A parameter of which no rank has the value, or the gradient of a step; empty if the stages together have the model.
inline std::string missing(const Trace& expected, const std::vector<Trace>& stages) {
  const auto none_has = [&](const std::string& name, const std::function<const Pieces&(const Trace&)>& pieces) {
    return std::none_of(stages.begin(), stages.end(),
                        [&](const Trace& each) { return parameters_of(pieces(each)).contains(name); });
  };
  for (const std::string& name : parameters_of(expected.parameters)) {
    if (none_has(name, [](const Trace& each) -> const Pieces& { return each.parameters; })) return "no rank has " + name;
    for (std::size_t step = 0; step < expected.gradients.size(); ++step) {
      if (none_has(name, [&](const Trace& each) -> const Pieces& { return each.gradients.at(step); })) {
        return fmt::format("no rank has the gradient of {} in step {}", name, step);
      }
    }
  }
  return {};
}

// The first difference in bits between two runs on the same layout.
inline std::string divergence(const std::vector<Trace>& expected, const std::vector<Trace>& actual) {
  for (std::size_t rank = 0; rank < expected.size(); ++rank) {
    const std::string text = compare(expected[rank], actual[rank], equal_bits).all();
    if (!text.empty()) return fmt::format("rank {}: {}", rank, text);
  }
  return {};
}

struct Cell {  // of a test over layouts and types
  Layout layout;
  DType dtype;
};

}  // namespace parity
