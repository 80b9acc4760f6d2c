#include "models/families/gguf/gguf_tensors.hpp"

#include <algorithm>
#include <map>

#include "core/fail.hpp"
#include "models/families/gguf/gguf_file.hpp"

namespace stretto {
namespace {

constexpr std::int64_t most_elements = std::int64_t{1} << 14;  // that are dequantized at a time

class GgufWeights final : public WeightSource {
 public:
  explicit GgufWeights(const std::string& path) : file_(path) {
    for (const GgufTensor& tensor : file_.tensors()) {
      tensors_.push_back({tensor.name, tensor.type->name, tensor.shape});
      tensor_of_.emplace(tensor.name, &tensor);
    }
  }
  const std::vector<StoredTensor>& tensors() const override { return tensors_; }
  const std::string& file_of(const std::string& /*tensor*/) const override { return file_.path(); }

  void read(const std::string& tensor, std::int64_t first, std::int64_t count, double* to) const override {
    const GgufTensor& its = *tensor_of_.at(tensor);
    const GgufType& type = *its.type;
    if (type.dequantize == nullptr) {
      fail(ErrorCode::io, "{} has {} as {}; F32, F16, BF16, Q8_0, Q4_0 and Q4_1 can be read.", file_.path(), tensor,
           type.name);
    }
    std::vector<std::byte> blocks;
    std::vector<float> numbers;
    for (std::int64_t done = 0; done < count;) {
      const std::int64_t block = (first + done) / type.block_elements, begin = block * type.block_elements;
      const std::int64_t end = std::min(first + count, begin + most_elements);
      const std::int64_t some = (end - begin + type.block_elements - 1) / type.block_elements;
      blocks.resize(static_cast<std::size_t>(some * type.block_bytes));
      numbers.resize(static_cast<std::size_t>(some * type.block_elements));
      file_.read(its.at + static_cast<std::uint64_t>(block * type.block_bytes), blocks.data(), blocks.size());
      type.dequantize(blocks.data(), some, numbers.data());
      std::copy(numbers.begin() + (first + done - begin), numbers.begin() + (end - begin), to + done);
      done = end - first;
    }
  }

 private:
  GgufFile file_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, const GgufTensor*> tensor_of_;
};

}  // namespace

std::unique_ptr<WeightSource> gguf_weights(const std::string& path) { return std::make_unique<GgufWeights>(path); }

}  // namespace stretto
