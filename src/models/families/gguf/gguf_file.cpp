#include "models/families/gguf/gguf_file.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "core/fail.hpp"

namespace stretto {
namespace {

using nlohmann::json;

constexpr std::uint64_t most_header_bytes = std::uint64_t{1} << 26;  // a vocabulary of 256,000 tokens takes a quarter of it
constexpr std::size_t window_bytes = std::size_t{1} << 16;
constexpr int most_levels = 4;                // of arrays in arrays: without a limit they would cost stack without one
constexpr std::uint32_t most_dimensions = 4;  // as in ggml

// A name from the file, for a sentence: without control characters, and not of any length.
std::string shown(std::string name) {
  if (name.size() > 100) name.replace(100, std::string::npos, "...");
  std::ranges::replace_if(
      name, [](unsigned char c) { return c < ' ' || c == 127; }, '?');
  return name;
}

enum class ValueType : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };
// The bytes that a value of each type takes at least.
constexpr std::uint64_t least_bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

// Reads what comes before the tensors' data, one value behind the other.
class GgufHeader {
 public:
  explicit GgufHeader(const InputFile& file) : file_(file), end_(std::min(file.size(), most_header_bytes)) {}

  template <class T>
  T number() {
    T value;
    take(&value, sizeof value);
    return value;
  }

  std::string string() {
    const auto length = number<std::uint64_t>();
    demand(length <= left(), "has a string of {} bytes at byte {}, where {} are left", length, at_ - sizeof length, left());
    std::string text(length, '\0');
    take(text.data(), length);
    return text;
  }

  // A number of things, each of which takes some bytes in the file.
  std::uint64_t count(const char* of_what, std::uint64_t bytes_of_each) {
    const auto counted = number<std::uint64_t>();
    demand(counted <= left() / bytes_of_each, "has {} {} by its count at byte {}, where {} bytes are left", counted, of_what,
           at_ - sizeof counted, left());
    return counted;
  }

  json value(int level = 0) { return value(type(), level); }

  std::uint64_t at() const { return at_; }

  template <class... Args>
  void demand(bool holds, fmt::format_string<Args...> fault, Args&&... args) const {
    if (holds) return;
    fail(ErrorCode::io, "{} {}: it is damaged, or cut off.", file_.path(), fmt::format(fault, std::forward<Args>(args)...));
  }

 private:
  std::uint64_t left() const { return end_ - at_; }

  ValueType type() {
    const auto number = this->number<std::uint32_t>();
    demand(number < std::size(least_bytes), "has the unknown type {} of a value at byte {}", number, at_ - sizeof number);
    return static_cast<ValueType>(number);
  }

  json value(ValueType type, int level) {
    switch (type) {
      case ValueType::u8: return number<std::uint8_t>();
      case ValueType::i8: return number<std::int8_t>();
      case ValueType::u16: return number<std::uint16_t>();
      case ValueType::i16: return number<std::int16_t>();
      case ValueType::u32: return number<std::uint32_t>();
      case ValueType::i32: return number<std::int32_t>();
      case ValueType::f32: return number<float>();
      case ValueType::boolean: return boolean();
      case ValueType::string: return string();
      case ValueType::array: return array(level);
      case ValueType::u64: return number<std::uint64_t>();
      case ValueType::i64: return number<std::int64_t>();
      case ValueType::f64: return number<double>();
    }
    return nullptr;
  }

  void take(void* to, std::size_t bytes) {
    if (bytes > left() && end_ < file_.size()) {
      fail(ErrorCode::io, "{} has more than {} bytes before its tensors, as no GGUF file has.", file_.path(), end_);
    }
    demand(bytes <= left(), "ends at byte {}, within its header", end_);
    for (std::size_t done = 0; done < bytes;) {
      if (at_ == window_at_ + window_.size()) {
        window_.resize(std::min<std::uint64_t>(window_bytes, left()));
        file_.read(at_, window_.data(), window_.size());
        window_at_ = at_;
      }
      const std::size_t some = std::min<std::size_t>(bytes - done, window_at_ + window_.size() - at_);
      std::memcpy(static_cast<std::byte*>(to) + done, window_.data() + (at_ - window_at_), some);
      done += some;
      at_ += some;
    }
  }

  bool boolean() {
    const auto byte = number<std::uint8_t>();
    demand(byte <= 1, "has {} at byte {} for a truth value, which is 0 or 1", byte, at_ - 1);
    return byte == 1;
  }

  json array(int level) {
    const ValueType its_type = type();
    demand(level < most_levels, "has arrays in arrays, {} levels deep, at byte {}", level + 1, at_);
    const std::uint64_t elements = count("elements of an array", least_bytes[static_cast<std::size_t>(its_type)]);
    json::array_t result;
    result.reserve(elements);
    for (std::uint64_t i = 0; i < elements; ++i) result.push_back(value(its_type, level + 1));
    return result;
  }

