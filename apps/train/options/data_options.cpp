#include "apps/train/options/data_options.hpp"

#include <CLI/CLI.hpp>

#include "apps/common/fail.hpp"
#ifdef STRETTO_HAVE_PCRE2
#include "apps/tokenize/bpe/bpe_tokenizer.hpp"
#endif

namespace apps {

namespace {

std::unique_ptr<Tokenizer> bpe_tokenizer([[maybe_unused]] const DataOptions& options) {
#ifdef STRETTO_HAVE_PCRE2
  return std::make_unique<BpeTokenizer>(options.vocabulary_file, options.merges_file);
#else
  fail(stretto::ErrorCode::invalid_argument,
       "--vocab-file {} needs PCRE2, and this build is without it; install libpcre2-dev and build again, or leave it out.",
       options.vocabulary_file);
#endif
}

}  // namespace

void add_data_options(CLI::App& app, DataOptions& options) {
  app.add_option("--train-data", options.train,
                 "What to train on: files, folders and patterns such as 'shard_*.bin', of texts or of tokens in llm.c's, "
                 "nanoGPT's, Megatron-LM's or NumPy's format; or a mixture such as 0.3 A 0.7 B")
      ->trigger_on_parse();  // the last --train-data overrides the others
  app.add_option("--val-data", options.validation,
                 "What to validate on, likewise; the last tenth of --train-data when left out")
      ->trigger_on_parse();
  app.add_option_function<std::string>(
         "--data-format", [&](const std::string& name) { options.format = data_format_from_name(name); },
         "bytes, llm.c, nanogpt, megatron, npy; auto: by the header, Megatron-LM by the .idx beside the .bin, else bytes, "
         "but "
         "not of a file that is known to be of another format")
      ->default_str("auto");
  app.add_option("--vocab-file", options.vocabulary_file,
                 "encoder.json (vocab.json) of the tokens, for samples and the prompt");
  app.add_option("--merges-file,--merge-file", options.merges_file, "vocab.bpe (merges.txt) that belongs to --vocab-file");
}

void check_data_options(const DataOptions& options, bool is_given, std::int64_t& vocabulary) {
  require(options.vocabulary_file.empty() == options.merges_file.empty(),
          "--vocab-file '{}' and --merges-file '{}' belong together; give both.", options.vocabulary_file,
          options.merges_file);
  if (options.vocabulary_file.empty()) return;
  const std::int64_t tokens = bpe_tokenizer(options)->size();
  if (!is_given) vocabulary = tokens;
  require(vocabulary >= tokens, "--vocab-size {} is below the {} tokens of {}.", vocabulary, tokens,
          options.vocabulary_file);
}

std::unique_ptr<Tokenizer> make_tokenizer(const DataOptions& options, bool is_bytes, std::int64_t vocabulary) {
  require(!is_bytes || options.vocabulary_file.empty(),
          "--vocab-file {} is for tokens, but {} was taken for bytes; stretto-tokenize makes tokens of it.",
          options.vocabulary_file, fmt::join(options.train, " "));
  if (is_bytes) return std::make_unique<ByteTokenizer>();
  if (!options.vocabulary_file.empty()) return bpe_tokenizer(options);
  return std::make_unique<NumberTokenizer>(vocabulary);
}

}  // namespace apps
