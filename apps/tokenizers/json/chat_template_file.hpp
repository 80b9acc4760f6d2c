#pragma once
#include <string>

namespace apps {

// The chat template that transformers keeps beside a tokenizer's file: chat_template.jinja, or "chat_template" in
// tokenizer_config.json, of several the one that is named default. Empty if there is none. Throws Error(io), naming the
// file, for a configuration that is no JSON object.
std::string chat_template_beside(const std::string& path);

}  // namespace apps
