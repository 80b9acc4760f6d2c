#include "layers/checkpoint/files/safetensors.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "core/fail.hpp"
#include "core/files/input_file.hpp"
#include "layers/checkpoint/json_numbers.hpp"

namespace stretto {
namespace {

constexpr std::uint64_t most_header_bytes = 100'000'000;    // as in Hugging Face's own reader
constexpr std::size_t block_bytes = 4096;                   // of direct writes, in memory and in the file
constexpr std::size_t flush_bytes = std::size_t{1} << 20;   // stays in a core's cache
constexpr std::size_t window_bytes = std::size_t{1} << 17;  // of short runs

std::size_t bytes_of(const std::string& type, const std::string& name, const std::string& path) {
  if (type == "F64") return 8;
  if (type == "F32" || type == "I32") return 4;
  if (type == "BF16" || type == "F16") return 2;
  fail(ErrorCode::io, "{} has {} as {}, which is not among F64, F32, BF16, F16 and I32.", path, name, type);
}

// The first byte of a tensor and the one behind its last, counted from the end of the header.
std::pair<std::uint64_t, std::uint64_t> place_of(const nlohmann::json& entry) {
  const nlohmann::json& offsets = entry.at("data_offsets");
  return {whole_number(offsets.at(0)), whole_number(offsets.at(1))};
}

std::string text_of(const nlohmann::ordered_json& header, const std::string& path) {
  try {
    return header.dump();
  } catch (const nlohmann::json::exception&) {
    fail(ErrorCode::invalid_argument, "A name or a note for {} is no UTF-8 text; give another.", path);
  }
}

}  // namespace

std::int64_t elements_of(const Shape& shape) {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(product, extent, &product)) return -1;
  }
  return product;
}

std::string safetensors_type(DType dtype) {
  switch (dtype) {
    case DType::f64: return "F64";
    case DType::f32: return "F32";
    case DType::bf16: return "BF16";
    case DType::f16: return "F16";
    default: break;
  }
  fail(ErrorCode::invalid_argument, "Tensors of {} are not saved; use f64, f32, bf16 or f16.", name(dtype));
}

std::string safetensors_header(const std::string& path, const std::vector<TensorEntry>& entries,
                               const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header;
  header["__metadata__"] = metadata;
  std::size_t offset = 0;
  for (const TensorEntry& entry : entries) {
    const std::size_t bytes = static_cast<std::size_t>(elements_of(entry.shape)) * bytes_of(entry.type, entry.name, path);
    header[entry.name] = {{"dtype", entry.type}, {"shape", entry.shape}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text = text_of(header, path);
  text.resize((text.size() + 7) / 8 * 8, ' ');  // aligns the data
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, const std::vector<TensorEntry>& entries,
                                     const std::map<std::string, std::string>& metadata)
    : path_(path), file_(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
  if (file_.number < 0) fail_to_write();
  fcntl(file_.number, F_SETFL, O_DIRECT);  // some file systems, such as tmpfs, refuse it
  memory_.resize(flush_bytes + block_bytes);
  waiting_ = memory_.data() + (block_bytes - reinterpret_cast<std::uintptr_t>(memory_.data()) % block_bytes) % block_bytes;
  const std::string header = safetensors_header(path, entries, metadata);
  write(header.data(), header.size());
}

SafetensorsFile::~SafetensorsFile() {
  if (number >= 0) close(number);
}

void SafetensorsWriter::write(const void* data, std::size_t bytes) {
  const std::byte* at = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const std::size_t count = std::min(bytes, flush_bytes - waiting_bytes_);
    std::memcpy(waiting_ + waiting_bytes_, at, count);
    waiting_bytes_ += count;
    at += count;
    bytes -= count;
    if (waiting_bytes_ == flush_bytes) flush();
  }
}

bool SafetensorsWriter::writes_directly() const { return (fcntl(file_.number, F_GETFL) & O_DIRECT) != 0; }

// Direct writes are of whole blocks: the last one is padded, and cut off again by finish().
void SafetensorsWriter::flush() {
  digest_.add(waiting_, waiting_bytes_);
  const std::size_t bytes = (waiting_bytes_ + block_bytes - 1) / block_bytes * block_bytes;
  std::memset(waiting_ + waiting_bytes_, 0, bytes - waiting_bytes_);
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t written = pwrite(file_.number, waiting_ + done, bytes - done, static_cast<off_t>(file_bytes_ + done));
    if (written < 0 && errno == EINTR) continue;
    // A file system may refuse it only now, and does after a part of a block.
    if (written < 0 && errno == EINVAL && writes_directly()) {
      fcntl(file_.number, F_SETFL, 0);
      continue;
    }
    if (written <= 0) fail_to_write();
    done += static_cast<std::size_t>(written);
  }
  file_bytes_ += waiting_bytes_;
  waiting_bytes_ = 0;
}

