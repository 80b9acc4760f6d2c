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

#include "core/fail.hpp"

namespace stretto {
namespace {

bool is_ipv4(int descriptor) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  return getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) == 0 && address.ss_family == AF_INET;
}

// Accepts packets whose sender has one of these addresses. The kernel compares one after the other: very many addresses are
// compared by their common beginnings, so that it takes every host of their networks.
std::vector<sock_filter> filter_of(std::set<std::uint32_t> addresses) {
  constexpr std::size_t most_compared = 256;
  std::uint32_t left_out = 0;  // bits at the end
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
    program.push_back(BPF_STMT(BPF_RET | BPF_K, ~0U));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, 0));
  return program;
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

std::set<int> UcxListeners::listening_sockets() {
  std::set<int> found;
  std::error_code ended;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ended)) {
    const int descriptor = std::atoi(entry.path().filename().c_str());
    int listens = 0;
    socklen_t length = sizeof listens;
    if (getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0 && listens != 0) found.insert(descriptor);
  }
  return found;
}

void UcxListeners::wait_for_words() {
  const std::set<int> now = listening_sockets();
  std::set_difference(now.begin(), now.end(), others_.begin(), others_.end(), std::inserter(own_, own_.end()));
  constexpr int seconds = 600;  // for which the kernel keeps a silent connection to itself at most
  for (const int descriptor : own_) setsockopt(descriptor, IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, sizeof seconds);
}

void UcxListeners::hear_only(const std::set<std::uint32_t>& addresses) {
  std::vector<sock_filter> filter = filter_of(addresses);
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  for (const int descriptor : own_) {
    if (!is_ipv4(descriptor)) continue;
    require(setsockopt(descriptor, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0,
            "UCX's port cannot be kept to the hosts of the job: {}; on a network that you trust set STRETTO_INSECURE=1.",
            errno_text(errno));
  }
}

}  // namespace stretto
