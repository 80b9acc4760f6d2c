// Examples in JSON lines: what a line may be, how conversations are written, which tokens count, and how examples share
// sequences.
#include "apps/train/examples/example_data.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "support/error.hpp"
#include "support/temporary_directory.hpp"

namespace apps::examples_tests {
namespace {

using nlohmann::json;
using stretto::sentence_of;
using stretto::TemporaryDirectory;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const LineOfFile here{"chat.jsonl", 3};

// Bytes, two line feeds as one token, and special tokens from 300 on.
class SmallTokenizer : public ByteTokenizer {
 public:
  explicit SmallTokenizer(std::string its_template = "") : template_(std::move(its_template)) {}
  static constexpr std::int32_t two_lines = 256, first_special = 300;
  void encode_pieces(std::string_view text, const TakeTokens& take) override {
    for (std::size_t i = 0; i < text.size(); ++i) {
      const bool two = text.substr(i, 2) == "\n\n";
      const std::int32_t token = two ? two_lines : static_cast<unsigned char>(text[i]);
      take(std::span(&token, 1));
      if (two) ++i;
    }
  }
  std::optional<std::int32_t> beginning_of_text() const override { return begins_ ? special_token("<s>") : std::nullopt; }
  std::optional<std::int32_t> end_of_text() const override { return ends_ ? special_token("</s>") : std::nullopt; }
  std::optional<std::int32_t> special_token(std::string_view name) const override {
    const auto found = std::ranges::find(names(), name);
    if (found == names().end()) return std::nullopt;
    return first_special + static_cast<std::int32_t>(found - names().begin());
  }
  std::string chat_template() const override { return template_; }
  std::int64_t size() const override { return 320; }
  static const std::vector<std::string>& names() {
    static const std::vector<std::string> all = {
        "<s>",       "</s>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
        "<|eot_id|>"};
    return all;
  }
  bool begins_ = true, ends_ = true;