  const InputFile& file_;
  std::uint64_t end_;
  std::uint64_t at_ = 0;
  std::vector<std::byte> window_;  // bytes of the file from window_at_ on
  std::uint64_t window_at_ = 0;
};

void check_version(GgufHeader& header, const InputFile& file) {
  const std::string& path = file.path();
  char magic[4] = {};
  if (file.size() >= sizeof magic) file.read(0, magic, sizeof magic);
  if (std::memcmp(magic, "GGUF", sizeof magic) != 0) {
    fail(ErrorCode::io, "{} of {} bytes is no GGUF file: it does not begin with GGUF.", path, file.size());
  }
  header.number<std::uint32_t>();
  const auto version = header.number<std::uint32_t>();
  if (version == 2 || version == 3) return;
  if (std::uint32_t{version << 16} == 0)
    fail(ErrorCode::io, "{} is a big-endian GGUF file; convert it to little-endian.", path);
  fail(ErrorCode::io, "{} is a GGUF file of version {}; versions 2 and 3 can be read.", path, version);
}

std::uint64_t alignment_in(const json& metadata, const GgufHeader& header) {
  const auto found = metadata.find("general.alignment");
  if (found == metadata.end()) return 32;
  const std::uint64_t alignment = found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
  header.demand(std::has_single_bit(alignment) && alignment <= most_header_bytes,
                "does not have a power of two for general.alignment, the alignment of its tensors");
  return alignment;
}

// The table's entry, whose `at` counts from the beginning of the data.
GgufTensor read_tensor(GgufHeader& header, const std::string& path) {
  GgufTensor tensor{header.string(), nullptr, {}, 0, 0};
  const std::string name = shown(tensor.name);
  const auto dimensions = header.number<std::uint32_t>();
  header.demand(dimensions <= most_dimensions, "has tensor {} of {} dimensions, where {} are the most", name, dimensions,
                most_dimensions);
  std::int64_t elements = 1, row = 1, most = 1;  // most: of extents that are not 0, in whatever order one multiplies
  for (std::uint32_t d = 0; d < dimensions; ++d) {
    const auto extent = header.number<std::int64_t>();
    header.demand(extent >= 0 && !__builtin_mul_overflow(most, std::max<std::int64_t>(extent, 1), &most),
                  "has tensor {} with {} in dimension {}, which is too many", name, static_cast<std::uint64_t>(extent), d);
    tensor.shape.insert(tensor.shape.begin(), extent);
    elements *= extent;
    if (d == 0) row = extent;
  }
  const auto number = header.number<std::uint32_t>();
  tensor.type = gguf_type(number);
  if (tensor.type == nullptr) fail(ErrorCode::io, "{} has tensor {} of the unknown type {}.", path, name, number);
  const GgufType& type = *tensor.type;
  header.demand(row % type.block_elements == 0, "has tensor {} in rows of {} elements, but blocks of {} have {}", name, row,
                type.name, type.block_elements);
  std::int64_t bytes = 0;
  header.demand(!__builtin_mul_overflow(elements / type.block_elements, type.block_bytes, &bytes),
                "has tensor {} of {} elements, which is too many", name, elements);
  tensor.bytes = static_cast<std::uint64_t>(bytes);
  tensor.at = header.number<std::uint64_t>();
  return tensor;
}

}  // namespace

GgufFile::GgufFile(const std::string& path) : file_(path), metadata_(std::make_unique<json>(json::object())) {
  GgufHeader header(file_);
  check_version(header, file_);
  const std::uint64_t tensors = header.count("tensors", 24), keys = header.count("keys", 13);
  for (std::uint64_t i = 0; i < keys; ++i) {
    const std::string key = header.string();
    header.demand(!metadata_->contains(key), "has the key {} twice", shown(key));
    (*metadata_)[key] = header.value();
  }
  const std::uint64_t alignment = alignment_in(*metadata_, header);
  std::set<std::string> names;
  for (std::uint64_t i = 0; i < tensors; ++i) {
    const GgufTensor& tensor = tensors_.emplace_back(read_tensor(header, path));
    header.demand(names.insert(tensor.name).second, "has tensor {} twice", shown(tensor.name));
    header.demand(tensor.at % alignment == 0, "has tensor {} at byte {} of its data, which is no multiple of {}",
                  tensor.name, tensor.at, alignment);
  }
  const std::uint64_t data = (header.at() + alignment - 1) / alignment * alignment;
  for (GgufTensor& tensor : tensors_) {
    const std::uint64_t room = file_.size() - std::min(file_.size(), data);
    header.demand(tensor.at <= room && tensor.bytes <= room - tensor.at, "has {} bytes, and tensor {} would end behind them",
                  file_.size(), shown(tensor.name));
    tensor.at += data;
  }
  check_places();
}

GgufFile::~GgufFile() = default;

void GgufFile::check_places() const {
  std::vector<const GgufTensor*> order;
  for (const GgufTensor& tensor : tensors_) order.push_back(&tensor);
  std::ranges::sort(order, {}, [](const GgufTensor* tensor) { return std::pair(tensor->at, tensor->bytes); });
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (order[i - 1]->at + order[i - 1]->bytes <= order[i]->at) continue;
    fail(ErrorCode::io, "{} has tensors {} and {} at the same bytes: it is damaged.", path(), shown(order[i - 1]->name),
         shown(order[i]->name));
  }
}

}  // namespace stretto
