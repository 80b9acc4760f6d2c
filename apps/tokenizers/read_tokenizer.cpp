#include "apps/tokenizers/read_tokenizer.hpp"

#include <filesystem>

#include "apps/common/fail.hpp"
#include "apps/tokenizers/files/gguf_vocabulary.hpp"
#include "apps/tokenizers/files/gpt2_files.hpp"
#include "apps/tokenizers/files/rank_file.hpp"
#include "apps/tokenizers/json/chat_template_file.hpp"
#include "apps/tokenizers/json/tokenizer_json.hpp"
#include "apps/tokenizers/sentencepiece/sentencepiece_file.hpp"
#include "apps/train/data/data_file.hpp"

namespace apps {

namespace fs = std::filesystem;
using stretto::ErrorCode;

namespace {

bool is_json(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '{';
}

bool is_gguf(const std::string& path) {
  const DataFile file(path);
  std::string first(4, ' ');
  if (file.size() < 4) return false;
  file.read(0, 4, first.data());
  return first == "GGUF";
}

TokenizerParts read_file(const std::string& path, const TokenizerOptions& options) {
  const bool gguf = is_gguf(path);
  const std::string text = gguf ? "" : DataFile(path).text();
  if (!gguf && looks_like_ranks(text)) return read_ranks(path, text, options.pattern);
  require(options.pattern.empty(), "--tokenizer-pattern {} is for files of tiktoken's ranks, and {} is none; leave it out.",
          options.pattern, path);
  if (gguf) return parts_of(read_gguf_vocabulary(path), path);
  if (looks_like_sentencepiece(text)) return parts_of(read_sentencepiece(path, text), path);
  if (is_json(text)) return read_tokenizer_json(path, text);
  fail(ErrorCode::io,
       "{} is no tokenizer: neither a JSON object (tokenizer.json), nor lines of base64 and a rank (tiktoken), nor a "
       "sentencepiece model, nor a GGUF file.",
       path);
}

std::unique_ptr<Tokenizer> tokenizer_of(TokenizerParts parts, const std::string& path, const TokenizerOptions& options) {
  if (parts.chat_template.empty()) parts.chat_template = chat_template_beside(path);
  return std::make_unique<TextTokenizer>(std::move(parts), options.finds_special);
}

}  // namespace

std::vector<std::string> files_of_tokenizer(const std::string& path) {
  if (!fs::is_directory(path)) return {path};
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    if (fs::exists(fs::path(path) / name)) return {fs::path(path) / name};
  }
  const fs::path vocabulary = fs::path(path) / "vocab.json", merges = fs::path(path) / "merges.txt";
  if (fs::exists(vocabulary) && fs::exists(merges)) return {vocabulary, merges};
  fail(ErrorCode::io, "The directory {} has neither tokenizer.json nor tokenizer.model, nor vocab.json and merges.txt.",
       path);
}

std::unique_ptr<Tokenizer> read_tokenizer(const std::string& path, const TokenizerOptions& options) {
  const std::vector<std::string> files = files_of_tokenizer(path);
  if (files.size() == 1) return tokenizer_of(read_file(files.front(), options), files.front(), options);
  require(options.pattern.empty(), "--tokenizer-pattern {} is for files of tiktoken's ranks; leave it out with {}.",
          options.pattern, path);
  return read_gpt2_tokenizer(files[0], files[1], options);
}

std::unique_ptr<Tokenizer> read_gpt2_tokenizer(const std::string& vocabulary_path, const std::string& merges_path,
                                               const TokenizerOptions& options) {
  return tokenizer_of(read_gpt2_files(vocabulary_path, merges_path), vocabulary_path, options);
}

}  // namespace apps
