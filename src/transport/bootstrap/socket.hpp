#pragma once
#include <sys/types.h>

#include <cstddef>
#include <string>

// Thin TCP for the star of a job. Every socket is closed on exec and never raises SIGPIPE.
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
  void end_writing() const;  // the other side reads the bytes written before, and then end of file

  // Move all bytes, or return false: the connection is broken, or has not moved them within `within` seconds.
  bool write_all(const void* data, std::size_t bytes, double within) const;
  bool read_all(void* data, std::size_t bytes, double within) const;
  // Move the bytes that can be moved at once, and return their number. The connection has ended if it is -1: errno is then
  // the reason, or 0 if the other side has closed it.
  ssize_t write_some(const void* data, std::size_t bytes) const;
  ssize_t read_some(void* data, std::size_t bytes) const;

  // Lets the connection end if the other host no longer answers, some 20 seconds after it was last heard.
  void notice_dead_hosts() const;
  // The other side's address; empty if that is on this host.
  std::string other_host() const;

 private:
  int descriptor_ = -1;
};

Socket accept_on(int listener);  // returns an empty socket, and errno, if there is none to accept
// Makes one attempt, of at most `seconds`; returns an empty socket, and errno, if it fails. Throws Error(unavailable) if the
// host's name is not known.
Socket try_to_connect(const std::string& host, int port, double seconds);

}  // namespace stretto
