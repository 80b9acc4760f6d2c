#pragma once
#include <map>
#include <string>
#include <vector>

#include "layers/checkpoint/files/safetensors.hpp"
#include "stretto/models/model_files.hpp"

// Files of transformers' models, for the tests that read and write them.
namespace parity {

using namespace stretto;

template <class T = double>
std::vector<T> numbers_of(const SafetensorsReader& file, const std::string& name) {
  const SafetensorsReader::View view = file.tensor(name);
  std::vector<T> result;
  for (std::int64_t i = 0; i < view.elements; ++i) result.push_back(static_cast<T>(view.at(i)));
  return result;
}

struct HfTensor {
  Shape shape;
  std::vector<float> values;
};
using HfTensors = std::map<std::string, HfTensor>;

inline HfTensors tensors_of(const std::string& path) {
  const SafetensorsReader file(path);
  HfTensors tensors;
  for (const TensorEntry& entry : file.entries()) tensors[entry.name] = {entry.shape, numbers_of<float>(file, entry.name)};
  return tensors;
}

inline void write_tensors(const std::string& path, const HfTensors& tensors) {
  std::vector<TensorEntry> entries;
  for (const auto& [name, tensor] : tensors) entries.push_back({name, "F32", tensor.shape});
  SafetensorsWriter file(path, entries, {{"format", "pt"}});
  for (const auto& [name, tensor] : tensors) file.write(tensor.values.data(), sizeof(float) * tensor.values.size());
  file.finish();
}

inline Trainer& begin_with(Trainer& trainer, const std::string& directory) {
  ModelFiles::of_directory(directory).load(trainer);
  trainer.optimizer().restore(0);
  return trainer;
}

}  // namespace parity