 private:
  std::string template_;
};

// The tokens as text, or those that count, with - for the others.
std::string text_of(const CountedTokens& of, bool counted) {
  std::string text;
  for (std::size_t i = 0; i < of.tokens.size(); ++i) {
    const std::int32_t token = of.tokens[i];
    if (counted && !of.counts[i]) {
      text += '-';
    } else if (token >= SmallTokenizer::first_special) {
      text += SmallTokenizer::names()[static_cast<std::size_t>(token - SmallTokenizer::first_special)];
    } else {
      text += token == SmallTokenizer::two_lines ? "\n\n" : std::string(1, static_cast<char>(token));
    }
  }
  return text;
}

CountedTokens encoded(const std::string& line, Tokenizer& tokenizer, const std::string& form = "chatml") {
  return ExampleEncoder(tokenizer, form).encode(example_of(line, here), here);
}

std::string error_of(const std::string& line) {
  return sentence_of([&] { example_of(line, here); });
}

TEST(Examples, AreNamedByFileAndLineWhereTheyWillNotDo) {
  const std::map<std::string, std::string> wrong = {
      {"{\"text\": \"a", "is no JSON."},
      {"{\"text\": \"\xff\"}", "is no JSON."},
      {"[1]", "is no JSON object."},
      {"{}", "has neither 'text', nor 'prompt' and 'completion', nor 'messages'."},
      {"{\"instruction\": \"a\"}", "nor 'messages', but 'instruction'."},
      {"{\"text\": 5}", "has a 'text' that is no string."},
      {"{\"text\": \"\", \"messages\": []}", "has more than one of"},
      {"{\"prompt\": \"a\"}", "has no 'completion'."},
      {"{\"completion\": \"a\"}", "has no 'prompt'."},
      {"{\"prompt\": \"a\", \"completion\": null}", "has a 'completion' that is no string."},
      {"{\"messages\": {}}", "has 'messages' that are no list."},
      {"{\"messages\": []}", "has no message in 'messages'."},
      {"{\"messages\": [5]}", "has a message 1 that is no object"},
      {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"tool\", \"content\": \"\"}]}",
       "has the role 'tool' in message 2; the roles are system, user and assistant."},
      {"{\"messages\": [{\"role\": \"user\", \"content\": [\"a\"]}]}", "has a 'content' in message 1 that is no string."},
      {"{\"messages\": [{\"role\": 1, \"content\": \"a\"}]}", "has a 'role' in message 1 that is no string."},
      {"{\"messages\": [{\"role\": \"user\"}]}", "has no 'content' in message 1."},
      {"{\"messages\": [{\"role\": \"user\", \"content\": \"\", \"tool_calls\": []}]}", "has 'tool_calls' in message 1"},
  };
  for (const auto& [line, what] : wrong) {
    EXPECT_THAT(error_of(line), AllOf(testing::StartsWith("chat.jsonl, line 3 "), HasSubstr(what), testing::EndsWith(".")));
  }
  for (const char* const right : {R"({"text": ""})", R"({"id": 7, "prompt": "", "completion": ""})",
                                  R"({"messages": [{"role": "system", "content": ""}], "source": null})"}) {
    EXPECT_EQ(error_of(right), "") << "the control";
  }
}

json reference() { return json::parse(std::ifstream(CHAT_REFERENCE)); }

Conversation conversation_of(const json& messages) {
  return std::get<Conversation>(example_of(json{{"messages", messages}}.dump(), here));
}

std::string written_text(const ChatTemplate& form, const Conversation& conversation) {
  std::string text;
  for (const ChatPiece& piece : written(form, conversation, here)) text += piece.text;
  return text;
}

// tests/reference/make_chat_reference.py has transformers write them.
TEST(ChatTemplates, WriteWhatTransformersWrites) {
  const json all = reference();
  ASSERT_GE(all["templates"].size(), 5U);
  for (const json& each : all["templates"]) {
    SCOPED_TRACE(each["name"]);
    const ChatTemplate form = recognised_chat_template(each["jinja"]);
    int written_ones = 0;
    for (std::size_t i = 0; i < all["conversations"].size(); ++i) {
      const Conversation conversation = conversation_of(all["conversations"][i]);
      const json& expected = each["written"][i];
      if (expected.is_null()) {
        EXPECT_THAT(sentence_of([&] { written_text(form, conversation); }), HasSubstr("line 3 has message"));
      } else {
        EXPECT_EQ(written_text(form, conversation), expected);
        ++written_ones;
      }
    }
    EXPECT_GT(written_ones, 20);
  }
  const Conversation user = conversation_of(json::array({{{"role", "user"}, {"content", "a"}}}));
  EXPECT_NE(written_text({ChatTemplate::Kind::llama2, ""}, user), written_text({ChatTemplate::Kind::llama3, ""}, user))
      << "the control";
}

TEST(ChatTemplates, AreRefusedByName) {
  const json refused = reference()["refused"];
  for (const auto& [name, jinja] : refused.items()) {
    EXPECT_THAT(sentence_of([&, &its = jinja] { recognised_chat_template(its); }), HasSubstr("--chat-template chatml"))
        << name;
  }
  EXPECT_THAT(sentence_of([&] { recognised_chat_template(refused["thinking"]); }), HasSubstr("<think>"));
  EXPECT_THAT(sentence_of([] { chat_template_named("vicuna"); }),
              AllOf(HasSubstr("'vicuna'"), HasSubstr("chatml, llama2, llama3")));
  SmallTokenizer none, other(refused["mistral"]);
  const std::string line = R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})";
  EXPECT_THAT(sentence_of([&] { encoded(line, none, ""); }), HasSubstr("no chat_template"));
  EXPECT_THAT(sentence_of([&] { encoded(line, other, ""); }), HasSubstr("[INST]"));
  EXPECT_EQ(sentence_of([&] { encoded(line, other, "llama2"); }), "");
  EXPECT_EQ(sentence_of([&] { encoded(R"({"text": "a"})", other, ""); }), "");
  ByteTokenizer bytes;
  EXPECT_THAT(sentence_of([&] { encoded(line, bytes); }), HasSubstr("with <|im_start|>, and the tokenizer has no such"));
}

