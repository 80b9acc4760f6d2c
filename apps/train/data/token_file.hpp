#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "apps/train/data/data_file.hpp"

namespace apps {

// The files that hold tokens: any file, each of whose bytes is a token; llm.c's .bin with its header; nanoGPT's .bin, 16-bit
// tokens and nothing else; Megatron-LM's .bin with an .idx beside it; NumPy's .npy of one array. `recognised` says which of
// them a file is by its beginning, its name and what lies beside it, and refuses formats that are known to be others;
// nothing shows that a file is nanoGPT's, so that it must be said. Lines of JSON are examples instead (ExampleData).
enum class DataFormat { recognised, bytes, llmc, nanogpt, megatron, npy, jsonl };
DataFormat data_format_from_name(const std::string& name);
const char* name(DataFormat format);

// The names by which a program's user gives them, for errors.
struct TokenFlags {
  const char* format = "--data-format";
  const char* vocabulary = "--vocab-size";
};

enum class TokenType { u8, i8, u16, i16, u32, i32, i64 };
std::int64_t bytes_of(TokenType type);

// The tokens of one file, one after the other.
class TokenFile {
 public:
  // A path, or Megatron-LM's prefix without .bin. Throws Error(io), in one sentence that names the path, for a file that is
  // missing, cut off or of another format.
  static TokenFile open(const std::string& path, DataFormat format = DataFormat::recognised, const TokenFlags& flags = {});

  // Writes count tokens from token number `first` on. Throws Error(io) naming the file, the position and the token if one is
  // not in [0, vocabulary), or naming the file if it has been cut off.
  void read(std::int64_t first, std::int64_t count, std::int64_t vocabulary, std::int32_t* out) const;
  std::int64_t size() const { return size_; }
  DataFormat format() const { return format_; }
  bool is_bytes() const { return format_ == DataFormat::bytes; }
  const std::string& path() const { return path_; }
  // "tiny.bin: llm.c, 305260 tokens of 16 bits"
  std::string description() const;
  // "305260 tokens of 16 bits with the digest 0123456789abcdef": the same for the same tokens, wherever the file lies.
  std::string content() const;
  // Both as DataFile's.
  std::uint64_t digest(std::size_t files) const { return file_->digest(files); }
  void close() { file_->close(); }

 private:
  TokenFile(const std::string& path, DataFormat format);
  // One for each format, in a file of its own.
  static TokenFile open_bytes(const std::string& path);
  static TokenFile open_llmc(const std::string& path);
  static TokenFile open_nanogpt(const std::string& path, const TokenFlags& flags);
  static TokenFile open_megatron(const std::string& prefix);
  static TokenFile open_npy(const std::string& path);
  static TokenFile open_recognised(const std::string& path, const TokenFlags& flags);
  template <class T>
  void read_as(std::int64_t first, std::int64_t count, std::int64_t vocabulary, std::int32_t* out) const;

  std::string path_;
  TokenFlags flags_;
  DataFormat format_;
  std::shared_ptr<DataFile> file_;
  std::int64_t begin_ = 0;  // of the tokens in the file, in bytes
  TokenType type_ = TokenType::u8;
  std::int64_t size_ = 0;
};

bool has_llmc_magic(const DataFile& file);
bool has_npy_magic(const DataFile& file);
// Whether the file exists and begins as Megatron-LM's indices do.
bool is_megatron_index(const std::string& path);

}  // namespace apps
