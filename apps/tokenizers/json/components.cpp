#include "apps/tokenizers/json/components.hpp"

#include "apps/common/fail.hpp"
#include "apps/tokenizers/files/families.hpp"

namespace apps {

namespace {

constexpr int deepest = 16;  // of sequences within sequences

using Visit = std::function<void(const JsonPart&)>;

// Visits the components of a sequence, also of those within it; `key` is where a sequence has them.
void for_each_component(const JsonPart& part, const char* key, const Visit& visit, int depth = 0) {
  if (part.type() != "Sequence") return visit(part);
  if (depth == deepest) part.fail_with(fmt::format("more than {} sequences within each other", deepest));
  for (const JsonPart& component : part.list(key)) for_each_component(component, key, visit, depth + 1);
}

[[noreturn]] void refuse(const JsonPart& part) { part.fail_with(fmt::format("'{}', which is not served,", part.type())); }

// {"String": ...} or {"Regex": ...}; tokenizers runs the latter by Oniguruma.
std::optional<std::string> literal_of(const JsonPart& pattern) {
  if (!pattern.has("String")) return std::nullopt;
  return pattern.text("String");
}

Pattern pattern_of(const JsonPart& pattern) {
  const std::optional<std::string> literal = literal_of(pattern);
  try {
    return Pattern(literal ? quoted_pattern(*literal) : pattern.text("Regex"), Pattern::Lines::many);
  } catch (const stretto::Error& error) {
    fail(stretto::ErrorCode::io, "{}: {}", pattern.path(), stretto::error_sentence(error));
  }
}

Splitter::Behavior behavior_of(const JsonPart& part) {
  using Behavior = Splitter::Behavior;
  const std::string name = part.text("behavior");
  if (name == "Removed") return Behavior::removed;
  if (name == "Isolated") return Behavior::isolated;
  if (name == "MergedWithPrevious") return Behavior::merged_with_previous;
  if (name == "MergedWithNext") return Behavior::merged_with_next;
  if (name == "Contiguous") return Behavior::contiguous;
  part.fail_with(fmt::format("the behavior '{}'", name));
}

// Today's files say prepend_scheme, older ones add_prefix_space.
Splitter::Prepend prepend_of(const JsonPart& part) {
  using Prepend = Splitter::Prepend;
  if (!part.has("prepend_scheme")) return part.flag("add_prefix_space", true) ? Prepend::always : Prepend::never;
  const std::string name = part.text("prepend_scheme");
  if (name == "always") return Prepend::always;
  if (name == "first") return Prepend::first;
  if (name == "never") return Prepend::never;
  part.fail_with(fmt::format("the prepend_scheme '{}'", name));
}

}  // namespace

void add_normalizer(const JsonPart& part, Normalizer& normalizer) {
  for_each_component(part, "normalizers", [&](const JsonPart& component) {
    const std::string type = component.type();
    if (type == "Prepend") {
      normalizer.prepend(component.text("prepend"));
    } else if (type == "Replace") {
      const JsonPart pattern = component.at("pattern");
      const std::optional<std::string> literal = literal_of(pattern);
      if (literal) {
        normalizer.replace(*literal, component.text("content"));
      } else {
        normalizer.replace(pattern_of(pattern), component.text("content"));
      }
    } else if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
      normalizer.unicode_form(type);
    } else {
      refuse(component);
    }
  });
}

bool add_pre_tokenizer(const JsonPart& part, Splitter& splitter) {
  bool is_byte_level = false;
  for_each_component(part, "pretokenizers", [&](const JsonPart& component) {
    const std::string type = component.type();
    // Behind it, pieces are in the alphabet of bytes, which other steps would cut differently.
    if (is_byte_level) component.fail_with(fmt::format("'{}' behind 'ByteLevel', which is not served,", type));
    if (type == "ByteLevel") {
      is_byte_level = true;
      if (component.flag("add_prefix_space", true)) splitter.prefix_space();
      if (component.flag("use_regex", true)) splitter.split_at(Pattern(gpt2_pattern));
    } else if (type == "Split") {
      splitter.split_at(pattern_of(component.at("pattern")), behavior_of(component), component.flag("invert", false));
    } else if (type == "Digits") {
      splitter.split_at(Pattern(component.flag("individual_digits", false) ? "\\p{N}" : "\\p{N}+"));
    } else if (type == "Metaspace") {
      splitter.metaspace(component.text("replacement"), prepend_of(component), component.flag("split", true));
    } else {
      refuse(component);
    }
  });
  return is_byte_level;
}

Decoder read_decoder(const JsonPart& part) {
  Decoder decoder;
  bool is_fused = false;
  for_each_component(part, "decoders", [&](const JsonPart& component) {
    const std::string type = component.type();
    if (type == "ByteLevel") {
      decoder.is_byte_level = true;
    } else if (type == "Metaspace") {
      decoder.replacements.replace(component.text("replacement"), " ");
      const Splitter::Prepend prepend = prepend_of(component);
      decoder.leading_space = prepend == Splitter::Prepend::always  ? LeadingSpace::goes_behind_special
                              : prepend == Splitter::Prepend::first ? LeadingSpace::goes_at_beginning
                                                                    : LeadingSpace::stays;
    } else if (type == "Replace") {
      const std::optional<std::string> literal = literal_of(component.at("pattern"));
      if (!literal) component.fail_with("'Replace' of a pattern, which is not served,");
      decoder.replacements.replace(*literal, component.text("content"));
    } else if (type == "ByteFallback") {
      decoder.has_byte_fallback = true;
    } else if (type == "Fuse") {
      is_fused = true;
    } else if (type == "Strip") {
      // This strips the whole text, and its beginning: the space that the normalizer put there.
      if (!is_fused || component.text("content") != " " || component.number("start") != 1 || component.number("stop") != 0) {
        component.fail_with("'Strip' of anything but one space before the whole text, which is not served,");
      }
      decoder.leading_space = LeadingSpace::goes_behind_special;
    } else {
      refuse(component);
    }
  });
  return decoder;
}

}  // namespace apps