TEST(CountedTokens, AreThoseOfTheAssistant) {
  SmallTokenizer tokenizer;
  const std::string line = R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "one"}, )"
                           R"({"role": "user", "content": "r"}, {"role": "assistant", "content": " two"}]})";
  const auto counted = [&](const char* form) { return text_of(encoded(line, tokenizer, form), true); };
  EXPECT_EQ(counted("chatml"), std::string(8, '-') + "-" + std::string(11, '-') + "one<|im_end|>-" + std::string(9, '-') +
                                   std::string(11, '-') + " two<|im_end|>-");
  EXPECT_EQ(counted("llama2"), "----------------- one </s>----------------- two </s>");
  EXPECT_EQ(counted("llama3"), std::string(22, '-') + "one<|eot_id|>" + std::string(21, '-') + "two<|eot_id|>");
  const CountedTokens all = encoded(line, tokenizer, "llama3");
  EXPECT_THAT(text_of(all, false),
              AllOf(testing::StartsWith("<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nq<|eot_id|>"),
                    testing::EndsWith("\n\ntwo<|eot_id|>")));
}

TEST(CountedTokens, AreThoseOfACompletionAndOfAText) {
  SmallTokenizer tokenizer;
  const std::string line = R"({"prompt": "1+1=", "completion": "2"})";
  EXPECT_EQ(text_of(encoded(line, tokenizer), false), "<s>1+1=2</s>");
  EXPECT_EQ(text_of(encoded(line, tokenizer), true), "-----2</s>");
  EXPECT_EQ(text_of(encoded(R"({"text": "abc"})", tokenizer), true), "-abc</s>");
  tokenizer.begins_ = false;
  EXPECT_EQ(text_of(encoded(line, tokenizer), true), "----2</s>");
  tokenizer.ends_ = false;
  EXPECT_THAT(sentence_of([&] { encoded(line, tokenizer); }), HasSubstr("no token that ends one"));
  EXPECT_EQ(text_of(encoded(R"({"text": "abc"})", tokenizer), true), "abc");
}

// Line feeds at the beginning of an answer are one token with the one before it, as the tokenizer has them in one text.
TEST(CountedTokens, ReachOverTheBoundary) {
  SmallTokenizer tokenizer;
  const CountedTokens answer = encoded(R"({"messages": [{"role": "assistant", "content": "\nyes"}]})", tokenizer);
  EXPECT_EQ(text_of(answer, false), "<|im_start|>assistant\n\nyes<|im_end|>\n");
  EXPECT_EQ(text_of(answer, true), "----------\n\nyes<|im_end|>-");
  EXPECT_EQ(std::ranges::count(answer.tokens, SmallTokenizer::two_lines), 1);
}

// Nobody's text ends a turn.
TEST(CountedTokens, AreNoSpecialTokensOfATextOfOthers) {
  SmallTokenizer tokenizer;
  const CountedTokens tokens = encoded(R"({"messages": [{"role": "user", "content": "<|im_end|>"}]})", tokenizer);
  EXPECT_EQ(std::ranges::count(tokens.tokens, *tokenizer.special_token("<|im_end|>")), 1);
  EXPECT_EQ(text_of(tokens, false), "<|im_start|>user\n<|im_end|><|im_end|>\n");
}

TEST(Packing, FillsSequencesInTheOrderOfTheFile) {
  EXPECT_THAT(packed({5, 4, 3, 6, 2}, 8), ElementsAre(ElementsAre(0, 2), ElementsAre(1), ElementsAre(3, 4)));
  EXPECT_THAT(packed({8, 8}, 8), ElementsAre(ElementsAre(0), ElementsAre(1)));
  EXPECT_THAT(packed({}, 8), ElementsAre());
  std::vector<std::int64_t> lengths;
  for (int i = 0; i < 1000; ++i) lengths.push_back(1 + i * i % 97);
  std::set<std::int64_t> seen;
  for (const Pack& pack : packed(lengths, 128)) {
    std::int64_t sum = 0;
    for (const std::int64_t document : pack) sum += lengths[static_cast<std::size_t>(document)];
    EXPECT_LE(sum, 128);
    seen.insert(pack.begin(), pack.end());
  }
  EXPECT_EQ(seen.size(), lengths.size());
}

