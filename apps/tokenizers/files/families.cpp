#include "apps/tokenizers/files/families.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace apps {

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define LINES_AND_SPACES R"(\s*[\r\n]+|\s+(?!\S)|\s+)"

const char* const gpt2_pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

// cl100k's, Llama 3's: words with the character before them, and numbers of up to 3 digits.
constexpr const char* llama3_pattern =
    CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" LINES_AND_SPACES;
// Each digit is a piece.
constexpr const char* qwen_pattern =
    CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" LINES_AND_SPACES;
// And marks belong to words.
constexpr const char* qwen35_pattern =
    CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)" LINES_AND_SPACES;
// The letters that may begin a word (capitals) and those that may follow (small letters); scripts without case are in both.
#define UPPER R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define LOWER R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"
constexpr const char* o200k_pattern =
    R"([^\r\n\p{L}\p{N}]?)" UPPER "*" LOWER "+" CONTRACTIONS R"(?|[^\r\n\p{L}\p{N}]?)" UPPER "+" LOWER "*" CONTRACTIONS
    R"(?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" LINES_AND_SPACES;

// DeepSeek LLM names the letters of scripts that have cases one by one. Those that NFC would change are written by number.
// clang-format off
#define CASED_LETTERS \
  "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽ" \
  "Ა-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\\x{1f7d}ᾀ-ᾴᾶ-ᾼ\\x{1fbe}ῂ-ῄῆ-ῌῐ-\\x{1fd3}ῖ-\\x{1fdb}ῠ-Ῥῲ-ῴῶ-ῼ" \
  "ℂℇℊ-ℓℕℙ-ℝℤ\\x{2126}ℨ\\x{212a}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿ" \
  "ﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
// clang-format on

struct GgufFamily {
  const char* name;
  std::vector<const char*> patterns;
};

const std::vector<GgufFamily>& gguf_families() {
  static const std::vector<GgufFamily> families = {
      {"gpt-2", {gpt2_pattern}},
      {"smollm", {R"(\p{N})", gpt2_pattern}},
      {"llama-bpe", {llama3_pattern}},
      {"dbrx", {llama3_pattern}},
      {"qwen2", {qwen_pattern}},
      {"deepseek-r1-qwen", {qwen_pattern}},
      {"qwen35", {qwen35_pattern}},
      {"gpt-4o", {o200k_pattern}},
      {"deepseek-llm",
       {R"([\r\n])", R"(\s?[)" CASED_LETTERS "]+", R"(\s?[!-/:-~！-／：-～‘-‟　-。]+)", R"(\s+$)",
        "[一-龥ࠀ-一가-퟿]+", R"(\p{N}+)"}},
      {"deepseek-coder", {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", "[一-龥ࠀ-一가-퟿]+", R"(\p{N})"}},
      {"deepseek-v3",
       {R"(\p{N}{1,3})", "[一-龥぀-ゟ゠-ヿ]+",
        R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|)" LINES_AND_SPACES}},
  };
  return families;
}

std::vector<RankFamily::Special> numbered(const std::vector<std::string>& contents) {
  std::vector<RankFamily::Special> result;
  result.reserve(contents.size());
  for (const std::string& content : contents) result.push_back({content, static_cast<std::int32_t>(result.size())});
  return result;
}

std::vector<RankFamily::Special> llama3_special() {
  std::vector<std::string> contents = {"<|begin_of_text|>",
                                       "<|end_of_text|>",
                                       "<|reserved_special_token_0|>",
                                       "<|reserved_special_token_1|>",
                                       "<|finetune_right_pad_id|>",
                                       "<|step_id|>",
                                       "<|start_header_id|>",
                                       "<|end_header_id|>",
                                       "<|eom_id|>",
                                       "<|eot_id|>",
                                       "<|python_tag|>",
                                       "<|image|>"};
  for (int i = 2; contents.size() < 256; ++i) contents.push_back(fmt::format("<|reserved_special_token_{}|>", i));
  return numbered(contents);
}

std::vector<RankFamily::Special> qwen_special() {
  std::vector<std::string> contents = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  for (int i = 0; i < 205; ++i) contents.push_back(fmt::format("<|extra_{}|>", i));
  return numbered(contents);
}

std::vector<RankFamily::Special> qwen35_special() {
  return numbered({"<|endoftext|>",
                   "<|im_start|>",
                   "<|im_end|>",
                   "<|object_ref_start|>",
                   "<|object_ref_end|>",
                   "<|box_start|>",
                   "<|box_end|>",
                   "<|quad_start|>",
                   "<|quad_end|>",
                   "<|vision_start|>",
                   "<|vision_end|>",
                   "<|vision_pad|>",
                   "<|image_pad|>",
                   "<|video_pad|>",
                   "<tool_call>",
                   "</tool_call>",
                   "<|fim_prefix|>",
                   "<|fim_middle|>",
                   "<|fim_suffix|>",
                   "<|fim_pad|>",
                   "<|repo_name|>",
                   "<|file_sep|>",
                   "<tool_response>",
                   "</tool_response>",
                   "<think>",
                   "</think>",
                   "<|audio_start|>",
                   "<|audio_end|>",
                   "<tts_pad>",
                   "<tts_text_bos>",
                   "<tts_text_eod>",
                   "<tts_text_bos_single>",
                   "<|audio_pad|>"});
}

}  // namespace

bool add_gguf_steps(const std::string& pre, Splitter& splitter) {
  const auto family = std::ranges::find(gguf_families(), pre, &GgufFamily::name);
  if (family == gguf_families().end()) return false;
  for (const char* pattern : family->patterns) splitter.split_at(Pattern(pattern));
  return true;
}

bool takes_whole_pieces(const std::string& pre) { return pre == "llama-bpe"; }

const std::vector<RankFamily>& rank_families() {
  static const std::vector<RankFamily> families = {
      {"gpt2", gpt2_pattern, numbered({"<|endoftext|>"}), "", "<|endoftext|>"},
      {"cl100k",
       llama3_pattern,
       {{"<|endoftext|>", 1}, {"<|fim_prefix|>", 2}, {"<|fim_middle|>", 3}, {"<|fim_suffix|>", 4}, {"<|endofprompt|>", 20}},
       "",
       "<|endoftext|>"},
      {"o200k", o200k_pattern, {{"<|endoftext|>", 1}, {"<|endofprompt|>", 20}}, "", "<|endoftext|>"},
      {"llama3", llama3_pattern, llama3_special(), "<|begin_of_text|>", "<|end_of_text|>"},
      {"qwen", qwen_pattern, qwen_special(), "", "<|endoftext|>", true},
      {"qwen3.5", qwen35_pattern, qwen35_special(), "", "<|endoftext|>", true},
  };
  return families;
}

}  // namespace apps
