#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "layers/checkpoint/files/file_digest.hpp"
#include "stretto/layers/weight_source.hpp"
#include "stretto/tensor.hpp"

// The safetensors format (Hugging Face): the length of a JSON header, the header, the data of all tensors without holes.
namespace stretto {

using TensorEntry = StoredTensor;
std::string safetensors_type(DType dtype);
std::int64_t elements_of(const Shape& shape);  // -1 for an invalid shape
// The bytes of a file before those of the first tensor, whose tensors have the order of the entries. Throws
// Error(invalid_argument), naming the path, for names or metadata that are no UTF-8.
std::string safetensors_header(const std::string& path, const std::vector<TensorEntry>& entries,
                               const std::map<std::string, std::string>& metadata);

struct SafetensorsFile {  // a descriptor, which is closed also if a constructor throws
  explicit SafetensorsFile(int its_number) : number(its_number) {}
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  int number;
};

// Writes a file tensor by tensor, in the order of the entries. Every error of the file system throws Error(io) naming the
// path and the reason. Data go past the kernel's page cache where the file system allows it: what training computes
// meanwhile needs the cores and the memory's bandwidth, and nobody reads the file soon.
class SafetensorsWriter {
 public:
  // Errors of entries and metadata as safetensors_header().
  SafetensorsWriter(const std::string& path, const std::vector<TensorEntry>& entries,
                    const std::map<std::string, std::string>& metadata);
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;
  void write(const void* data, std::size_t bytes);
  std::uint64_t finish();  // blocks until everything is on the disk; returns digest_of_file()

 private:
  void flush();
  bool writes_directly() const;
  [[noreturn]] void fail_to_write() const;

  std::string path_;
  SafetensorsFile file_;
  std::vector<std::byte> memory_;  // of waiting_
  std::byte* waiting_ = nullptr;   // bytes that are not in the file yet, at an address for direct writes
  FileDigest digest_;              // of what comes before waiting_
  std::size_t waiting_bytes_ = 0;
  std::uint64_t file_bytes_ = 0;  // before waiting_
};

// Reads a file; throws Error(io) if it is no valid safetensors file: its tensors must lie one after the other, without
// holes, up to its end. Types and shapes are checked when a tensor is asked for. It is not mapped: a file that somebody cuts
// off meanwhile is an error, not a signal.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::string& path);
  ~SafetensorsReader();
  SafetensorsReader(const SafetensorsReader&) = delete;
  SafetensorsReader& operator=(const SafetensorsReader&) = delete;

  // A tensor in the file. Copies share a buffer: only one thread may use them. Throws Error(io) if the file no longer has
  // the bytes.
  struct View {
    std::string type;
    Shape shape;
    std::int64_t elements = 0;
    // The bytes of elements, which must lie within the tensor. Short runs in ascending order are read many at a time.
    void read(std::int64_t first, std::int64_t count, void* to) const;
    // The elements as numbers, likewise.
    void numbers(std::int64_t first, std::int64_t count, double* to) const;
    double at(std::int64_t i) const;

   private:
    friend class SafetensorsReader;
    struct Bytes;
    template <class T>
    void widen(std::int64_t first, std::int64_t count, double* to) const;
    std::shared_ptr<Bytes> bytes_;
  };
  bool has(const std::string& name) const;
  View tensor(const std::string& name) const;           // throws if it is missing
  View floats(const std::string& name) const;           // throws also for a tensor of whole numbers, which holds no weights
  std::vector<TensorEntry> entries() const;             // of any type
  std::map<std::string, std::string> metadata() const;  // without entries that are no strings, which the format forbids
  std::string metadata(const std::string& key) const;   // throws if it is missing
  const std::string& path() const { return path_; }

 private:
  void parse_header(const std::string& text);
  void check_places() const;

  std::string path_;
  std::size_t size_ = 0;
  std::size_t tensors_at_ = 0;
  std::unique_ptr<nlohmann::json> header_;
};

}  // namespace stretto
