#pragma once
#include <fmt/format.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stretto/layers/checkpoint.hpp"
#include "stretto/layers/optimizers.hpp"
#include "two_parameters.hpp"

// Training of a model without layers, for tests of what is saved and restored.
namespace stretto {

struct Layout {
  MeshShape mesh;
  ZeroStage stage = ZeroStage::optimizer;
  DType dtype = DType::f64;
  bool quantized = false;  // gradients, with stochastic rounding and error feedback
  OptimizerOptions optimizer = {};
  std::string frozen = {};                    // a parameter that is not trained
  StoredFormat stored = StoredFormat::plain;  // of its values
  int delay = 0;                              // ShardedParameters::Options::delay
};

// One rank. A step's gradients depend on the element and on the step, not on the layout.
class Training {
 public:
  Training(const Communicator& world, const Layout& layout, std::uint64_t seed = 3, std::int64_t columns = 4)
      : mesh_(world, layout.mesh) {
    add_parameters(parameters_, mesh_, columns);
    for (const auto& parameter : parameters_.all()) {
      parameter->trainable = parameter->name != layout.frozen;
      parameter->stored = layout.stored;
    }
    ShardedParameters::Options options{.zero = layout.stage, .dtype = layout.dtype, .unit_bytes = 64, .delay = layout.delay};
    if (layout.quantized) {
      options.qgz = QuantizedFormat::int4;
      options.qgz_rounding = Rounding::stochastic;
      options.qgz_error_feedback = true;
    }
    sharded_.emplace(parameters_, mesh_, options);
    sharded_->initialise(seed);
    optimizer_ = make_optimizer(*sharded_, layout.optimizer);
  }

  void advance(std::int64_t first, std::int64_t count) {
    for (std::int64_t step = first; step < first + count; ++step) {
      sum_gradients(*sharded_, parameters_, [&](const std::string& name, std::int64_t i) {
        return random_normal(3, name, static_cast<std::uint64_t>(i + 100 * step));
      });
      if (sharded_->sums_arrived()) optimizer_->step(1e-2, 0.7);
    }
  }

  void save(const std::string& directory, std::int64_t step, const std::map<std::string, std::string>& notes = {}) {
    save_checkpoint(*sharded_, *optimizer_, directory, step, notes);
  }

  LoadedCheckpoint load(const std::string& checkpoint, bool with_optimizer = true) {
    LoadedCheckpoint loaded = load_checkpoint(*sharded_, *optimizer_, checkpoint, with_optimizer);
    optimizer_->restore(loaded.optimizer_steps);
    return loaded;
  }

  // Trains with an optimizer of the test's own.
  void take(std::unique_ptr<Optimizer> optimizer) { optimizer_ = std::move(optimizer); }

  ShardedParameters& sharded() { return *sharded_; }
  Optimizer& optimizer() { return *optimizer_; }

  // This rank's values by name and global index.
  std::map<std::string, double> values() const {
    std::map<std::string, double> result;
    const std::vector<Tensor> slices = sharded_->whole_values();
    for (const auto& parameter : parameters_.all()) {
      for_each_run(*parameter, 0, parameter->elements(), [&](std::int64_t here, std::int64_t whole, std::int64_t count) {
        for (std::int64_t i = 0; i < count; ++i) {
          result[fmt::format("{}[{}]", parameter->name, whole + i)] = slices[parameter->index].at(here + i);
        }
      });
    }
    return result;
  }

 private:
  Mesh mesh_;
  Parameters parameters_;
  std::optional<ShardedParameters> sharded_;
  std::unique_ptr<Optimizer> optimizer_;
};

// The bytes of a kind that the tensors of both ranks hold. The first rank, of which formulas speak, has at most an element
// of each unit more than the second.
inline std::int64_t bytes_of_both(const Communicator& world, MemoryKind kind) {
  world.barrier(Stream::inline_()).wait();
  const auto bytes = static_cast<std::int64_t>(memory_use(kind).bytes);
  world.barrier(Stream::inline_()).wait();
  return bytes;
}

inline void on_ranks_of(const Layout& layout, const std::function<void(const Communicator&)>& body) {
  run_threads(static_cast<int>(layout.mesh.ranks()), body);
}

}  // namespace stretto
