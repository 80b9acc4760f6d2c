#include "stretto/quantization.hpp"

#include <cstring>

#include "core/names.hpp"

namespace stretto {
namespace {

constexpr const char* format_names[quantized_formats] = {"none", "int8", "int4", "fp8", "onebit"};
constexpr const char* hop_names[hops] = {"contribution", "node_sum", "result"};

}  // namespace

const char* name(QuantizedFormat format) { return name_in(format_names, format); }
const char* name(Hop hop) { return name_in(hop_names, hop); }

QuantizedFormat quantized_format_from_name(const std::string& text) {
  return value_in<QuantizedFormat>(format_names, text == "1bit" ? "onebit" : text, "quantized format");
}

Tensor ErrorFeedback::state(const std::string& tensor, Hop hop, std::int64_t count) {
  const std::lock_guard lock(mutex_);
  const auto [place, is_new] = states_.try_emplace({tensor, hop});
  Tensor& values = place->second;
  const MemoryScope buffers(MemoryKind::buffers);
  if (is_new) values = Tensor::zeros({count}, DType::f32);
  require(values.size() == count,
          "The error state of '{}' at its hop '{}' has {} elements, but an operation on {} elements asks for it; give each "
          "tensor a name of its own.",
          tensor, name(hop), values.size(), count);
  return values;
}

std::vector<ErrorFeedback::Entry> ErrorFeedback::entries() const {
  const std::lock_guard lock(mutex_);
  std::vector<Entry> all;
  for (const auto& [key, values] : states_) all.push_back({key.first, key.second, values});
  return all;
}

void ErrorFeedback::restore(const std::string& tensor, Hop hop, const Tensor& values) {
  require(values.dtype() == DType::f32, "The error state of '{}' at its hop '{}' must be f32, not {}.", tensor, name(hop),
          name(values.dtype()));
  const Tensor mine = state(tensor, hop, values.size());
  std::memcpy(mine.raw(), values.raw(), static_cast<std::size_t>(values.size()) * sizeof(float));
}

void ErrorFeedback::clear() {
  const std::lock_guard lock(mutex_);
  states_.clear();
}

}  // namespace stretto
