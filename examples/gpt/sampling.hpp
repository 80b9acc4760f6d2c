#pragma once
#include <string>

#include "trainer.hpp"

namespace gpt {

struct SamplingOptions {
  std::int64_t length = 300;  // bytes to add to the prompt
  double temperature = 0.8;   // 0: always takes the likeliest
  std::uint64_t seed = 1;
};

// Continues the prompt byte by byte. Collective like Trainer::logits; all ranks get the same text, which does not depend on
// their number (except for rounding).
std::string sample(Trainer& trainer, const std::string& prompt, const SamplingOptions& options);

}  // namespace gpt
