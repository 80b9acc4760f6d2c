#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

namespace stretto {

enum class IoEngine {
  any,   // io_uring where the build and the kernel have it
  calls  // pread and pwrite, one piece after the other
};

// Moves bytes between memory and a file in pieces, several of which are under way at a time: a disk reaches its rate only
// then. Containers often forbid io_uring; each piece is then a call of its own. A call blocks until all of its pieces have
// been moved. Any thread may call; calls at the same time follow each other.
class IoRing {
 public:
  static constexpr std::int64_t piece_bytes = 1 << 20;
  static constexpr unsigned depth = 8;  // pieces under way

  explicit IoRing(IoEngine engine = IoEngine::any);
  ~IoRing();
  IoRing(const IoRing&) = delete;
  IoRing& operator=(const IoRing&) = delete;

  // 0, or errno of the first piece that failed; ENODATA where the file ends too early. Nothing is under way afterwards.
  int read(int file, std::int64_t offset, void* to, std::int64_t bytes);
  int write(int file, std::int64_t offset, const void* from, std::int64_t bytes);
  bool has_uring() const { return uring_ != nullptr; }

 private:
  struct Uring;
  std::mutex mutex_;
  std::unique_ptr<Uring> uring_;
};

}  // namespace stretto
