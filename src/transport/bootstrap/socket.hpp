#pragma once
#include <sys/types.h>

#include <cstddef>
#include <string>

// Thin, blocking TCP for the star of a job. Every socket is closed on exec and never raises SIGPIPE.
namespace stretto {

class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept : descriptor_(other.release()) {}
  Socket& operator=(Socket&& other) noexcept;

  int descriptor() const { return descriptor_; }
  explicit operator bool() const { return descriptor_ >= 0; }
  int release();
  void close();

  // Move all bytes, or return false: the connection is broken, or nothing moved for the time set with give_up_after().
  // all_within: seconds for the whole, so that bytes that trickle in one by one do not block the caller; 0: no limit.
  bool write_all(const void* data, std::size_t bytes) const;
  bool read_all(void* data, std::size_t bytes, double all_within = 0) const;
  void give_up_after(double seconds) const;  // 0: never

 private:
  int descriptor_ = -1;
};

Socket accept_on(int listener);  // returns an empty socket if no connection waits
// Tries again until the deadline, since rank 0 may start last; then throws Error(unavailable) naming the address.
Socket connect_to(const std::string& host, int port, double seconds);

}  // namespace stretto