std::uint64_t SafetensorsWriter::finish() {
  if (waiting_bytes_ > 0) flush();
  if (ftruncate(file_.number, static_cast<off_t>(file_bytes_)) != 0 || fsync(file_.number) != 0) fail_to_write();
  close(std::exchange(file_.number, -1));
  return digest_.value();
}

void SafetensorsWriter::fail_to_write() const { fail(ErrorCode::io, "Cannot write {}: {}.", path_, errno_text(errno)); }

// A tensor's place in the file, and what has been read of it. The file is opened again: a checkpoint may have more shards
// than a process may have descriptors.
struct SafetensorsReader::View::Bytes {
  void load(std::uint64_t from, std::uint64_t bytes) {
    window.clear();  // it stays empty if the file is cut off
    std::vector<std::byte> loaded(bytes);
    file.read(begin + from, loaded.data(), bytes);
    window = std::move(loaded);
    window_at = from;
  }

  InputFile file;
  std::uint64_t begin, count;          // in bytes
  std::size_t width;                   // bytes of an element
  std::vector<std::byte> window = {};  // bytes of the tensor from window_at on
  std::uint64_t window_at = 0;
};

SafetensorsReader::SafetensorsReader(const std::string& path) : path_(path) {
  const InputFile file(path);
  size_ = file.size();
  if (size_ <= 8) fail(ErrorCode::io, "{} of {} bytes is no safetensors file.", path, size_);
  std::uint64_t length = 0;
  file.read(0, &length, sizeof length);
  if (length > size_ - 8) fail(ErrorCode::io, "{} is cut off or no safetensors file.", path);
  tensors_at_ = 8 + length;
  if (length > most_header_bytes) {
    fail(ErrorCode::io, "The header of {} has {} bytes; those of safetensors files have at most {}.", path, length,
         most_header_bytes);
  }
  std::string header(length, '\0');
  file.read(8, header.data(), length);
  parse_header(header);
  check_places();
}

// A header has four levels; deeper ones would cost memory without bound.
void SafetensorsReader::parse_header(const std::string& text) {
  const auto is_flat = [](int depth, nlohmann::json::parse_event_t /*event*/, nlohmann::json& /*parsed*/) {
    if (depth > 4) throw std::length_error("too deep");
    return true;
  };
  try {
    header_ = std::make_unique<nlohmann::json>(nlohmann::json::parse(text, is_flat));
  } catch (const std::exception&) {
    fail(ErrorCode::io, "The header of {} is no JSON of a safetensors file.", path_);
  }
}

void SafetensorsReader::check_places() const {
  const std::uint64_t bytes = size_ - tensors_at_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> places;
  for (const auto& [name, entry] : header_->items()) {
    if (name == "__metadata__") continue;
    try {
      const auto& [begin, end] = places.emplace_back(place_of(entry));
      if (begin > end || end > bytes) {
        fail(ErrorCode::io, "Tensor {} of {} lies outside the file; it is cut off or damaged.", name, path_);
      }
    } catch (const nlohmann::json::exception&) {
      fail(ErrorCode::io, "The header of {} does not describe tensor {}.", path_, name);
    }
  }
  std::ranges::sort(places);
  std::uint64_t at = 0;
  for (const auto& [begin, end] : places) {
    if (begin != at) break;
    at = end;
  }
  if (at != bytes && !places.empty()) {
    fail(ErrorCode::io, "The tensors of {} overlap or leave bytes between them; it is damaged.", path_);
  }
}

SafetensorsReader::~SafetensorsReader() = default;

bool SafetensorsReader::has(const std::string& name) const { return header_->is_object() && header_->contains(name); }

