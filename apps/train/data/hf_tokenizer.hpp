#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "apps/train/data/token_data.hpp"

namespace apps {

// Writes GPT-2's tokenizer beside an exported model, as transformers reads it, if the data have a vocabulary.
void write_hf_tokenizer(const std::string& directory, const DataOptions& data, std::optional<std::int32_t> end_of_text,
                        std::int64_t positions);

}  // namespace apps
