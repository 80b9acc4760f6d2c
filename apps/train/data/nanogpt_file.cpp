// nanoGPT's token files (data/*/prepare.py): 16-bit tokens without a header.
#include "apps/common/fail.hpp"
#include "apps/train/data/known_format.hpp"
#include "apps/train/data/token_file.hpp"

namespace apps {

using stretto::ErrorCode;

TokenFile TokenFile::open_nanogpt(const std::string& path, const TokenFlags& flags) {
  TokenFile result(path, DataFormat::nanogpt);
  if (has_llmc_magic(*result.file_)) {
    fail(ErrorCode::io, "{} has llm.c's header, which would be read as tokens; give {} llm.c.", path, flags.format);
  }
  refuse_known_format(*result.file_, std::string(flags.format) + " bytes");
  if (result.file_->size() % 2 != 0) {
    fail(ErrorCode::io, "{} has {} bytes, an odd number; nanoGPT's tokens take 2 bytes each.", path, result.file_->size());
  }
  result.type_ = TokenType::u16;
  result.size_ = result.file_->size() / 2;
  return result;
}

}  // namespace apps