SafetensorsReader::View SafetensorsReader::tensor(const std::string& name) const {
  const auto found = header_->find(name);
  if (found == header_->end()) fail(ErrorCode::io, "{} has no tensor {}.", path_, name);
  View view;
  try {
    view.type = found->at("dtype").get<std::string>();
    view.shape = shape_from_json(found->at("shape"));
    view.elements = elements_of(view.shape);
    const auto [begin, end] = place_of(*found);
    const std::size_t element_bytes = bytes_of(view.type, name, path_);
    if (view.elements < 0 || begin > end || end > size_ - tensors_at_ || (end - begin) % element_bytes != 0 ||
        (end - begin) / element_bytes != static_cast<std::uint64_t>(view.elements)) {
      fail(ErrorCode::io, "Tensor {} of {} lies outside the file or has another size than its shape says.", name, path_);
    }
    view.bytes_.reset(new View::Bytes{InputFile(path_, size_), tensors_at_ + begin, end - begin, element_bytes});
  } catch (const nlohmann::json::exception&) {
    fail(ErrorCode::io, "The header of {} does not describe tensor {}.", path_, name);
  }
  return view;
}

SafetensorsReader::View SafetensorsReader::floats(const std::string& name) const {
  View view = tensor(name);
  if (!StoredTensor{name, view.type, {}}.is_floating()) {
    fail(ErrorCode::io, "{} has {} as {}, and weights are F64, F32, BF16 or F16.", path_, name, view.type);
  }
  return view;
}

std::vector<TensorEntry> SafetensorsReader::entries() const {
  std::vector<TensorEntry> result;
  for (const auto& [name, entry] : header_->items()) {
    if (name == "__metadata__") continue;
    try {
      result.push_back({name, entry.at("dtype").get<std::string>(), shape_from_json(entry.at("shape"))});
    } catch (const nlohmann::json::exception&) {
      fail(ErrorCode::io, "The header of {} does not describe tensor {}.", path_, name);
    }
  }
  return result;
}

std::map<std::string, std::string> SafetensorsReader::metadata() const {
  std::map<std::string, std::string> result;
  const auto found = header_->find("__metadata__");
  if (found == header_->end() || !found->is_object()) return result;
  for (const auto& [key, value] : found->items()) {
    if (value.is_string()) result[key] = value.get<std::string>();
  }
  return result;
}

std::string SafetensorsReader::metadata(const std::string& key) const {
  const std::map<std::string, std::string> all = metadata();
  const auto found = all.find(key);
  if (found == all.end()) fail(ErrorCode::io, "{} has no metadata '{}'.", path_, key);
  return found->second;
}

void SafetensorsReader::View::read(std::int64_t first, std::int64_t count, void* to) const {
  Bytes& its = *bytes_;
  const std::uint64_t from = static_cast<std::uint64_t>(first) * its.width;
  const std::uint64_t bytes = static_cast<std::uint64_t>(count) * its.width;
  if (bytes >= window_bytes) return its.file.read(its.begin + from, to, bytes);
  if (from < its.window_at || from + bytes > its.window_at + its.window.size()) {
    its.load(from, std::min<std::uint64_t>(window_bytes, its.count - from));
  }
  std::memcpy(to, its.window.data() + (from - its.window_at), bytes);
}

template <class T>
void SafetensorsReader::View::widen(std::int64_t first, std::int64_t count, double* to) const {
  std::array<T, 512> some_elements;
  constexpr auto most = static_cast<std::int64_t>(some_elements.size());
  for (std::int64_t done = 0; done < count; done += most) {
    const std::int64_t some = std::min(count - done, most);
    read(first + done, some, some_elements.data());
    for (std::int64_t i = 0; i < some; ++i) {
      const T element = some_elements[static_cast<std::size_t>(i)];
      if constexpr (sizeof(T) == 2) {
        to[done + i] = static_cast<float>(element);
      } else {
        to[done + i] = element;
      }
    }
  }
}

void SafetensorsReader::View::numbers(std::int64_t first, std::int64_t count, double* to) const {
  if (type == "F64") return read(first, count, to);
  if (type == "F32") return widen<float>(first, count, to);
  if (type == "I32") return widen<std::int32_t>(first, count, to);
  if (type == "BF16") return widen<bf16>(first, count, to);
  widen<f16>(first, count, to);
}

double SafetensorsReader::View::at(std::int64_t i) const {
  double number = 0;
  numbers(i, 1, &number);
  return number;
}

}  // namespace stretto
