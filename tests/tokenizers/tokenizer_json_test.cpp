// tokenizer.json: Llama 2's, Llama 3's and SmolLM2's kinds on small vocabularies, and components that are refused by name.
#ifdef STRETTO_HAVE_PCRE2
#include "apps/tokenizers/json/tokenizer_json.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "apps/tokenizers/text/byte_alphabet.hpp"
#include "support/error.hpp"
#include "support/temporary_directory.hpp"

namespace apps::tokenizer_json_tests {
namespace {

using nlohmann::json;
using stretto::sentence_of;
using testing::ElementsAre;
using testing::HasSubstr;

std::unique_ptr<Tokenizer> tokenizer_of(const json& file, bool finds_special = false) {
  return std::make_unique<TextTokenizer>(read_tokenizer_json("/nowhere/tokenizer.json", file.dump()), finds_special);
}

// The 256 bytes, then ab, Ġab, 12; a word is looked up before it is merged.
json byte_level() {
  const ByteAlphabet alphabet;
  json vocab;
  for (int byte = 0; byte < 256; ++byte) vocab[alphabet.character_of(static_cast<unsigned char>(byte))] = byte;
  vocab["ab"] = 256;
  vocab["Ġab"] = 257;
  vocab["12"] = 258;
  vocab["whole"] = 259;
  return {
      {"added_tokens", json::array({{{"id", 260}, {"content", "<end>"}, {"special", true}, {"normalized", false}},
                                    {{"id", 261}, {"content", "<tool>"}, {"special", false}, {"normalized", false}}})},
      {"normalizer", nullptr},
      {"pre_tokenizer",
       {{"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Digits"}, {"individual_digits", true}},
          {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}}}}},
      {"post_processor",
       {{"type", "TemplateProcessing"},
        {"single", {{{"SpecialToken", {{"id", "<end>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"a b", "Ġ ab", "1 2"}}}}};
}

TEST(TokenizerJson, OfBytes) {
  json file = byte_level();
  EXPECT_THAT(tokenizer_of(file)->encode("ab ab 12"), ElementsAre(256, 257, ' ', '1', '2')) << "each digit is a piece";
  EXPECT_THAT(tokenizer_of(file)->encode("<end><tool>").size(), 6U) << "only what is not special is found";
  EXPECT_THAT(tokenizer_of(file, true)->encode("<end>a<tool>"), ElementsAre(260, 'a', 261));
  EXPECT_EQ(tokenizer_of(file)->beginning_of_text(), 260);
  EXPECT_EQ(tokenizer_of(file)->decode({257, 261, 0xff}), " ab<tool>\xff");
  EXPECT_EQ(tokenizer_of(file)->encode("whole").size(), 5U);
  file["model"]["ignore_merges"] = true;
  EXPECT_THAT(tokenizer_of(file)->encode("whole"), ElementsAre(259));
  file["model"]["merges"] = json::array({json::array({"a", "b"})});
  EXPECT_THAT(tokenizer_of(file)->encode("ab cab"), ElementsAre(256, ' ', 'c', 256)) << "merges may be pairs";
}

// <unk>, the bytes, ▁, a, b, ▁a, ▁ab.
json llama2() {
  json vocab = {{"<unk>", 0}};
  for (int byte = 0; byte < 256; ++byte) vocab[fmt::format("<0x{:02X}>", byte)] = byte + 1;
  for (const char* token : {"▁", "a", "b", "▁a", "▁ab"}) vocab[token] = vocab.size();
  const auto replace = [](const char* found, const char* content) {
    return json{{"type", "Replace"}, {"pattern", {{"String", found}}}, {"content", content}};
  };
  return {
      {"added_tokens", json::array({{{"id", 0}, {"content", "<unk>"}, {"special", true}, {"normalized", false}},
                                    {{"id", 262}, {"content", "</s>"}, {"special", true}, {"normalized", false}}})},
      {"normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "Prepend"}, {"prepend", "▁"}}, replace(" ", "▁")}}}},
      {"pre_tokenizer", nullptr},
      {"post_processor", nullptr},
      {"decoder",
       {{"type", "Sequence"},
        {"decoders",
         {replace("▁", " "),
          {{"type", "ByteFallback"}},
          {{"type", "Fuse"}},
          {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
      {"model",
       {{"type", "BPE"},
        {"unk_token", "<unk>"},
        {"fuse_unk", true},
        {"byte_fallback", true},
        {"vocab", vocab},
        {"merges", {"▁ a", "▁a b"}}}}};
}
enum : std::int32_t { space = 257, a, b, space_a, space_ab, end };

TEST(TokenizerJson, OfCharactersWithBytesToFallBackTo) {
  json file = llama2();
  EXPECT_THAT(tokenizer_of(file)->encode("ab a  ab"), ElementsAre(space_ab, space_a, space, space_ab));
  EXPECT_THAT(tokenizer_of(file)->encode("é\xff"), ElementsAre(space, 0xc3 + 1, 0xa9 + 1, 0xff + 1));
  EXPECT_THAT(tokenizer_of(file, true)->encode("a</s>a"), ElementsAre(space_a, end, space_a));
  EXPECT_EQ(tokenizer_of(file)->end_of_text(), end);
  for (const char* text : {"ab a  ab", " a", "日本\n", "", "a "}) {
    EXPECT_EQ(tokenizer_of(file)->decode(tokenizer_of(file)->encode(text)), text);
  }
  EXPECT_EQ(tokenizer_of(file)->decode({space_a, end, space_a}), "a</s>a");
  EXPECT_EQ(tokenizer_of(file)->text_of({space_a}, false), " a") << "a text goes on";
  file["model"]["byte_fallback"] = false;
  EXPECT_THAT(tokenizer_of(file)->encode("éüa"), ElementsAre(space, 0, a)) << "unknown ones are fused";
  file["model"]["fuse_unk"] = false;
  EXPECT_THAT(tokenizer_of(file)->encode("éü"), ElementsAre(space, 0, 0));
  file["model"]["unk_token"] = nullptr;
  EXPECT_THAT(tokenizer_of(file)->encode("éa"), ElementsAre(space_a)) << "unknown ones are left out";
}

TEST(TokenizerJson, TakesTheEndsFromTheConfigBesideIt) {
  const stretto::TemporaryDirectory directory;
  const std::string path = directory.write("tokenizer.json", "");
  directory.write("tokenizer_config.json",
                  R"({"eos_token": {"content": "<unk>"}, "bos_token": "</s>", "add_bos_token": true})");
  const TokenizerParts parts = read_tokenizer_json(path, llama2().dump());
  EXPECT_EQ(parts.end, 0);
  EXPECT_EQ(parts.beginning, end);
}

TEST(TokenizerJson, RefusesByNameWhatIsNotServed) {
  const auto sentence = [](const char* pointer, const json& value) {
    json file = byte_level();
    file[json::json_pointer(pointer)] = value;
    const std::string text = sentence_of([&] { tokenizer_of(file); });
    EXPECT_TRUE(text.starts_with("/nowhere/tokenizer.json") || text.starts_with("merge")) << text;
    return text;
  };
  EXPECT_THAT(sentence("/normalizer", {{"type", "Lowercase"}}), HasSubstr("'Lowercase'"));
  EXPECT_THAT(sentence("/normalizer", json::array()), HasSubstr("'type'"));
  EXPECT_THAT(sentence("/pre_tokenizer", {{"type", "BertPreTokenizer"}}), HasSubstr("'BertPreTokenizer'"));
  EXPECT_THAT(sentence("/pre_tokenizer/pretokenizers/0", {{"type", "ByteLevel"}}), HasSubstr("behind 'ByteLevel'"));
  EXPECT_THAT(sentence("/pre_tokenizer/pretokenizers/0",
                       {{"type", "Split"}, {"pattern", {{"Regex", "("}}}, {"behavior", "Isolated"}}),
              HasSubstr("'('"));
  EXPECT_THAT(sentence("/post_processor", {{"type", "BertProcessing"}}), HasSubstr("'BertProcessing'"));
  EXPECT_THAT(sentence("/post_processor/single/0/SpecialToken/id", "<none>"), HasSubstr("'<none>'"));
  EXPECT_THAT(sentence("/decoder", {{"type", "WordPiece"}}), HasSubstr("'WordPiece'"));
  EXPECT_THAT(sentence("/decoder", {{"type", "Fuse"}}), HasSubstr("ByteLevel"));
  EXPECT_THAT(sentence("/decoder", nullptr), HasSubstr("no decoder"));
  EXPECT_THAT(sentence("/model/type", "WordPiece"), HasSubstr("'WordPiece'"));
  EXPECT_THAT(sentence("/model/dropout", 0.1), HasSubstr("'dropout'"));
  EXPECT_THAT(sentence("/model/end_of_word_suffix", "</w>"), HasSubstr("'end_of_word_suffix'"));
  EXPECT_THAT(sentence("/model/vocab", json::array()), HasSubstr("'vocab'"));
  EXPECT_THAT(sentence("/model/vocab/ab", 7), HasSubstr("number 7"));
  EXPECT_THAT(sentence("/model/vocab/ab", -1), HasSubstr("-1"));
  EXPECT_THAT(sentence("/model/merges/0", "a q"), HasSubstr("'aq'"));
  EXPECT_THAT(sentence("/model/merges/0", 5), HasSubstr("merge 0"));
  EXPECT_THAT(sentence("/added_tokens/0/id", -3), HasSubstr("-3"));
  EXPECT_THAT(sentence("/added_tokens/0/content", 1), HasSubstr("'content'"));
  EXPECT_THAT(sentence("/model", nullptr), HasSubstr("no 'model'"));
  json deep = {{"type", "Sequence"}, {"normalizers", json::array()}};
  for (int i = 0; i < 20; ++i) deep = {{"type", "Sequence"}, {"normalizers", json::array({deep})}};
  EXPECT_THAT(sentence("/normalizer", deep), HasSubstr("16 sequences"));
}

}  // namespace
}  // namespace apps::tokenizer_json_tests
#endif
