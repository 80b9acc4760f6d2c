#include "apps/train/data/token_file.hpp"

#include <array>
#include <filesystem>
#include <vector>

#include "apps/common/fail.hpp"
#include "apps/train/data/known_format.hpp"

namespace apps {

using stretto::ErrorCode;
namespace fs = std::filesystem;

namespace {

constexpr std::array<const char*, 7> format_names = {"auto", "bytes", "llm.c", "nanogpt", "megatron", "npy", "jsonl"};

// "x" for "x.bin".
std::string without_bin(const std::string& path) { return path.ends_with(".bin") ? path.substr(0, path.size() - 4) : path; }

}  // namespace

const char* name(DataFormat format) { return format_names[static_cast<std::size_t>(format)]; }

DataFormat data_format_from_name(const std::string& name) {
  for (std::size_t i = 0; i < format_names.size(); ++i) {
    if (name == format_names[i]) return static_cast<DataFormat>(i);
  }
  fail(ErrorCode::invalid_argument, "'{}' is no format of data; the formats are {}.", name, fmt::join(format_names, ", "));
}

std::int64_t bytes_of(TokenType type) {
  switch (type) {
    case TokenType::u8:
    case TokenType::i8: return 1;
    case TokenType::u16:
    case TokenType::i16: return 2;
    case TokenType::u32:
    case TokenType::i32: return 4;
    case TokenType::i64: break;
  }
  return 8;
}

TokenFile::TokenFile(const std::string& path, DataFormat format)
    : path_(path), format_(format), file_(std::make_shared<DataFile>(path)) {}

TokenFile TokenFile::open(const std::string& path, DataFormat format, const TokenFlags& flags) {
  TokenFile result = [&] {
    switch (format) {
      case DataFormat::recognised: break;
      case DataFormat::bytes: return open_bytes(path);
      case DataFormat::llmc: return open_llmc(path);
      case DataFormat::nanogpt: return open_nanogpt(path, flags);
      case DataFormat::megatron: return open_megatron(without_bin(path));
      case DataFormat::npy: return open_npy(path);
      case DataFormat::jsonl:
        fail(ErrorCode::invalid_argument,
             "{} has examples in JSON lines, not tokens one after the other; give {} of tokens.", path, flags.format);
    }
    return open_recognised(path, flags);
  }();
  result.flags_ = flags;
  return result;
}

TokenFile TokenFile::open_recognised(const std::string& path, const TokenFlags& flags) {
  const std::string prefix = without_bin(path), index = prefix + ".idx";
  std::error_code ignored;
  const bool has_index = fs::exists(index, ignored);
  const bool is_prefix = !fs::exists(path, ignored) && (has_index || fs::exists(prefix + ".bin", ignored));
  if (is_prefix || (prefix != path && is_megatron_index(index))) return open_megatron(prefix);
  const DataFile file(path);
  if (has_llmc_magic(file)) return open_llmc(path);
  if (has_npy_magic(file)) return open_npy(path);
  refuse_known_format(file, std::string(flags.format) + " bytes");
  if (prefix != path) {
    fail(ErrorCode::io,
         "{} has neither llm.c's header nor Megatron-LM's index beside it{}; say what it is by {} nanogpt or "
         "{} bytes.",
         path, has_index ? fmt::format(", since {} does not begin with MMIDIDX", index) : "", flags.format, flags.format);
  }
  return open_bytes(path);
}

TokenFile TokenFile::open_bytes(const std::string& path) {
  TokenFile result(path, DataFormat::bytes);
  result.size_ = result.file_->size();
  return result;
}

template <class T>
void TokenFile::read_as(std::int64_t first, std::int64_t count, std::int64_t vocabulary, std::int32_t* out) const {
  std::vector<T> from(static_cast<std::size_t>(count));
  file_->read(begin_ + first * bytes_of(type_), count * bytes_of(type_), from.data());
  for (std::int64_t i = 0; i < count; ++i) {
    const auto token =
        static_cast<std::int64_t>(+from[static_cast<std::size_t>(i)]);  // a signed char is a number here, not a character
    if (token < 0 || token >= vocabulary) {
      fail(ErrorCode::io,
           "{} has the token {} at position {}, but a vocabulary of {} ends at {}; give the {} of the tokens, or another "
           "{}.",
           path_, token, first + i, vocabulary, vocabulary - 1, flags_.vocabulary, flags_.format);
    }
    out[i] = static_cast<std::int32_t>(token);
  }
}

void TokenFile::read(std::int64_t first, std::int64_t count, std::int64_t vocabulary, std::int32_t* out) const {
  switch (type_) {
    case TokenType::u8: return read_as<std::uint8_t>(first, count, vocabulary, out);
    case TokenType::i8: return read_as<std::int8_t>(first, count, vocabulary, out);
    case TokenType::u16: return read_as<std::uint16_t>(first, count, vocabulary, out);
    case TokenType::i16: return read_as<std::int16_t>(first, count, vocabulary, out);
    case TokenType::u32: return read_as<std::uint32_t>(first, count, vocabulary, out);
    case TokenType::i32: return read_as<std::int32_t>(first, count, vocabulary, out);
    case TokenType::i64: return read_as<std::int64_t>(first, count, vocabulary, out);
  }
}

std::string TokenFile::description() const {
  return fmt::format("{}: {}, {} tokens of {} bits", path_, name(format_), size_, 8 * bytes_of(type_));
}

std::string TokenFile::content() const {
  return fmt::format("{} tokens of {} bits with the digest {:016x}", size_, 8 * bytes_of(type_), file_->digest());
}

}  // namespace apps
