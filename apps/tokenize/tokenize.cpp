// stretto-tokenize: writes a text's tokens in llm.c's, nanoGPT's or Megatron-LM's format, and turns them back into text.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>

#include "apps/common/exit_status.hpp"
#include "apps/common/fail.hpp"
#include "apps/common/parse_flags.hpp"
#include "apps/tokenizers/read_tokenizer.hpp"
#include "apps/train/data/known_format.hpp"
#include "apps/train/data/mapped_file.hpp"
#include "apps/train/data/token_writer.hpp"
#include "apps/train/options/number_flags.hpp"
#include "stretto/output_file.hpp"

namespace apps {

namespace fs = std::filesystem;

namespace {

struct TokenizeOptions {
  std::string tokenizer, vocabulary, merges, output, validation_output, documents = "files", format;
  TokenizerOptions reading;
  std::vector<std::string> inputs;
  std::int64_t validation_tokens = 0;
  bool decode = false, leaves_separators_out = false, takes_any_input = false;
};

std::optional<TokenizeOptions> parse(int argc, char** argv) {
  TokenizeOptions options;
  CLI::App app("Writes the tokens of texts, or the text of tokens.", "stretto-tokenize");
  app.set_help_flag("-h,--help", "Print this help");
  app.add_option("INPUT", options.inputs, "Texts; with --decode one file of tokens")->required();
  app.add_option("--tokenizer", options.tokenizer,
                 "tokenizer.json, a sentencepiece model or a file of tiktoken's ranks, or their directory");
  app.add_option("--tokenizer-pattern,--pattern", options.reading.pattern,
                 "How tiktoken's ranks are used: gpt2, cl100k, o200k, llama3, qwen or qwen3.5");
  app.add_option("--vocab", options.vocabulary, "In place of --tokenizer: GPT-2's encoder.json, or vocab.json");
  app.add_option("--merges", options.merges, "vocab.bpe, or merges.txt, that belongs to --vocab");
  app.add_flag("--special-tokens", options.reading.finds_special,
               "Special tokens that a text writes, such as <|im_start|>, are these tokens; else they are text");
  app.add_option("--out", options.output,
                 "The file to write; with --format megatron PREFIX.bin, beside which PREFIX.idx lies")
      ->required();
  app.add_option(
         "--format", options.format,
         "Of the tokens: llm.c, nanogpt or megatron; with --decode also auto, which recognises the first and the last")
      ->default_str("llm.c; auto with --decode");
  app.add_option(
         "--documents", options.documents,
         "Where a document begins, before which <|endoftext|>, or the tokenizer's own token, is written: at each file "
         "(files), there and behind each empty line as in llm.c's tiny-shakespeare (sections), or nowhere (none)")
      ->check(CLI::IsMember({"files", "sections", "none"}))
      ->capture_default_str();
  app.add_option("--val-tokens", options.validation_tokens, "So many of the first tokens go to --val-out");
  app.add_option("--val-out", options.validation_output, "The file of the first tokens, to validate on");
  app.add_flag("--any-input", options.takes_any_input,
               "Take each INPUT for a text, also one that is known to be packed, a table or JSON lines");
  app.add_flag("--decode", options.decode, "Write the text of tokens");
  app.add_flag("--no-separators", options.leaves_separators_out,
               "With --decode, leave out what is written before documents");
  check_numbers(app);
  if (!parse_flags(app, argc, argv)) return std::nullopt;
  if (options.format.empty()) options.format = options.decode ? "auto" : "llm.c";
  require(!options.decode || options.inputs.size() == 1, "--decode takes one file of tokens, not {}.",
          options.inputs.size());
  require(options.tokenizer.empty() != options.vocabulary.empty(),
          "--tokenizer '{}' and --vocab '{}' are two ways to name a tokenizer; give one.", options.tokenizer,
          options.vocabulary);
  require(options.vocabulary.empty() == options.merges.empty(), "--vocab '{}' and --merges '{}' belong together; give both.",
          options.vocabulary, options.merges);
  require(options.reading.pattern.empty() || !options.tokenizer.empty(),
          "--tokenizer-pattern {} is for the ranks of --tokenizer; give both.", options.reading.pattern);
  require(options.decode || !options.leaves_separators_out, "--no-separators has no effect without --decode; leave it out.");
  for (const char* flag : {"--documents", "--val-tokens", "--val-out", "--any-input", "--special-tokens"}) {
    require(!options.decode || app.count(flag) == 0, "{} has no effect with --decode; leave it out.", flag);
  }
  require((options.validation_tokens > 0) == !options.validation_output.empty() && options.validation_tokens >= 0,
          "--val-tokens {} and --val-out '{}' go together: a number above 0 and a file.", options.validation_tokens,
          options.validation_output);
  return options;
}

bool is_same_file(const std::string& one, const std::string& other) {
  std::error_code ignored;  // neither may exist yet
  return fs::equivalent(one, other, ignored) || fs::weakly_canonical(one, ignored) == fs::weakly_canonical(other, ignored);
}

// Megatron-LM's data are two files.
std::vector<std::string> files_of(const std::string& path, bool may_be_megatron) {
  if (!may_be_megatron) return {path};
  const std::string prefix = path.ends_with(".bin") ? path.substr(0, path.size() - 4) : path;
  return {path, prefix + ".bin", prefix + ".idx"};
}

// An output that is also read would destroy it.
void check_outputs(const TokenizeOptions& options) {
  const bool writes_two = options.format == "megatron" && !options.decode;
  std::vector<std::string> taken = {options.vocabulary, options.merges};
  if (!options.tokenizer.empty()) taken = files_of_tokenizer(options.tokenizer);
  for (const std::string& input : options.inputs) {
    for (std::string& file : files_of(input, options.decode)) taken.push_back(std::move(file));
  }
  for (const auto& [flag, output] :
       {std::pair("--out", options.output), std::pair("--val-out", options.validation_output)}) {
    if (output.empty()) continue;
    const std::vector<std::string> written = files_of(output, writes_two);
    for (const std::string& file : written) {
      for (const std::string& other : taken) {
        require(!is_same_file(file, other), "{} {} would overwrite {}; give another file.", flag, output, other);
      }
    }
    taken.insert(taken.end(), written.begin(), written.end());
  }
}

constexpr std::int64_t at_once = 1 << 16;  // tokens

// The first tokens go to one file, the others to another.
class TrainingAndValidation {
 public:
  TrainingAndValidation(const TokenizeOptions& options, std::int64_t vocabulary)
      : train_(options.output, data_format_from_name(options.format), vocabulary), left_(options.validation_tokens) {
    if (left_ == 0) return;
    validation_ =
        std::make_unique<TokenWriter>(options.validation_output, data_format_from_name(options.format), vocabulary);
  }

