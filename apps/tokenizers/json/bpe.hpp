#pragma once
#include "apps/tokenizers/json/components.hpp"

namespace apps {

// More tokens than any vocabulary has, and as many as a damaged number may make a reader allocate.
inline constexpr std::int64_t most_tokens = 1 << 24;

// Reads a tokenizer.json's model, which must be BPE, into `parts`: the model, and what its tokens write. A model whose
// pieces are not cut gets a step that cuts them where no token reaches over.
void read_bpe(const JsonPart& model, const Decoder& decoder, TokenizerParts& parts);

}  // namespace apps
