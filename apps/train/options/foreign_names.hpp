#pragma once
#include <span>

#include "apps/common/parse_flags.hpp"

namespace apps {

// Of the trainer's flags, in PyTorch's, Hugging Face's, nanoGPT's, llm.c's and Megatron-LM's programs.
std::span<const ForeignName> foreign_names();

}  // namespace apps
