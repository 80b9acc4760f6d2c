#include <map>

#include "core/fail.hpp"
#include "layers/checkpoint/files/safetensors.hpp"

namespace stretto {
namespace {

class SafetensorsWeights final : public WeightSource {
 public:
  explicit SafetensorsWeights(const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
      files_.push_back(std::make_unique<SafetensorsReader>(path));
      for (StoredTensor& tensor : files_.back()->entries()) {
        if (file_of_.emplace(tensor.name, files_.back().get()).second) tensors_.push_back(std::move(tensor));
      }
    }
  }
  const std::vector<StoredTensor>& tensors() const override { return tensors_; }
  const std::string& file_of(const std::string& tensor) const override { return file_of_.at(tensor)->path(); }
  void read(const std::string& tensor, std::int64_t first, std::int64_t count, double* to) const override {
    if (tensor != open_tensor_) {
      open_ = file_of_.at(tensor)->floats(tensor);
      open_tensor_ = tensor;
    }
    open_.numbers(first, count, to);
  }

 private:
  std::vector<std::unique_ptr<SafetensorsReader>> files_;
  std::map<std::string, const SafetensorsReader*> file_of_;
  std::vector<StoredTensor> tensors_;
  mutable std::string open_tensor_;  // the last one that was read
  mutable SafetensorsReader::View open_;
};

}  // namespace

std::unique_ptr<WeightSource> safetensors_weights(const std::vector<std::string>& paths) {
  return std::make_unique<SafetensorsWeights>(paths);
}

}  // namespace stretto
