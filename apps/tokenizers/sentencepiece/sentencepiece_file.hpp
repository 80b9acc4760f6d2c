#pragma once
#include <string_view>

#include "apps/tokenizers/sentencepiece/sentencepiece_model.hpp"

namespace apps {

// Whether bytes look like a sentencepiece model: a message whose first field is a piece.
bool looks_like_sentencepiece(std::string_view bytes);

// Reads sentencepiece's .model. Throws Error(io), in one sentence that names the file and the fault.
SentencePieceModel read_sentencepiece(const std::string& path, std::string_view bytes);

}  // namespace apps
