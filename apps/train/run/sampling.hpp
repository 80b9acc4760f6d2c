#pragma once
#include <string>

#include "apps/tokenizers/tokenizer.hpp"
#include "stretto/models/trainer.hpp"

namespace apps {

struct SamplingOptions {
  std::int64_t length = 300;  // tokens to add to the prompt
  double temperature = 0.8;   // 0: always takes the likeliest
  std::int64_t top_k = 0;     // chooses among the so many likeliest; 0: all
  double top_p = 1;           // and of them the likeliest whose probabilities first reach this sum
  std::uint64_t seed = 1;
};

// Continues the prompt token by token, by tokens below `end`. Collective like Trainer::logits; all ranks get the same
// tokens, which do not depend on their number (except for rounding).
std::vector<std::int32_t> sample_tokens(stretto::Trainer& trainer, std::vector<std::int32_t> prompt, std::int64_t end,
                                        const SamplingOptions& options);
// The same as text.
std::string sample(stretto::Trainer& trainer, Tokenizer& tokenizer, const std::string& prompt,
                   const SamplingOptions& options);
// The same of a model of bytes.
std::string sample(stretto::Trainer& trainer, const std::string& prompt, const SamplingOptions& options);

}  // namespace apps
