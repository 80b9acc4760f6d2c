#include "layers/checkpoint/checkpoint_snapshot.hpp"

#include <utility>

#include "layers/checkpoint/quantization_state.hpp"
#include "layers/optimizer/local_errors.hpp"
#include "stretto/memory.hpp"

namespace stretto {

namespace {

bool is_saved(const ShardedParameters& parameters, const ShardedParameters::Range& range, bool trained_only) {
  return range.owned && (!trained_only || parameters.parameters().all()[range.parameter]->trainable);
}

}  // namespace

std::vector<TensorToSave> tensors_to_save(const ShardedParameters& parameters, const Optimizer& optimizer,
                                          bool trained_only) {
  parameters.wait_for_late();
  std::vector<TensorToSave> result;
  for (std::size_t number = 0; number < most_tensors(parameters, optimizer.kind()); ++number) {
    for (std::size_t i = 0; i < parameters.ranges().size(); ++i) {
      if (!is_saved(parameters, parameters.ranges()[i], trained_only)) continue;
      const Tensor state = tensor_of(parameters, optimizer, i, number);
      if (state) result.push_back({state, parameters.ranges()[i].unit});
    }
  }
  for (const ErrorFeedback::Entry& entry : parameters.errors().entries()) result.push_back({entry.values, {}});
  return result;
}

CheckpointSnapshot::CheckpointSnapshot(const ShardedParameters& parameters, const Optimizer& optimizer,
                                       const Options& options)
    : parameters_(parameters), optimizer_(optimizer), options_(options) {
  add_parts();
}

void CheckpointSnapshot::add_parts() {
  const MemoryScope buffers(MemoryKind::buffers);
  for (std::size_t number = 0; number < most_tensors(parameters_, optimizer_.kind()); ++number) {
    for (std::size_t i = 0; i < parameters_.ranges().size(); ++i) {
      const ShardedParameters::Range& range = parameters_.ranges()[i];
      const Tensor state = tensor_of(parameters_, optimizer_, i, number);
      if (!is_saved(parameters_, range, options_.trained_only) || !state) continue;
      const Parameter& parameter = *parameters_.parameters().all()[range.parameter];
      const bool is_slice = range.count == parameter.elements();
      parts_.push_back({{tensor_name(optimizer_.kind(), number, parameter.name), safetensors_type(state.dtype()),
                         is_slice ? parameter.extents : Shape{range.count}},
                        options_.copies ? Tensor(state.shape(), state.dtype(), Device::cpu) : Tensor(),
                        range.unit});
      if (number != 0) continue;
      CheckpointTensor& its = pieces_[parameter.global_name()];
      its.shape = parameter.global_shape;
      its.older = parameter.trainable ? saved_older_versions(parameters_) : 0;
      its.pieces.push_back({options_.shard, parameter.first, parameter.extents, range.first, range.count,
                            parameter.part_of.empty() ? "" : parameter.name});
    }
  }
}

void CheckpointSnapshot::take() {
  const std::vector<TensorToSave> found = tensors_to_save(parameters_, optimizer_, options_.trained_only);
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (options_.copies) {
      parts_[i].values.copy_from(found[i].values);
      optimizer_.release(parts_[i].unit);
    } else {
      parts_[i].values = found[i].values.on(Device::cpu);
    }
  }
  units_ = units_text(parameters_);
  local_vectors_ = local_vectors_text(parameters_);
  errors_.clear();
  const MemoryScope buffers(MemoryKind::buffers);
  for (const ErrorFeedback::Entry& entry : parameters_.errors().entries()) {
    errors_.push_back({{error_name(entry.tensor, entry.hop), safetensors_type(entry.values.dtype()), entry.values.shape()},
                       options_.copies ? entry.values.clone() : entry.values});
  }
}

std::vector<TensorEntry> CheckpointSnapshot::entries() const {
  std::vector<TensorEntry> result;
  for (const auto* const list : {&parts_, &errors_}) {
    for (const Part& part : *list) result.push_back(part.entry);
  }
  return result;
}

std::map<std::string, std::string> CheckpointSnapshot::with_pieces(std::map<std::string, std::string> metadata) const {
  metadata["format"] = "pt";
  metadata[pieces_key] = pieces_text(pieces_);
  if (!units_.empty()) metadata[units_key] = units_;
  if (!local_vectors_.empty()) metadata[local_vectors_key] = local_vectors_;
  return metadata;
}

std::string CheckpointSnapshot::header(const std::filesystem::path& path,
                                       const std::map<std::string, std::string>& metadata) const {
  return safetensors_header(path, entries(), with_pieces(metadata));
}

std::uint64_t CheckpointSnapshot::write(const std::filesystem::path& path,
                                        const std::map<std::string, std::string>& metadata) const {
  SafetensorsWriter file(path, entries(), with_pieces(metadata));
  for (const Part& part : parts_) {
    file.write(part.values.raw(), part.values.bytes());
    if (!options_.copies) optimizer_.release(part.unit);  // copies are written by a thread of their own
  }
  for (const Part& part : errors_) file.write(part.values.raw(), part.values.bytes());
  return file.finish();
}

}  // namespace stretto
