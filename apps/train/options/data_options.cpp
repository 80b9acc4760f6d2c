#include "apps/train/options/data_options.hpp"

#include <CLI/CLI.hpp>

#include "apps/common/fail.hpp"
#ifdef STRETTO_HAVE_PCRE2
#include "apps/tokenizers/read_tokenizer.hpp"
#endif

namespace apps {

namespace {

bool has_tokenizer(const DataOptions& options) { return !options.tokenizer.empty() || !options.vocabulary_file.empty(); }

// As the user named it, for errors.
std::string tokenizer_name(const DataOptions& options) {
  return options.tokenizer.empty() ? "--vocab-file " + options.vocabulary_file : "--tokenizer " + options.tokenizer;
}

std::unique_ptr<Tokenizer> tokenizer_of(const DataOptions& options) {
#ifdef STRETTO_HAVE_PCRE2
  if (options.tokenizer.empty()) return read_gpt2_tokenizer(options.vocabulary_file, options.merges_file);
  return read_tokenizer(options.tokenizer, {.pattern = options.tokenizer_pattern});
#else
  fail(stretto::ErrorCode::invalid_argument,
       "{} needs PCRE2, and this build is without it; install libpcre2-dev and build again, or leave it out.",
       tokenizer_name(options));
#endif
}

}  // namespace

void add_data_options(CLI::App& app, DataOptions& options) {
  app.add_option("--train-data", options.train,
                 "What to train on: files, folders and patterns such as 'shard_*.bin', of texts or of tokens in llm.c's, "
                 "nanoGPT's, Megatron-LM's or NumPy's format; or a mixture such as 0.3 A 0.7 B; or examples in FILE.jsonl")
      ->trigger_on_parse();  // the last --train-data overrides the others
  app.add_option("--val-data", options.validation,
                 "What to validate on, likewise; the last tenth of --train-data when left out")
      ->trigger_on_parse();
  app.add_option_function<std::string>(
         "--data-format", [&](const std::string& name) { options.format = data_format_from_name(name); },
         "bytes, llm.c, nanogpt, megatron, npy, jsonl; auto: by the header, Megatron-LM by the .idx beside the .bin, else "
         "bytes, "
         "but "
         "not of a file that is known to be of another format")
      ->default_str("auto");
  app.add_option("--vocab-file", options.vocabulary_file,
                 "encoder.json (vocab.json) of the tokens, for samples and the prompt");
  app.add_option("--merges-file,--merge-file", options.merges_file, "vocab.bpe (merges.txt) that belongs to --vocab-file");
  app.add_option("--tokenizer", options.tokenizer,
                 "The tokens' tokenizer.json, sentencepiece model or file of tiktoken's ranks, or their directory, for "
                 "samples and the prompt");
  app.add_option("--chat-template", options.chat_template,
                 "How conversations in JSON lines are written: chatml, llama2 or llama3; the tokenizer's own when left out");
  app.add_option("--tokenizer-pattern", options.tokenizer_pattern,
                 "How tiktoken's ranks are used: gpt2, cl100k, o200k, llama3, qwen or qwen3.5");
}

void check_data_options(const DataOptions& options, bool is_given, std::int64_t& vocabulary) {
  require(options.vocabulary_file.empty() == options.merges_file.empty(),
          "--vocab-file '{}' and --merges-file '{}' belong together; give both.", options.vocabulary_file,
          options.merges_file);
  require(options.tokenizer.empty() || options.vocabulary_file.empty(),
          "--tokenizer {} and --vocab-file {} are two tokenizers; leave one out.", options.tokenizer,
          options.vocabulary_file);
  require(options.tokenizer_pattern.empty() || !options.tokenizer.empty(),
          "--tokenizer-pattern {} is for the ranks of --tokenizer; give both.", options.tokenizer_pattern);
  if (!options.chat_template.empty()) chat_template_named(options.chat_template);
  require(options.chat_template.empty() || has_examples(options),
          "--chat-template {} is for conversations in JSON lines, and --train-data {} has none; leave it out.",
          options.chat_template, fmt::join(options.train, " "));
  if (!has_tokenizer(options)) return;
  const std::int64_t tokens = tokenizer_of(options)->size();
  if (!is_given) vocabulary = tokens;
  require(vocabulary >= tokens, "--vocab-size {} is below the {} tokens of {}.", vocabulary, tokens,
          tokenizer_name(options));
}

std::shared_ptr<const TrainingData> make_training_data(const DataOptions& options, std::int64_t vocabulary,
                                                       std::int64_t sequence, std::uint64_t seed) {
  if (!has_examples(options)) return std::make_shared<TokenData>(options, vocabulary, sequence, seed);
  require(
      has_tokenizer(options),
      "{} has examples in JSON lines, whose texts need a tokenizer; give --tokenizer, or --vocab-file and --merges-file.",
      fmt::join(options.train, " "));
  return std::make_shared<ExampleData>(options, *tokenizer_of(options), vocabulary, sequence, seed);
}

std::unique_ptr<Tokenizer> make_tokenizer(const DataOptions& options, bool is_bytes, std::int64_t vocabulary) {
  require(!is_bytes || !has_tokenizer(options),
          "{} is for tokens, but {} was taken for bytes; stretto-tokenize makes tokens of it.", tokenizer_name(options),
          fmt::join(options.train, " "));
  if (is_bytes) return std::make_unique<ByteTokenizer>();
  if (has_tokenizer(options)) return tokenizer_of(options);
  return std::make_unique<NumberTokenizer>(vocabulary);
}

}  // namespace apps