CountedTokens numbers(std::int32_t first, std::int32_t count, std::int32_t counted_from) {
  CountedTokens result;
  for (std::int32_t i = 0; i < count; ++i) result.add(first + i, i >= counted_from);
  return result;
}

struct Sequence {
  std::vector<std::int32_t> tokens = std::vector<std::int32_t>(8), targets = tokens, starts = tokens;
  explicit Sequence(const PackedExamples& examples, std::int64_t number = 0) {
    examples.fill(number, tokens.data(), targets.data(), starts.data());
  }
};

TEST(PackedExamples, AreDocumentsWithPaddingBehindThem) {
  PackedExamples examples(8);
  examples.add(numbers(10, 4, 2), false, here);
  examples.add(numbers(20, 4, 0), true, here);
  examples.add(numbers(30, 3, 3), false, here);  // nothing counts
  examples.pack();
  EXPECT_EQ(examples.sequences(), 1);
  const Sequence all(examples);
  EXPECT_THAT(all.tokens, ElementsAre(10, 11, 12, 20, 21, 22, 0, 0));
  EXPECT_THAT(all.targets, ElementsAre(-1, 12, 13, 21, 22, 23, -1, -1));
  EXPECT_THAT(all.starts, ElementsAre(0, 0, 0, 3, 3, 3, 6, 6));
  EXPECT_EQ(examples.counted(), 5);
  EXPECT_THAT(examples.description(), AllOf(HasSubstr("1 sequences of 8 tokens, 75.0% filled, of which 83.3% count"),
                                            HasSubstr("1 examples without a token that counts are left out")));
}

TEST(PackedExamples, AreCutWhereTheyAreLongerThanASequence) {
  PackedExamples examples(8);
  examples.add(numbers(10, 20, 0), true, here);
  examples.add(numbers(50, 12, 7), false, here);
  examples.pack();
  EXPECT_EQ(examples.sequences(), 4);
  EXPECT_THAT(Sequence(examples, 0).targets, ElementsAre(11, 12, 13, 14, 15, 16, 17, 18));
  EXPECT_THAT(Sequence(examples, 1).tokens, ElementsAre(18, 19, 20, 21, 22, 23, 24, 25));
  EXPECT_THAT(Sequence(examples, 2).targets, ElementsAre(27, 28, 29, -1, -1, -1, -1, -1));
  EXPECT_THAT(Sequence(examples, 3).targets, ElementsAre(-1, -1, -1, -1, -1, -1, 57, 58));
  EXPECT_THAT(examples.description(), HasSubstr("1 examples are cut off"));
  EXPECT_THAT(sentence_of([&] { examples.add(numbers(10, 12, 9), false, here); }),
              AllOf(HasSubstr("chat.jsonl, line 3 has 9 tokens before"), HasSubstr("--seq-length")));
  EXPECT_EQ(sentence_of([&] { examples.add(numbers(10, 12, 8), false, here); }), "");
}

std::string lines(int first, int count) {
  std::string text;
  for (int i = first; i < first + count; ++i)
    text += fmt::format("{{\"prompt\": \"p{}\", \"completion\": \"c{}\"}}\n\n", i, i);
  return text;
}

struct Slots {
  std::vector<std::vector<std::int32_t>> tokens;
  Slots(const stretto::FillSlot& fill, std::int64_t count, std::int64_t sequence) {
    for (std::int64_t slot = 0; slot < count; ++slot) {
      std::vector<std::int32_t> its(static_cast<std::size_t>(sequence)), targets = its, starts = its;
      fill(slot, its.data(), targets.data(), starts.data());
      tokens.push_back(its);
    }
  }
};

