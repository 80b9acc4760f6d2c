#include "sampling.hpp"

#include <algorithm>
#include <cmath>

#include "stretto/kernels.hpp"

namespace gpt {

using namespace stretto;

std::string sample(const Model& model, ParameterUse& use, const Communicator& tensor_group, const std::string& prompt,
                   const SamplingOptions& options) {
  const ModelShape& shape = model.shape();
  std::string text = prompt.empty() ? "\n" : prompt;
  for (std::int64_t i = 0; i < options.length; ++i) {
    const std::int64_t seen = std::min<std::int64_t>(static_cast<std::int64_t>(text.size()), shape.sequence);
    std::vector<std::int32_t> tokens;
    for (auto byte = text.end() - seen; byte != text.end(); ++byte) tokens.push_back(static_cast<unsigned char>(*byte));
    Model::Saved saved;
    const Tensor logits = model.logits(Batch::of(tokens, {}, seen), saved, use);

    // Each rank puts its columns of the last row into a row of zeros, in host memory; the sum is the whole row.
    const Tensor last = logits.view((seen - 1) * logits.columns(), {logits.columns()}).on(Device::cpu);
    const Tensor row({shape.vocabulary}, DType::f64, Device::cpu);
    row.zero();
    for (std::int64_t c = 0; c < last.size(); ++c) row.set(model.first_column() + c, last.at(c));
    tensor_group.all_reduce(row, ReduceOp::sum, Stream::inline_(), {.tag = "sampling"});

    double* const p = row.data<double>();
    std::int64_t chosen = std::max_element(p, p + shape.vocabulary) - p;
    if (options.temperature > 0) {
      kernels::scale(row, 1 / options.temperature);
      kernels::softmax(row, row);
      double left = random_uniform(options.seed, "sampling", static_cast<std::uint64_t>(i));
      for (chosen = 0; chosen + 1 < shape.vocabulary && left >= p[chosen]; ++chosen) left -= p[chosen];
    }
    text += static_cast<char>(chosen);
  }
  return text;
}

}  // namespace gpt
