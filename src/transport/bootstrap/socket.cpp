#include "transport/bootstrap/socket.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <thread>

#include "core/fail.hpp"
#include "stretto/stream.hpp"
#include "transport/bootstrap/job.hpp"

namespace stretto {
namespace {

std::unique_ptr<addrinfo, void (*)(addrinfo*)> resolve(const std::string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int result = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (result != 0) {
    fail(ErrorCode::unavailable, "The address of host '{}' is not known: {}.", host, gai_strerror(result));
  }
  return {found, freeaddrinfo};
}

void send_at_once(int descriptor) {
  const int on = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    descriptor_ = other.release();
  }
  return *this;
}

int Socket::release() {
  const int descriptor = descriptor_;
  descriptor_ = -1;
  return descriptor;
}

void Socket::close() {
  if (descriptor_ >= 0) ::close(release());
}

bool Socket::write_all(const void* data, std::size_t bytes) const {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = send(descriptor_, at, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    bytes -= static_cast<std::size_t>(sent);
  }
  return true;
}

bool Socket::read_all(void* data, std::size_t bytes, double all_within) const {
  char* at = static_cast<char*>(data);
  const double from = now_seconds();
  while (bytes > 0) {
    if (all_within > 0 && now_seconds() - from > all_within) return false;
    const ssize_t received = recv(descriptor_, at, bytes, 0);
    if (received < 0 && errno == EINTR) continue;
    if (received <= 0) return false;
    at += received;
    bytes -= static_cast<std::size_t>(received);
  }
  return true;
}

void Socket::give_up_after(double seconds) const {
  timeval limit{};
  limit.tv_sec = static_cast<time_t>(seconds);
  limit.tv_usec = static_cast<suseconds_t>((seconds - static_cast<double>(limit.tv_sec)) * 1e6);
  setsockopt(descriptor_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(descriptor_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

Socket accept_on(int listener) {
  Socket accepted(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  if (accepted) send_at_once(accepted.descriptor());
  return accepted;
}

Socket connect_to(const std::string& host, int port, double seconds) {
  const double deadline = now_seconds() + seconds;
  int error = 0;
  do {
    const auto addresses = resolve(host, port, 0);
    for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
      Socket socket(::socket(address->ai_family, address->ai_socktype | SOCK_CLOEXEC, address->ai_protocol));
      if (socket && connect(socket.descriptor(), address->ai_addr, address->ai_addrlen) == 0) {
        send_at_once(socket.descriptor());
        return socket;
      }
      error = errno;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  } while (now_seconds() < deadline);
  fail(ErrorCode::unavailable, "Rank 0 does not answer at {}:{} within {} s: {}.", host, port, seconds, errno_text(error));
}

Listener listen_on(const std::string& host, int port) {
  const auto addresses = resolve(host, port, AI_PASSIVE);
  int error = 0;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    Socket socket(::socket(address->ai_family, address->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, address->ai_protocol));
    if (!socket) continue;
    const int on = 1;
    setsockopt(socket.descriptor(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(socket.descriptor(), address->ai_addr, address->ai_addrlen) == 0 && listen(socket.descriptor(), 1024) == 0) {
      sockaddr_storage bound{};
      socklen_t length = sizeof bound;
      getsockname(socket.descriptor(), reinterpret_cast<sockaddr*>(&bound), &length);
      const auto got = bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                                   : reinterpret_cast<sockaddr_in*>(&bound)->sin_port;
      return {socket.release(), ntohs(got)};
    }
    error = errno;
  }
  fail(ErrorCode::unavailable, "Rank 0 cannot listen on {}:{}: {}; choose another MASTER_PORT or STRETTO_PORT.", host, port,
       errno_text(error));
}

}  // namespace stretto
