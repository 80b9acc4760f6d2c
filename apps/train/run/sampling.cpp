#include "apps/train/run/sampling.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "stretto/kernels.hpp"

namespace apps {

using namespace stretto;

namespace {

// Tokens by falling probability: the fewest that top_k and top_p leave.
std::vector<std::int64_t> likeliest(const double* p, std::int64_t vocabulary, const SamplingOptions& options) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(vocabulary));
  std::iota(order.begin(), order.end(), 0);
  if (options.top_k == 0 && options.top_p >= 1) return order;  // all, in the order of their numbers
  std::ranges::stable_sort(order, std::greater(), [&](std::int64_t token) { return p[token]; });
  if (options.top_k > 0) order.resize(static_cast<std::size_t>(std::min(options.top_k, vocabulary)));
  double sum = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    sum += p[order[i]];
    if (sum >= options.top_p) order.resize(i + 1);
  }
  return order;
}

// The next token, the i-th that is added. row: its logits.
std::int32_t choose(const Tensor& row, std::int64_t i, const SamplingOptions& options) {
  const std::int64_t vocabulary = row.size();
  double* const p = row.data<double>();
  if (options.temperature == 0) return static_cast<std::int32_t>(std::max_element(p, p + vocabulary) - p);
  kernels::scale(row, 1 / options.temperature);
  kernels::softmax(row, row);
  const std::vector<std::int64_t> among = likeliest(p, vocabulary, options);
  double all = 1;
  if (among.size() < static_cast<std::size_t>(vocabulary)) {
    all = std::accumulate(among.begin(), among.end(), 0.0, [&](double sum, std::int64_t token) { return sum + p[token]; });
  }
  double left = all * random_uniform(options.seed, "sampling", static_cast<std::uint64_t>(i));
  std::size_t chosen = 0;
  for (; chosen + 1 < among.size() && left >= p[among[chosen]]; ++chosen) left -= p[among[chosen]];
  return static_cast<std::int32_t>(among[chosen]);
}

}  // namespace

std::vector<std::int32_t> sample_tokens(Trainer& trainer, std::vector<std::int32_t> prompt, std::int64_t end,
                                        const SamplingOptions& options) {
  const Communicator& stages = trainer.mesh().over(Axis::pipeline);
  const Schedule& schedule = trainer.pipeline().schedule();
  const int head = schedule.stage_of(schedule.parts() - 1);
  const DecoderShape& model = trainer.model().shape();
  std::vector<std::int32_t> tokens = std::move(prompt);
  for (std::int64_t i = 0; i < options.length; ++i) {
    const std::int64_t seen = std::min<std::int64_t>(static_cast<std::int64_t>(tokens.size()), model.sequence);
    const Tensor row = trainer.next_logits({tokens.end() - seen, tokens.end()});
    std::int32_t chosen = 0;
    if (stages.rank() == head) chosen = choose(row.view(0, {std::min(end, model.vocabulary)}), i, options);
    if (stages.size() > 1)
      stages.broadcast(&chosen, &chosen, 1, DType::i32, head, Stream::inline_(), {.tag = "sampling"}).wait();
    tokens.push_back(chosen);
  }
  return tokens;
}

std::string sample(Trainer& trainer, Tokenizer& tokenizer, const std::string& prompt, const SamplingOptions& options) {
  std::vector<std::int32_t> tokens = tokenizer.encode(prompt);
  if (tokenizer.beginning_of_text()) tokens.insert(tokens.begin(), *tokenizer.beginning_of_text());
  if (tokens.empty()) tokens.push_back(tokenizer.beginning());
  return tokenizer.decode(sample_tokens(trainer, tokens, tokenizer.size(), options));
}

std::string sample(Trainer& trainer, const std::string& prompt, const SamplingOptions& options) {
  ByteTokenizer bytes;
  return sample(trainer, bytes, prompt, options);
}

}  // namespace apps
