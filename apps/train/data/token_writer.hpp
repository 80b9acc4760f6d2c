#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/train/data/token_file.hpp"
#include "stretto/output_file.hpp"

namespace apps {

// Writes a file that TokenFile reads: llm.c's, nanoGPT's, or Megatron-LM's PREFIX.bin and PREFIX.idx. Each is an
// OutputFile.
class TokenWriter {
 public:
  // A path, or Megatron-LM's prefix without .bin. Throws Error(invalid_argument) if the format cannot hold so large a
  // vocabulary, and Error(io) if the file cannot be written.
  TokenWriter(const std::string& path, DataFormat format, std::int64_t vocabulary);

  void write(std::span<const std::int32_t> tokens);
  // Megatron-LM's index tells documents apart; the other formats do not.
  void end_document();
  // Throws Error(io) if not everything could be written.
  void finish();

  std::int64_t tokens() const { return tokens_; }
  const std::string& path() const { return path_; }

 private:
  void write_index();

  DataFormat format_;
  bool is_wide_;  // tokens of 32 bits
  std::string path_;
  std::optional<stretto::OutputFile> file_, index_;
  std::int64_t tokens_ = 0;
  std::vector<std::int32_t> document_lengths_;  // for the index
  std::int64_t document_begin_ = 0;
};

}  // namespace apps
