// NumPy's files of one array (NEP 1): "\x93NUMPY", two bytes of a version, the length of a header in 16 bits (from version 2
// on in 32), the header, a Python dictionary such as {'descr': '<u2', 'fortran_order': False, 'shape': (3, 5), }, and the
// numbers. An array of several dimensions is one row of tokens.
#include <array>
#include <charconv>
#include <string_view>
#include <utility>

#include "apps/common/fail.hpp"
#include "apps/train/data/token_file.hpp"

namespace apps {

using stretto::ErrorCode;

namespace {

constexpr std::string_view magic = "\x93NUMPY";
constexpr std::array<std::pair<std::string_view, TokenType>, 7> types = {{{"|u1", TokenType::u8},
                                                                          {"|i1", TokenType::i8},
                                                                          {"<u2", TokenType::u16},
                                                                          {"<i2", TokenType::i16},
                                                                          {"<u4", TokenType::u32},
                                                                          {"<i4", TokenType::i32},
                                                                          {"<i8", TokenType::i64}}};

class NpyHeader {
 public:
  explicit NpyHeader(const DataFile& file) : path_(file.path()) {
    std::array<unsigned char, 12> begins{};
    const auto here = static_cast<std::size_t>(std::min<std::int64_t>(file.size(), begins.size()));
    file.read(0, static_cast<std::int64_t>(here), begins.data());
    const std::size_t version = begins[6];
    const std::size_t lengths = version == 1 ? 2 : 4;
    std::size_t length = 0;
    for (std::size_t i = lengths; i-- > 0;) length = length << 8 | begins[8 + i];
    begin_ = static_cast<std::int64_t>(8 + lengths + length);
    if (version < 1 || version > 3 || length > most_bytes || begin_ > file.size()) {
      fail(ErrorCode::io, "{} has {} bytes, and version {} and a header of {} bytes, as no file of NumPy's has.", path_,
           file.size(), version, length);
    }
    text_.resize(length);
    file.read(static_cast<std::int64_t>(8 + lengths), static_cast<std::int64_t>(length), text_.data());
  }

  std::int64_t begin() const { return begin_; }  // of the numbers, in bytes

  TokenType type() const {
    const std::string_view text = after("'descr':");
    for (const auto& [name, type] : types) {
      if (text.starts_with('\'') && text.substr(1).starts_with(name) && text.substr(1 + name.size()).starts_with('\'')) {
        return type;
      }
    }
    fail(ErrorCode::io, "{} has numbers of type {}, which are no tokens; save it again .astype('uint16') or 'int32'.", path_,
         text.substr(0, text.find(',')));
  }

  // The number of elements, or -1 for more than `most`.
  std::int64_t elements(std::int64_t most) const {
    std::string_view shape = after("'shape':");
    shape = shape.substr(0, shape.find(')'));
    if (!shape.starts_with('(')) fail(ErrorCode::io, "{} has no shape in its header.", path_);
    std::int64_t product = 1;
    int dimensions = 0;
    for (const char *next = shape.data() + 1, *const end = shape.data() + shape.size(); next < end;) {
      std::int64_t extent = 0;
      const auto [behind, error] = std::from_chars(next, end, extent);
      next = behind == next ? next + 1 : behind;
      if (error == std::errc::invalid_argument) continue;  // a comma or a space
      if (error != std::errc() || extent < 0 || (extent > 0 && product > most / extent)) return -1;
      product *= extent;
      ++dimensions;
    }
    if (dimensions > 1 && after("'fortran_order':").starts_with("True")) {
      fail(ErrorCode::io, "{} has its columns one after the other; save numpy.ascontiguousarray() of it.", path_);
    }
    return product;
  }

 private:
  static constexpr std::size_t most_bytes = 1 << 16;

  std::string_view after(std::string_view key) const {
    const std::size_t at = text_.find(key);
    if (at == std::string::npos) fail(ErrorCode::io, "{} has no {} in its header.", path_, key);
    std::string_view text = std::string_view(text_).substr(at + key.size());
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    return text;
  }

  std::string path_, text_;
  std::int64_t begin_ = 0;
};

}  // namespace

bool has_npy_magic(const DataFile& file) {
  std::array<char, magic.size()> begins{};
  if (file.size() < static_cast<std::int64_t>(begins.size())) return false;
  file.read(0, begins.size(), begins.data());
  return std::string_view(begins.data(), begins.size()) == magic;
}

TokenFile TokenFile::open_npy(const std::string& path) {
  TokenFile result(path, DataFormat::npy);
  const DataFile& file = *result.file_;
  if (!has_npy_magic(file)) fail(ErrorCode::io, "{} does not begin with \\x93NUMPY, as arrays of NumPy's do.", path);
  const NpyHeader header(file);
  result.begin_ = header.begin();
  result.type_ = header.type();
  const std::int64_t bytes = file.size() - result.begin_;
  result.size_ = header.elements(bytes);
  if (result.size_ < 1 || result.size_ * bytes_of(result.type_) != bytes) {
    fail(ErrorCode::io, "{} has {} bytes behind its header, which do not go with its shape and {} bytes a number.", path,
         bytes, bytes_of(result.type_));
  }
  return result;
}

}  // namespace apps
