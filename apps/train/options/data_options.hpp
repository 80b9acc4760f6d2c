#pragma once
#include <CLI/App.hpp>
#include <memory>

#include "apps/tokenizers/tokenizer.hpp"
#include "apps/train/data/token_data.hpp"
#include "apps/train/examples/example_data.hpp"

namespace apps {

// Adds the flags that say what is trained on. The options must outlive the app's parsing.
void add_data_options(CLI::App& app, DataOptions& options);
// Call it after the parsing. Throws Error(invalid_argument) for flags that do not go together. Unless `vocabulary` was
// given, it becomes the size of the vocabulary, if there is one.
void check_data_options(const DataOptions& options, bool is_given, std::int64_t& vocabulary);

// The data that the options name, which need no tokenizer unless they are examples.
std::shared_ptr<const TrainingData> make_training_data(const DataOptions& options, std::int64_t vocabulary,
                                                       std::int64_t sequence, std::uint64_t seed);

// Returns the tokenizer of samples and prompts: bytes, the vocabulary's tokens, or their numbers. Throws if a vocabulary was
// given for bytes.
std::unique_ptr<Tokenizer> make_tokenizer(const DataOptions& options, bool is_bytes, std::int64_t vocabulary);

}  // namespace apps
