#include "stretto/layers/weight_file.hpp"

#include <fmt/format.h>

#include "core/fail.hpp"
#include "layers/checkpoint/files/safetensors.hpp"
#include "layers/checkpoint/whole_values.hpp"
#include "stretto/kernels.hpp"

namespace stretto {
namespace {

// Maps element i of a parameter to its index in the file.
class FilePlace {
 public:
  FilePlace(const Parameter& parameter, const ForeignTensor& foreign)
      : transposed_(foreign.transposed), columns_(parameter.global_shape.back()) {
    std::int64_t elements = 1;
    for (const std::int64_t extent : parameter.global_shape) elements *= extent;
    rows_ = elements / columns_;
  }
  std::int64_t operator()(std::int64_t i) const { return transposed_ ? i % columns_ * rows_ + i / columns_ : i; }

 private:
  bool transposed_;
  std::int64_t columns_, rows_ = 0;
};

Tensor as_stored(const Parameter& parameter, const ForeignTensor& foreign, const Tensor& whole) {
  Tensor stored(foreign.shape, DType::f32, Device::cpu);
  require(stored.size() == whole.size(), "{} of [{}] cannot be written as {} of [{}].", parameter.name,
          fmt::join(parameter.global_shape, ", "), foreign.name, fmt::join(foreign.shape, ", "));
  const FilePlace place(parameter, foreign);
  for (std::int64_t i = 0; i < whole.size(); ++i) stored.data<float>()[place(i)] = static_cast<float>(whole.at(i));
  return stored;
}

}  // namespace

std::vector<StoredTensor> stored_tensors(const std::string& path) { return SafetensorsReader(path).entries(); }

void write_weights(const ShardedParameters& parameters, const Optimizer& optimizer, const std::string& path,
                   const ForeignTensorOf& foreign, const std::map<std::string, std::string>& metadata) {
  parameters.traffic().wait_for_values();
  const WholeValues values(parameters, optimizer);
  const auto& all = parameters.parameters().all();
  std::unique_ptr<SafetensorsWriter> file;
  if (parameters.mesh().world().rank() == 0) {
    std::vector<TensorEntry> entries;
    for (const auto& parameter : all) {
      const ForeignTensor tensor = foreign(*parameter);
      entries.push_back({tensor.name, safetensors_type(DType::f32), tensor.shape});
    }
    file = std::make_unique<SafetensorsWriter>(path, entries, metadata);
  }
  for (const auto& parameter : all) {
    const Tensor whole = values.gather(*parameter);
    if (!file) continue;
    const Tensor stored = as_stored(*parameter, foreign(*parameter), whole);
    file->write(stored.raw(), stored.bytes());
  }
  if (file) file->finish();
}

void read_weights(const ShardedParameters& parameters, Optimizer& optimizer, const std::vector<std::string>& paths,
                  const ForeignTensorOf& foreign) {
  std::map<std::string, const SafetensorsReader*> file_of;
  std::vector<std::unique_ptr<SafetensorsReader>> files;
  for (const std::string& path : paths) {
    files.push_back(std::make_unique<SafetensorsReader>(path));
    for (const StoredTensor& tensor : files.back()->entries()) file_of.emplace(tensor.name, files.back().get());
  }
  const WholeValues values(parameters, optimizer);
  for (const auto& parameter : parameters.parameters().all()) {
    const ForeignTensor tensor = foreign(*parameter);
    const auto found = file_of.find(tensor.name);
    if (found == file_of.end()) fail(ErrorCode::io, "{} has no tensor {}.", fmt::join(paths, ", "), tensor.name);
    const SafetensorsReader::View view = found->second->floats(tensor.name);
    require(view.shape == tensor.shape, "{} has {} of shape [{}], but this model needs [{}].", found->second->path(),
            tensor.name, fmt::join(view.shape, ", "), fmt::join(tensor.shape, ", "));
    std::int64_t stored = 1, elements = 1;
    for (const std::int64_t extent : tensor.shape) stored *= extent;
    for (const std::int64_t extent : parameter->global_shape) elements *= extent;
    require(tensor.transposed ? stored == elements : stored >= elements, "{} of [{}] does not hold {} of [{}].", tensor.name,
            fmt::join(tensor.shape, ", "), parameter->name, fmt::join(parameter->global_shape, ", "));
    const FilePlace place(*parameter, tensor);
    values.set(
        *parameter, [&](std::int64_t i) { return view.at(place(i)); }, tensor.name, found->second->path());
  }
}

}  // namespace stretto
