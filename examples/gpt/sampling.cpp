#include "sampling.hpp"

#include <algorithm>
#include <cmath>

#include "stretto/kernels.hpp"

namespace gpt {

using namespace stretto;

namespace {

// The next token after number i. row: its logits.
std::int32_t choose(const Tensor& row, std::int64_t i, const SamplingOptions& options) {
  const std::int64_t vocabulary = row.size();
  double* const p = row.data<double>();
  std::int64_t chosen = std::max_element(p, p + vocabulary) - p;
  if (options.temperature > 0) {
    kernels::scale(row, 1 / options.temperature);
    kernels::softmax(row, row);
    double left = random_uniform(options.seed, "sampling", static_cast<std::uint64_t>(i));
    for (chosen = 0; chosen + 1 < vocabulary && left >= p[chosen]; ++chosen) left -= p[chosen];
  }
  return static_cast<std::int32_t>(chosen);
}

}  // namespace

std::string sample(Trainer& trainer, const std::string& prompt, const SamplingOptions& options) {
  const Communicator& stages = trainer.mesh().over(Axis::pipeline);
  const Schedule& schedule = trainer.pipeline().schedule();
  const int head = schedule.stage_of(schedule.parts() - 1);
  std::string text = prompt.empty() ? "\n" : prompt;
  for (std::int64_t i = 0; i < options.length; ++i) {
    const std::int64_t seen =
        std::min<std::int64_t>(static_cast<std::int64_t>(text.size()), trainer.model().shape().sequence);
    std::vector<std::int32_t> tokens;
    for (auto byte = text.end() - seen; byte != text.end(); ++byte) tokens.push_back(static_cast<unsigned char>(*byte));
    const Tensor row = trainer.next_logits(tokens);
    std::int32_t chosen = stages.rank() == head ? choose(row, i, options) : 0;
    if (stages.size() > 1) stages.broadcast(&chosen, &chosen, 1, DType::i32, head, Stream::inline_(), {.tag = "sampling"});
    text += static_cast<char>(chosen);
  }
  return text;
}

}  // namespace gpt
