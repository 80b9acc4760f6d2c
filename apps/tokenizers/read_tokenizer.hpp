#pragma once
#include <memory>

#include "apps/tokenizers/tokenizer.hpp"

namespace apps {

struct TokenizerOptions {
  std::string pattern{};  // of a file of tiktoken's ranks: gpt2, cl100k, o200k, llama3, qwen or qwen3.5
  // Special tokens that a text writes are these tokens; else they are text, so that no text ends a document.
  bool finds_special = false;
};

// Reads a tokenizer, whose kind its contents tell: the tokenizer.json of Hugging Face's tokenizers, tiktoken's ranks,
// sentencepiece's .model, or a directory with tokenizer.json, tokenizer.model, or vocab.json and merges.txt. description()
// says what it was. Throws Error(io) for a file that is none of these or damaged, in one sentence that names the file, and
// Error(invalid_argument) for options that do not go with it.
std::unique_ptr<Tokenizer> read_tokenizer(const std::string& path, const TokenizerOptions& options = {});

// OpenAI's encoder.json and vocab.bpe, which Hugging Face calls vocab.json and merges.txt.
std::unique_ptr<Tokenizer> read_gpt2_tokenizer(const std::string& vocabulary_path, const std::string& merges_path,
                                               const TokenizerOptions& options = {});

// The files that read_tokenizer(path) reads.
std::vector<std::string> files_of_tokenizer(const std::string& path);

}  // namespace apps
