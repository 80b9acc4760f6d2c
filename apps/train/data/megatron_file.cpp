// Megatron-LM's indexed datasets (megatron/core/datasets/indexed_dataset.py). PREFIX.bin holds the tokens of all sequences,
// one after the other. PREFIX.idx holds, without padding: "MMIDIDX", two zeros, u64 version, u8 type of a token, u64
// sequences, u64 documents + 1, then i32 the length of each sequence, i64 where it begins in bytes, and i64 the first
// sequence of each document and the number of sequences.
#include <array>
#include <filesystem>
#include <fstream>
#include <optional>
#include <vector>

#include "apps/common/fail.hpp"
#include "apps/train/data/megatron_format.hpp"
#include "apps/train/data/token_file.hpp"

namespace apps {

using stretto::ErrorCode;

namespace {

constexpr std::uint64_t index_head_bytes = 9 + 8 + 1 + 8 + 8;
// By code; floating-point types are no tokens.
constexpr std::array<std::optional<TokenType>, 9> index_types = {
    std::nullopt, TokenType::u8, TokenType::i8, TokenType::i16, TokenType::i32, TokenType::i64, {}, {}, TokenType::u16};

class MegatronIndex {
 public:
  explicit MegatronIndex(const std::string& path) : path_(path), file_(path) {
    if (!is_megatron_index(path)) {
      fail(ErrorCode::io, "{} does not begin with MMIDIDX, as Megatron-LM's indices do.", path);
    }
    const auto size = static_cast<std::uint64_t>(file_.size());
    if (size < index_head_bytes) fail(ErrorCode::io, "{} is cut off after {} bytes.", path, size);
    const auto version = at<std::uint64_t>(9);
    if (version != 1) fail(ErrorCode::io, "{} is of version {}; only version 1 is known.", path, version);
    const auto code = at<std::uint8_t>(17);
    if (code >= index_types.size() || !index_types[code]) {
      fail(ErrorCode::io, "{} has tokens of type {}, which is none of Megatron-LM's integers (1 to 5 and 8).", path, code);
    }
    type_ = *index_types[code];
    sequences_ = at<std::uint64_t>(18);
    documents_ = at<std::uint64_t>(26);
    // Counts beyond the file's size are wrong, and must not overflow the sum.
    const std::uint64_t expected =
        sequences_ > size || documents_ > size ? 0 : index_head_bytes + 12 * sequences_ + 8 * documents_;
    if (size != expected) {
      fail(ErrorCode::io,
           "{} has {} bytes, which does not go with {} sequences and {} documents; it is cut off, or of multimodal data.",
           path, size, sequences_, documents_);
    }
  }

  TokenType type() const { return type_; }

  // The number of all tokens.
  std::int64_t tokens() const {
    const auto lengths = all_at<std::int32_t>(index_head_bytes, sequences_);
    const auto begins = all_at<std::int64_t>(index_head_bytes + 4 * sequences_, sequences_);
    std::int64_t tokens = 0;
    for (std::uint64_t i = 0; i < sequences_; ++i) {
      const std::int32_t length = lengths[i];
      const std::int64_t begin = begins[i];
      if (length < 0 || begin != tokens * bytes_of(type_)) {
        fail(ErrorCode::io, "{} lets sequence {} of {} tokens begin at byte {}, but those before it end at byte {}.", path_,
             i, length, begin, tokens * bytes_of(type_));
      }
      tokens += length;
    }
    return tokens;
  }

  void check_documents() const {
    const auto documents = all_at<std::int64_t>(index_head_bytes + 12 * sequences_, documents_);
    std::int64_t before = 0;
    for (std::uint64_t i = 0; i < documents_; ++i) {
      const std::int64_t sequence = documents[i];
      if (sequence < before || (i == 0 && sequence != 0) || sequence > static_cast<std::int64_t>(sequences_)) {
        fail(ErrorCode::io, "{} lets document {} begin at sequence {} of {}, behind one that begins at {}.", path_, i,
             sequence, sequences_, before);
      }
      before = sequence;
    }
  }

 private:
  template <class T>
  T at(std::uint64_t byte) const {
    return all_at<T>(byte, 1).front();
  }

  template <class T>
  std::vector<T> all_at(std::uint64_t byte, std::uint64_t count) const {
    std::vector<T> values(count);
    file_.read(static_cast<std::int64_t>(byte), static_cast<std::int64_t>(count * sizeof(T)), values.data());
    return values;
  }

  std::string path_;
  DataFile file_;
  TokenType type_ = TokenType::u8;
  std::uint64_t sequences_ = 0, documents_ = 0;
};

}  // namespace

bool is_megatron_index(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  std::ifstream file(path, std::ios::binary);
  std::array<char, megatron_magic.size()> beginning{};
  return file.read(beginning.data(), beginning.size()) &&
         std::string_view(beginning.data(), beginning.size()) == megatron_magic;
}

TokenFile TokenFile::open_megatron(const std::string& prefix) {
  const MegatronIndex index(prefix + ".idx");
  TokenFile result(prefix + ".bin", DataFormat::megatron);
  result.type_ = index.type();
  result.size_ = index.tokens();
  index.check_documents();
  const std::int64_t bytes = result.size_ * bytes_of(result.type_);
  if (result.file_->size() != bytes) {
    fail(ErrorCode::io, "{} has {} bytes, but {}.idx beside it tells of {} tokens in {} bytes.", result.path_,
         result.file_->size(), prefix, result.size_, bytes);
  }
  return result;
}

}  // namespace apps
