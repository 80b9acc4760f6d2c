#include "transport/bootstrap/socket.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <memory>

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
    fail(ErrorCode::unavailable, "The address of host '{}' is not known: {}.", host,
         result == EAI_SYSTEM ? errno_text(errno) : gai_strerror(result));
  }
  return {found, freeaddrinfo};
}

void set(int descriptor, int level, int option, int value) { setsockopt(descriptor, level, option, &value, sizeof value); }

// Waits until the socket is ready, at most until the deadline.
bool await(int descriptor, short event, double deadline) {
  while (true) {
    const double left = deadline - now_seconds();
    if (left <= 0) return false;
    pollfd wanted{descriptor, event, 0};
    const int ready = poll(&wanted, 1, static_cast<int>(std::ceil(std::min(left, 1e6) * 1000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

// The address as text without the port.
std::string text_of(const sockaddr_storage& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* number = address.ss_family == AF_INET6
                           ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in6*>(&address)->sin6_addr)
                           : &reinterpret_cast<const sockaddr_in*>(&address)->sin_addr;
  inet_ntop(address.ss_family, number, text.data(), text.size());
  return text.data();
}

bool is_loopback(const std::string& address) {
  return address == "::1" || address.starts_with("127.") || address.starts_with("::ffff:127.");
}

bool is_of_this_host(const addrinfo& address) {
  const Socket socket(::socket(address.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return socket && (bind(socket.descriptor(), address.ai_addr, address.ai_addrlen) == 0 || errno == EADDRINUSE);
}

// Traffic of a host to itself takes its loopback interface, whatever the address. While that is down, connections to a
// loopback address fail, and connections to another address hang.
void require_loopback(const std::string& host, int port) {
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) return;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owned(interfaces, freeifaddrs);
  bool is_down = false;
  for (const ifaddrs* one = interfaces; one != nullptr; one = one->ifa_next) {
    if ((one->ifa_flags & IFF_LOOPBACK) == 0) continue;
    if ((one->ifa_flags & IFF_UP) != 0) return;
    is_down = true;
  }
  if (!is_down) return;
  fail(ErrorCode::unavailable,
       "The ranks of this host cannot meet at {}:{}: its loopback interface is down; bring it up (ip link set lo up).", host,
       port);
}

bool connect_within(const Socket& socket, const addrinfo& address, double deadline) {
  if (connect(socket.descriptor(), address.ai_addr, address.ai_addrlen) == 0) return true;
  if (errno != EINPROGRESS) return false;
  if (!await(socket.descriptor(), POLLOUT, deadline)) {
    errno = ETIMEDOUT;
    return false;
  }
  socklen_t length = sizeof errno;
  int error = 0;
  getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &error, &length);
  errno = error;
  return error == 0;
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

void Socket::end_writing() const { shutdown(descriptor_, SHUT_WR); }

bool Socket::write_all(const void* data, std::size_t bytes, double within) const {
  const double deadline = now_seconds() + within;
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = write_some(at, bytes);
    if (sent < 0 || (sent == 0 && !await(descriptor_, POLLOUT, deadline))) return false;
    at += sent;
    bytes -= static_cast<std::size_t>(sent);
  }
  return true;
}

bool Socket::read_all(void* data, std::size_t bytes, double within) const {
  const double deadline = now_seconds() + within;
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t received = read_some(at, bytes);
    // The deadline also holds if bytes trickle in one by one.
    if (received < 0 || !(received > 0 ? now_seconds() < deadline : await(descriptor_, POLLIN, deadline))) return false;
    at += received;
    bytes -= static_cast<std::size_t>(received);
  }
  return true;
}

ssize_t Socket::write_some(const void* data, std::size_t bytes) const {
  while (true) {
    const ssize_t sent = send(descriptor_, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return sent;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    if (errno != EINTR) return -1;
  }
}

ssize_t Socket::read_some(void* data, std::size_t bytes) const {
  while (true) {
    const ssize_t received = recv(descriptor_, data, bytes, MSG_DONTWAIT);
    if (received > 0) return received;
    if (received == 0) {
      errno = 0;
      return -1;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    if (errno != EINTR) return -1;
  }
}

void Socket::notice_dead_hosts() const {
  set(descriptor_, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(descriptor_, IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set(descriptor_, IPPROTO_TCP, TCP_KEEPINTVL, 3);
  set(descriptor_, IPPROTO_TCP, TCP_KEEPCNT, 5);
  set(descriptor_, IPPROTO_TCP, TCP_USER_TIMEOUT, 20000);  // milliseconds; for bytes that the other side does not confirm
}

std::string Socket::other_host() const {
  sockaddr_storage own{};
  sockaddr_storage other{};
  socklen_t length = sizeof own;
  if (getsockname(descriptor_, reinterpret_cast<sockaddr*>(&own), &length) != 0) return "an unknown address";
  length = sizeof other;
  if (getpeername(descriptor_, reinterpret_cast<sockaddr*>(&other), &length) != 0) return "an unknown address";
  const std::string address = text_of(other);
  return is_loopback(address) || address == text_of(own) ? "" : address;
}

Socket accept_on(int listener) {
  Socket accepted(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  if (accepted) set(accepted.descriptor(), IPPROTO_TCP, TCP_NODELAY, 1);
  return accepted;
}

Socket try_to_connect(const std::string& host, int port, double seconds) {
  const double deadline = now_seconds() + seconds;
  const auto addresses = resolve(host, port, 0);
  int error = 0;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    Socket socket(::socket(address->ai_family, address->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, address->ai_protocol));
    if (!socket && lacks_descriptors(errno)) {
      fail(ErrorCode::unavailable, "Cannot open a connection to {}:{}: {}.", host, port, errno_text(errno));
    }
    if (is_of_this_host(*address)) require_loopback(host, port);
    if (socket && connect_within(socket, *address, deadline)) {
      set(socket.descriptor(), IPPROTO_TCP, TCP_NODELAY, 1);
      return socket;
    }
    error = errno;
  }
  errno = error;
  return {};
}

Listener try_to_listen_on(const std::string& host, int port) {
  const auto addresses = resolve(host, port, AI_PASSIVE);
  int error = 0;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    Socket socket(::socket(address->ai_family, address->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, address->ai_protocol));
    if (socket) {
      set(socket.descriptor(), SOL_SOCKET, SO_REUSEADDR, 1);
      if (bind(socket.descriptor(), address->ai_addr, address->ai_addrlen) == 0 && listen(socket.descriptor(), 1024) == 0) {
        sockaddr_storage bound{};
        socklen_t length = sizeof bound;
        getsockname(socket.descriptor(), reinterpret_cast<sockaddr*>(&bound), &length);
        if (is_loopback(text_of(bound))) require_loopback(host, port);
        const auto got = bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                                     : reinterpret_cast<sockaddr_in*>(&bound)->sin_port;
        if (is_loopback(text_of(bound))) require_loopback(host, ntohs(got));
        return {socket.release(), ntohs(got)};
      }
    }
    error = errno;
  }
  errno = error;
  return {};
}

Listener listen_on(const std::string& host, int port) {
  const Listener listener = try_to_listen_on(host, port);
  if (listener.socket >= 0) return listener;
  const int error = errno;
  std::array<char, 64> name{};
  gethostname(name.data(), name.size() - 1);
  const std::string advice =
      error == EADDRNOTAVAIL
          ? fmt::format("; rank 0 runs on host {}, which has no such address: set MASTER_ADDR to one of it", name.data())
      : lacks_descriptors(error) ? ""
                                 : "; choose another MASTER_PORT or STRETTO_PORT";
  fail(ErrorCode::unavailable, "Rank 0 cannot listen on {}:{}: {}{}.", host, port, errno_text(error), advice);
}

}  // namespace stretto