TEST(ExampleData, GivesEachSequenceOnceAPass) {
  const TemporaryDirectory directory;
  SmallTokenizer tokenizer;
  DataOptions options;
  options.train = {directory.write("a.jsonl", lines(0, 50)), directory.write("b.jsonl", lines(50, 50))};
  ASSERT_TRUE(has_examples(options));
  const ExampleData data(options, tokenizer, 320, 16, 1), same(options, tokenizer, 320, 16, 1),
      other(options, tokenizer, 320, 16, 2);
  EXPECT_THAT(data.description(),
              AllOf(HasSubstr("90 examples in 44 sequences of 16 tokens"), HasSubstr("its last 10 examples")));
  const Slots first(data.training_slots(0), 44, 16), second(data.training_slots(44), 44, 16);
  const auto sorted = [](Slots slots) {
    std::ranges::sort(slots.tokens);
    return slots.tokens;
  };
  EXPECT_NE(first.tokens, second.tokens);
  EXPECT_EQ(sorted(first), sorted(second));
  EXPECT_EQ(std::set(first.tokens.begin(), first.tokens.end()).size(), 44U);
  EXPECT_EQ(Slots(same.training_slots(44), 44, 16).tokens, second.tokens) << "a run that goes on there";
  EXPECT_EQ(Slots(same.training_slots(39), 5, 16).tokens, (std::vector(first.tokens.end() - 5, first.tokens.end())));
  EXPECT_NE(Slots(other.training_slots(0), 44, 16).tokens, first.tokens) << "the control";
  EXPECT_EQ(data.validation_windows(), 5);
  const Slots validation(data.validation_slots(), 5, 16);
  EXPECT_EQ(std::set(validation.tokens.begin(), validation.tokens.end()).size(), 5U);
  EXPECT_NE(ExampleData(options, tokenizer, 320, 32, 1).contents().front().value, data.contents().front().value);
}

TEST(ExampleData, NamesFilesThatWillNotDo) {
  const TemporaryDirectory directory;
  SmallTokenizer tokenizer;
  const std::string good = directory.write("good.jsonl", lines(0, 5));
  const auto error = [&](const std::vector<std::string>& train, const std::vector<std::string>& validation = {},
                         std::int64_t vocabulary = 320) {
    DataOptions options;
    options.train = train;
    options.validation = validation;
    options.chat_template = "chatml";
    return sentence_of([&] { const ExampleData data(options, tokenizer, vocabulary, 16, 1); });
  };
  EXPECT_EQ(error({good}), "") << "the control";
  const std::string broken = directory.write("broken.jsonl", lines(0, 2) + "{\"text\": 1}\n");
  EXPECT_THAT(error({good, broken}), HasSubstr(broken + ", line 5 has a 'text' that is no string."));
  EXPECT_THAT(error({good}, {broken}), HasSubstr("line 5"));
  const std::string quiet = R"({"messages": [{"role": "user", "content": "a"}]})";
  EXPECT_THAT(error({directory.write("quiet.jsonl", quiet)}, {good}), HasSubstr("quiet.jsonl has no token that counts"));
  EXPECT_THAT(error({directory.write("late.jsonl", lines(0, 2) + quiet)}), HasSubstr("The last 1 examples of"));
  EXPECT_THAT(error({directory.write("blank.jsonl", " \n\n")}), HasSubstr("blank.jsonl has no line with an example"));
  EXPECT_THAT(error({directory.write("single.jsonl", lines(0, 1))}), HasSubstr("--val-data"));
  EXPECT_THAT(error({"0.5", good}), HasSubstr("are not mixed by weights"));
  EXPECT_THAT(error({good}, {}, 300), HasSubstr("--vocab-size"));
  EXPECT_THAT(error({directory / "missing.jsonl"}), HasSubstr("Cannot open"));
}

}  // namespace
}  // namespace apps::examples_tests
