#pragma once
#include "apps/tokenizers/json/json_part.hpp"
#include "apps/tokenizers/text_tokenizer.hpp"

namespace apps {

// The components of a tokenizer.json that surround its model. A component, or a value of one, that is not served is an
// Error(io) that names it.

void add_normalizer(const JsonPart& part, Normalizer& normalizer);

// Returns whether pieces are written in GPT-2's alphabet of bytes (ByteLevel), by which their bytes are tokens.
bool add_pre_tokenizer(const JsonPart& part, Splitter& splitter);

// The steps by which a decoder changes one token, and the whole text.
struct Decoder {
  bool is_byte_level = false;  // tokens are written in GPT-2's alphabet
  bool has_byte_fallback = false;
  Normalizer replacements;  // in each token
  LeadingSpace leading_space = LeadingSpace::stays;
};
Decoder read_decoder(const JsonPart& part);

}  // namespace apps
