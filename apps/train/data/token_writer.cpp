#include "apps/train/data/token_writer.hpp"

#include <array>
#include <limits>
#include <string_view>

#include "apps/common/fail.hpp"
#include "apps/train/data/megatron_format.hpp"

namespace apps {

namespace {

template <class T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

template <class T>
void put(stretto::OutputFile& file, const T& value) {
  file.write(bytes_of(value));
}

}  // namespace

TokenWriter::TokenWriter(const std::string& path, DataFormat format, std::int64_t vocabulary)
    : format_(format), is_wide_(format == DataFormat::megatron && vocabulary >= megatron_narrow_vocabulary), path_(path) {
  require(format == DataFormat::llmc || format == DataFormat::nanogpt || format == DataFormat::megatron,
          "Tokens are not written as '{}'; take llm.c, nanogpt or megatron.", name(format));
  require(is_wide_ || vocabulary <= 65536, "Tokens of a vocabulary of {} do not fit into the 16 bits of {}; take megatron.",
          vocabulary, name(format));
  if (format == DataFormat::megatron) {
    const std::string prefix = path.ends_with(".bin") ? path.substr(0, path.size() - 4) : path;
    path_ = prefix + ".bin";
    index_.emplace(prefix + ".idx").check();
  }
  file_.emplace(path_).check();
  if (format == DataFormat::llmc) put(*file_, std::array<std::int32_t, 256>{});
}

void TokenWriter::write(std::span<const std::int32_t> tokens) {
  if (is_wide_) {
    file_->write({reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes()});
  } else {
    const std::vector<std::uint16_t> narrow(tokens.begin(), tokens.end());
    file_->write({reinterpret_cast<const char*>(narrow.data()), 2 * narrow.size()});
  }
  file_->check();
  tokens_ += static_cast<std::int64_t>(tokens.size());
}

void TokenWriter::end_document() {
  if (format_ != DataFormat::megatron) return;
  const std::int64_t length = tokens_ - document_begin_;
  require(length <= std::numeric_limits<std::int32_t>::max(),
          "A document of {} tokens is longer than Megatron-LM's index can tell; divide it.", length);
  if (length > 0) document_lengths_.push_back(static_cast<std::int32_t>(length));
  document_begin_ = tokens_;
}

void TokenWriter::finish() {
  end_document();
  if (format_ == DataFormat::llmc) {
    require(tokens_ <= std::numeric_limits<std::int32_t>::max(),
            "{} tokens are more than llm.c's header can tell of; divide the text, or take nanogpt or megatron.", tokens_);
    file_->write_at_front(bytes_of(std::array{20240520, 1, static_cast<std::int32_t>(tokens_)}));
  }
  if (index_) write_index();
  file_->finish();
  if (index_) index_->finish();
}

// The layout is in megatron_file.cpp. A sequence is a document.
void TokenWriter::write_index() {
  stretto::OutputFile& index = *index_;
  index.write({megatron_magic.data(), megatron_magic.size()});
  const auto documents = static_cast<std::uint64_t>(document_lengths_.size());
  put(index, std::uint64_t{1});
  put(index, is_wide_ ? megatron_i32 : megatron_u16);
  put(index, documents);
  put(index, documents + 1);
  for (const std::int32_t length : document_lengths_) put(index, length);
  std::int64_t begin = 0;
  for (const std::int32_t length : document_lengths_) {
    put(index, begin);
    begin += std::int64_t{length} * (is_wide_ ? 4 : 2);
  }
  for (std::uint64_t i = 0; i <= documents; ++i) put(index, static_cast<std::int64_t>(i));
  index.check();
}

}  // namespace apps
