#include "layers/checkpoint/checkpoint_snapshot.hpp"

#include <utility>

#include "layers/checkpoint/quantization_state.hpp"
#include "stretto/memory.hpp"

namespace stretto {

CheckpointSnapshot::CheckpointSnapshot(const ShardedParameters& parameters, const AdamWOptimizer& optimizer, bool copies)
    : parameters_(parameters), optimizer_(optimizer), copies_(copies) {
  add_parts();
}

void CheckpointSnapshot::add_parts() {
  const MemoryScope buffers(MemoryKind::buffers);
  for (const auto& [prefix, which] : state_tensors) {
    for (std::size_t i = 0; i < parameters_.ranges().size(); ++i) {
      const ShardedParameters::Range& range = parameters_.ranges()[i];
      if (!range.owned) continue;
      const Parameter& parameter = *parameters_.parameters().all()[range.parameter];
      const Tensor& state = optimizer_.states()[i].*which;
      const bool is_slice = range.count == parameter.elements();
      parts_.push_back(
          {i,
           which,
           {prefix + parameter.name, safetensors_type(state.dtype()), is_slice ? parameter.extents : Shape{range.count}},
           copies_ ? Tensor(state.shape(), state.dtype(), Device::cpu) : Tensor()});
      if (which != state_tensors.front().tensor) continue;
      CheckpointTensor& its = pieces_[parameter.name];
      its.shape = parameter.global_shape;
      its.pieces.push_back({static_cast<std::size_t>(parameters_.mesh().world().rank()), parameter.first, parameter.extents,
                            range.first, range.count});
    }
  }
}

void CheckpointSnapshot::take() {
  for (Part& part : parts_) {
    const Tensor& state = optimizer_.states()[part.range].*part.which;
    if (copies_) {
      part.values.copy_from(state);
    } else {
      part.values = state.on(Device::cpu);
    }
  }
  units_ = units_text(parameters_);
  errors_.clear();
  const MemoryScope buffers(MemoryKind::buffers);
  for (const ErrorFeedback::Entry& entry : parameters_.errors().entries()) {
    errors_.push_back({0,
                       nullptr,
                       {error_name(entry.tensor, entry.hop), safetensors_type(entry.values.dtype()), entry.values.shape()},
                       copies_ ? entry.values.clone() : entry.values});
  }
}

void CheckpointSnapshot::write(const std::filesystem::path& path, std::map<std::string, std::string> metadata) const {
  metadata["format"] = "pt";
  metadata[pieces_key] = pieces_text(pieces_);
  if (!units_.empty()) metadata[units_key] = units_;
  std::vector<TensorEntry> entries;
  for (const auto* const list : {&parts_, &errors_}) {
    for (const Part& part : *list) entries.push_back(part.entry);
  }
  SafetensorsWriter file(path, entries, metadata);
  for (const auto* const list : {&parts_, &errors_}) {
    for (const Part& part : *list) file.write(part.values.raw(), part.values.bytes());
  }
  file.finish();
}

}  // namespace stretto