  // Words have few tokens, and a file takes many at once faster.
  void write(std::span<const std::int32_t> tokens) {
    gathered_.insert(gathered_.end(), tokens.begin(), tokens.end());
    if (std::ssize(gathered_) >= at_once) write_gathered();
  }

  void end_document() {
    write_gathered();
    if (validation_) validation_->end_document();
    train_.end_document();
  }

  void finish() {
    require(left_ == 0, "The texts have {} tokens, fewer than --val-tokens asks for.",
            validation_ ? validation_->tokens() : 0);
    if (validation_) finish(*validation_);
    finish(train_);
  }

 private:
  void write_gathered() {
    const std::span<const std::int32_t> tokens = gathered_;
    const std::size_t first = std::min(tokens.size(), static_cast<std::size_t>(left_));
    if (first > 0) validation_->write(tokens.first(first));
    left_ -= static_cast<std::int64_t>(first);
    if (first < tokens.size()) train_.write(tokens.subspan(first));
    gathered_.clear();
  }

  static void finish(TokenWriter& writer) {
    require(writer.tokens() > 0, "There are no tokens for {}.", writer.path());
    writer.finish();
    fmt::print("{} tokens in {}\n", writer.tokens(), writer.path());
  }

  std::unique_ptr<TokenWriter> validation_;
  TokenWriter train_;
  std::int64_t left_;
  std::vector<std::int32_t> gathered_;
};

// Documents end behind each empty line. What follows the last one is a document even if it is empty.
std::vector<std::string_view> sections_of(std::string_view text) {
  std::vector<std::string_view> sections;
  for (std::size_t end = text.find("\n\n"); end != std::string_view::npos; end = text.find("\n\n")) {
    sections.push_back(text.substr(0, end + 2));
    text.remove_prefix(end + 2);
  }
  sections.push_back(text);
  return sections;
}

const std::string& name_of(const TokenizeOptions& options) {
  return options.tokenizer.empty() ? options.vocabulary : options.tokenizer;
}

void encode(const TokenizeOptions& options, Tokenizer& tokenizer) {
  const std::optional<std::int32_t> separator = tokenizer.separator();
  require(options.documents == "none" || separator,
          "{} has no <|endoftext|>, or the like, to begin documents with; give --documents none.", name_of(options));
  for (const std::string& input : options.inputs) {
    if (!options.takes_any_input) refuse_known_format(DataFile(input), "--any-input");
  }
  TrainingAndValidation output(options, tokenizer.size());
  const auto begin = std::chrono::steady_clock::now();
  std::int64_t bytes = 0;
  for (const std::string& input : options.inputs) {
    const MappedFile file(input);
    bytes += static_cast<std::int64_t>(file.text().size());
    const auto documents = options.documents == "sections" ? sections_of(file.text()) : std::vector{file.text()};
    for (const std::string_view document : documents) {
      if (options.documents != "none") output.write(std::span(&*separator, 1));
      tokenizer.encode_pieces(document, [&](std::span<const std::int32_t> tokens) { output.write(tokens); });
      output.end_document();
    }
  }
  output.finish();
  if (tokenizer.left_out() > 0) {
    fmt::print("{} bytes have no token in {}, and were left out\n", tokenizer.left_out(), name_of(options));
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  fmt::print("{} bytes in {:.2f} s, {:.1f} MiB/s\n", bytes, seconds, static_cast<double>(bytes) / seconds / (1 << 20));
}

// The tokens behind a separator begin a text, and are decoded by themselves.
void write_text(const TokenFile& file, const TokenizeOptions& options, const Tokenizer& tokenizer) {
  stretto::OutputFile output(options.output);
  const std::int32_t separator = tokenizer.separator().value_or(-1);
  std::vector<std::int32_t> tokens, document;
  bool begins = true;
  const auto write = [&] {
    if (document.empty()) return;
    output.write(tokenizer.text_of(document, begins));
    document.clear();
    begins = false;
  };
  for (std::int64_t at = 0; at < file.size(); at += at_once) {
    const std::int64_t count = std::min(at_once, file.size() - at);
    tokens.resize(static_cast<std::size_t>(count));
    file.read(at, count, tokenizer.size(), tokens.data());
    for (const std::int32_t token : tokens) {
      if (token != separator) {
        document.push_back(token);
        continue;
      }
      write();
      if (!options.leaves_separators_out) output.write(tokenizer.decode({token}));
      begins = true;
    }
    write();
    output.check();
  }
  output.finish();
}

void decode(const TokenizeOptions& options, const Tokenizer& tokenizer) {
  const TokenFile file =
      TokenFile::open(options.inputs.front(), data_format_from_name(options.format),
                      {.format = "--format", .vocabulary = options.tokenizer.empty() ? "--vocab" : "--tokenizer"});
  require(!file.is_bytes(), "{} is no file of tokens; --decode takes llm.c's, nanoGPT's or Megatron-LM's.", file.path());
  write_text(file, options, tokenizer);
  fmt::print("{}\n", file.description());
}

int run(const TokenizeOptions& options) {
  check_outputs(options);
  const std::unique_ptr<Tokenizer> tokenizer = options.tokenizer.empty()
                                                   ? read_gpt2_tokenizer(options.vocabulary, options.merges, options.reading)
                                                   : read_tokenizer(options.tokenizer, options.reading);
  fmt::print("{}: {}\n", name_of(options), tokenizer->description());
  if (options.decode) {
    decode(options, *tokenizer);
  } else {
    encode(options, *tokenizer);
  }
  return 0;
}

}  // namespace
}  // namespace apps

int main(int argc, char** argv) {
  return apps::exit_status([&] {
    const auto options = apps::parse(argc, argv);
    return options ? apps::run(*options) : 0;
  });
}
