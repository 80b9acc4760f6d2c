// llm.c's token files (dev/data/data_common.py): 256 numbers of 32 bits, of which the first three are a magic number, a
// version and the number of tokens; then the tokens, of 16 bits for GPT-2 and of 32 bits for Llama 3.
#include <array>

#include "apps/common/fail.hpp"
#include "apps/train/data/token_file.hpp"

namespace apps {

using stretto::ErrorCode;

namespace {

constexpr std::int64_t header_bytes = 1024;

struct LlmcKind {
  std::int32_t magic, version;
  TokenType type;
};
constexpr std::array<LlmcKind, 2> llmc_kinds = {{{20240520, 1, TokenType::u16}, {20240801, 7, TokenType::u32}}};

std::int32_t header_number(const DataFile& file, std::int64_t i) {
  std::int32_t number = 0;
  if (file.size() >= 4 * (i + 1)) file.read(4 * i, sizeof number, &number);
  return number;
}

}  // namespace

bool has_llmc_magic(const DataFile& file) {
  const std::int32_t magic = header_number(file, 0);
  return magic == llmc_kinds[0].magic || magic == llmc_kinds[1].magic;
}

TokenFile TokenFile::open_llmc(const std::string& path) {
  TokenFile result(path, DataFormat::llmc);
  const DataFile& file = *result.file_;
  const std::int32_t magic = header_number(file, 0), version = header_number(file, 1), count = header_number(file, 2);
  const LlmcKind* kind = nullptr;
  for (const LlmcKind& each : llmc_kinds) {
    if (each.magic == magic && each.version == version) kind = &each;
  }
  if (kind == nullptr) {
    fail(ErrorCode::io,
         "{} begins with {} and {}, but llm.c's tokens with 20240520 and version 1 (GPT-2) or 20240801 and version 7 (Llama "
         "3).",
         path, magic, version);
  }
  result.type_ = kind->type;
  const std::int64_t expected = header_bytes + count * bytes_of(kind->type);
  if (count < 1 || file.size() != expected) {
    fail(ErrorCode::io, "{} has {} bytes, but the {} tokens that its header tells of take {} with the header.", path,
         file.size(), count, expected);
  }
  result.begin_ = header_bytes;
  result.size_ = count;
  return result;
}

}  // namespace apps
