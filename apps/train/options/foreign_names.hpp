#pragma once
#include <span>

#include "apps/common/parse_flags.hpp"

namespace apps {

// The names that programs of PyTorch, Hugging Face, nanoGPT, llm.c and Megatron-LM give to the trainer's flags.
std::span<const ForeignName> foreign_names();

}  // namespace apps
