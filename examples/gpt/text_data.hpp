#pragma once
#include <cstdint>
#include <memory>
#include <string>

namespace gpt {

// A text file as tokens: every byte is one (vocabulary 256). The file is memory-mapped, so that ranks of a host share its
// pages and it may be larger than memory.
class TextFile {
 public:
  // Throws Error(io) naming the path: missing, unreadable or empty.
  explicit TextFile(const std::string& path);
  ~TextFile();
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;
  const unsigned char* data() const { return data_; }
  std::int64_t size() const { return size_; }

 private:
  const unsigned char* data_ = nullptr;
  std::int64_t size_ = 0;
};

// Training and validation text, and the window of it that each slot of a step gets: a function of the seed and of global
// numbers only, never of the layout.
class TextData {
 public:
  static constexpr std::int64_t vocabulary = 256;

  // Without a validation file, the last tenth of the training file is used for validation. Throws if either part is shorter
  // than a sequence.
  TextData(const std::string& train_path, const std::string& validation_path, std::int64_t sequence, std::uint64_t seed);

  void training_window(std::int64_t number, std::int32_t* tokens, std::int32_t* targets) const;
  // Window i of validation_windows(), which are spread evenly over the validation text.
  void validation_window(std::int64_t i, std::int32_t* tokens, std::int32_t* targets) const;
  std::int64_t validation_windows() const;

 private:
  struct TextSpan {
    const unsigned char* data;
    std::int64_t size;
  };
  void fill(const TextSpan& part, std::int64_t at, std::int32_t* tokens, std::int32_t* targets) const;

  std::shared_ptr<TextFile> train_file_;
  std::shared_ptr<TextFile> validation_file_;
  TextSpan train_;
  TextSpan validation_;
  std::int64_t sequence_;
  std::uint64_t seed_;
};

}  // namespace gpt
