#pragma once
#include "apps/tokenizers/text_tokenizer.hpp"

namespace apps {

// Reads the tokenizer.json of Hugging Face's tokenizers whose model is BPE, with the components that GPT-2, Llama, Qwen,
// SmolLM2, DeepSeek and Mistral have. `path` names the file in errors. A tokenizer_config.json beside it says which tokens
// begin and end a text; else the post-processor does, and the names that are in use. Throws Error(io), in one sentence that
// names the file and the fault, or the component that is not served.
//
// Truncation and padding, which some files ask for, are for batches, and no part of a text's tokens: they are left alone.
TokenizerParts read_tokenizer_json(const std::string& path, const std::string& text);

}  // namespace apps
