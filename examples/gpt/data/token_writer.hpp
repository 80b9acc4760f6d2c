#pragma once
#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "data/token_file.hpp"

namespace gpt {

// Writes a file that TokenFile reads: llm.c's, nanoGPT's, or Megatron-LM's PREFIX.bin and PREFIX.idx. It appears under its
// name when it is complete.
class TokenWriter {
 public:
  // A path, or Megatron-LM's prefix without .bin. Throws Error(invalid_argument) if the format cannot hold so large a
  // vocabulary, and Error(io) if the file cannot be written.
  TokenWriter(const std::string& path, DataFormat format, std::int64_t vocabulary);
  ~TokenWriter();  // removes what is not finished
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  void write(std::span<const std::int32_t> tokens);
  // Megatron-LM's index tells documents apart; the other formats do not.
  void end_document();
  // Throws Error(io) if not everything could be written.
  void finish();

  std::int64_t tokens() const { return tokens_; }
  const std::string& path() const { return path_; }

 private:
  void write_index() const;
  std::string unfinished(const std::string& path) const { return path + ".unfinished"; }
  void require_good(const std::ofstream& file, const std::string& path) const;

  DataFormat format_;
  bool is_wide_;  // tokens of 32 bits
  std::string path_, index_path_;
  std::ofstream file_;
  std::int64_t tokens_ = 0;
  std::vector<std::int32_t> document_lengths_;  // for the index
  std::int64_t document_begin_ = 0;
  bool finished_ = false;
};

}  // namespace gpt
