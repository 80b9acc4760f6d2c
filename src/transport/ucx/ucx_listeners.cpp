#include "transport/ucx/ucx_listeners.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <utility>

#include "core/fail.hpp"

namespace stretto {
namespace {

std::mutex making_listeners;  // of this process

bool is_ipv4(int descriptor) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  return getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) == 0 && address.ss_family == AF_INET;
}

// Chooses the first socket of a port for connections from one of these addresses, else the second. The kernel compares one
// address after the other. More than 256 are compared by their leading bits: the first socket then gets every host of their
// networks.
std::vector<sock_filter> choice_by(std::set<std::uint32_t> addresses) {
  constexpr std::size_t most_compared = 256;
  std::uint32_t left_out = 0;  // trailing bits of each address
  while (addresses.size() > most_compared) {
    std::set<std::uint32_t> shorter;
    for (const std::uint32_t address : addresses) shorter.insert(address >> 1);
    addresses = std::move(shorter);
    ++left_out;
  }
  constexpr std::uint32_t place_of_sender = 12;  // in the header of IPv4
  std::vector<sock_filter> program{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(SKF_NET_OFF) + place_of_sender),
      BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, left_out)};
  for (const std::uint32_t address : addresses) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, address, 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, 0));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, 1));
  return program;
}

bool choose(int socket, const std::set<std::uint32_t>& addresses) {
  std::vector<sock_filter> choice = choice_by(addresses);
  const sock_fprog program{static_cast<unsigned short>(choice.size()), choice.data()};
  return setsockopt(socket, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof program) == 0;
}

// Makes a second socket that listens on the port of `first` and answers no connection: its queue has room for one, which
// this function connects. Returns an empty socket, and errno, if that fails.
Socket deaf_socket_beside(int first) {
  constexpr int yes = 1;
  constexpr timeval patience{1, 0};
  sockaddr_in address{};
  socklen_t length = sizeof address;
  Socket second(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto shares_port = [&](int each) { return setsockopt(each, SOL_SOCKET, SO_REUSEPORT, &yes, sizeof yes) == 0; };
  const bool listens = second && getsockname(first, reinterpret_cast<sockaddr*>(&address), &length) == 0 &&
                       shares_port(first) && shares_port(second.descriptor()) &&
                       bind(second.descriptor(), reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
                       listen(second.descriptor(), 0) == 0 && choose(first, {});
  if (!listens) return {};
  const Socket caller(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  setsockopt(caller.descriptor(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  [[maybe_unused]] const int connected =  // else the first stranger gets the place, and no answer either
      connect(caller.descriptor(), reinterpret_cast<const sockaddr*>(&address), length);
  return second;
}

}  // namespace

std::vector<std::uint32_t> addresses_of_this_host() {
  std::vector<std::uint32_t> addresses;
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0)
    fail(ErrorCode::unavailable, "The host's addresses cannot be read: {}.", errno_text(errno));
  for (const ifaddrs* one = interfaces; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    addresses.push_back(ntohl(reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr.s_addr));
  }
  freeifaddrs(interfaces);
  return addresses;
}

UcxListeners::UcxListeners() : alone_(making_listeners), others_(listening_sockets()) {}

std::vector<int> open_descriptors() {
  std::vector<int> all;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error))
    all.push_back(std::atoi(entry.path().filename().c_str()));
  if (error) {
    fail(ErrorCode::unavailable, "The descriptors that UCX opens cannot be found in /proc/self/fd: {}.",
         errno_text(error.value()));
  }
  return all;
}

std::set<int> UcxListeners::listening_sockets() {
  std::set<int> found;
  for (const int descriptor : open_descriptors()) {
    int listens = 0;
    socklen_t length = sizeof listens;
    if (getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0 && listens != 0) found.insert(descriptor);
  }
  return found;
}

void UcxListeners::wait_for_words() {
  const std::set<int> now = listening_sockets();
  std::set_difference(now.begin(), now.end(), others_.begin(), others_.end(), std::inserter(own_, own_.end()));
  constexpr int seconds = 600;  // the kernel keeps a silent connection to itself for this time at most
  alone_.unlock();
  for (const int descriptor : own_) setsockopt(descriptor, IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, sizeof seconds);
}

// A filter of the socket itself would do, too, but newer kernels ask for CAP_NET_ADMIN to set one for TCP.
void UcxListeners::hear_only(const std::set<std::uint32_t>& addresses) {
  const std::lock_guard alone(making_listeners);
  for (const int descriptor : own_) {
    if (!is_ipv4(descriptor)) continue;
    if (!deaf_[descriptor]) deaf_[descriptor] = deaf_socket_beside(descriptor);
    require(deaf_[descriptor] && choose(descriptor, addresses),
            "UCX's port cannot be kept to the hosts of the job: {}; on a network that you trust set STRETTO_INSECURE=1.",
            errno_text(errno));
  }
}

}  // namespace stretto
