#include "interop/c/unique_id.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>

#include "interop/c/answer.hpp"
#include "stretto/settings.hpp"

namespace stretto::c {
namespace {

constexpr std::uint32_t magic = 0x53740001;  // "St", version 1

// The contents of a unique id. The layout is the same on all hosts that can be in one job.
struct Contents {
  std::uint32_t magic;
  std::uint32_t port;
  std::array<char, 32> secret;
  std::array<char, 24> place;  // where the loopback address reaches the process that made the id
  std::array<char, 64> host;   // the address for processes elsewhere; zero-terminated
};
static_assert(sizeof(Contents) == STRETTO_UNIQUE_ID_BYTES);

template <std::size_t n>
std::string text_of(const std::array<char, n>& bytes) {
  return {bytes.begin(), std::find(bytes.begin(), bytes.end(), '\0')};
}
template <std::size_t n>
void put(std::array<char, n>& bytes, const std::string& text) {
  std::copy_n(text.begin(), std::min(text.size(), n), bytes.begin());
}

// Names the running kernel and its network namespace. Processes of one place share a loopback interface.
std::string this_place() {
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  std::string text;
  if (!std::getline(boot, text)) return {};  // an empty place never equals another
  std::erase(text, '-');
  struct stat space {};
  if (stat("/proc/self/ns/net", &space) == 0) text = fmt::format("{:x}/{}", space.st_ino, text);
  return text.substr(0, sizeof(Contents::place));
}

std::string this_host() {
  std::string host = setting("STRETTO_ADDRESS");
  if (host.empty()) {
    std::array<char, 256> name{};
    gethostname(name.data(), name.size() - 1);
    host = name.data();
  }
  require(host.size() < sizeof(Contents::host),
          "'{}' is {} bytes long, and a unique id has room for {}; set STRETTO_ADDRESS to this host's address.", host,
          host.size(), sizeof(Contents::host) - 1);
  return host;
}

// The sockets on which this process listens for ranks of its ids, by secret, until rank 0 takes them.
struct Listeners {
  std::mutex mutex;
  std::map<std::string, int> sockets;
};
Listeners& listeners() {
  static auto& all = *new Listeners;
  return all;
}

}  // namespace

MeetingPoint meeting_of(const strettoUniqueId& id, int rank) {
  Contents contents{};
  std::memcpy(&contents, &id, sizeof contents);
  require(contents.magic == magic, "These {} bytes are no unique id; strettoGetUniqueId makes one, for all ranks.",
          sizeof contents);
  MeetingPoint point{"127.0.0.1", static_cast<int>(contents.port), {contents.secret.begin(), contents.secret.end()}, -1};
  const std::string place = text_of(contents.place);
  if (place.empty() || place != this_place()) point.host = text_of(contents.host);
  if (rank != 0) return point;
  const std::lock_guard lock(listeners().mutex);
  const auto found = listeners().sockets.find(point.secret);
  require_usage(found != listeners().sockets.end(),
                "Rank 0 was to be met by a unique id that this process did not make, or has used already; call "
                "strettoGetUniqueId in the process that has rank 0, once for each communicator.");
  point.listener = found->second;
  listeners().sockets.erase(found);
  return point;
}

}  // namespace stretto::c

using namespace stretto::c;

strettoResult_t strettoGetUniqueId(strettoUniqueId* id) {
  return answer([&] {
    stretto::require(id != nullptr, "strettoGetUniqueId got NULL for its result.");
    stretto::check_settings();
    Contents contents{};
    put(contents.host, this_host());
    put(contents.place, this_place());
    const stretto::MeetingPoint point = stretto::open_meeting("0.0.0.0");
    contents.magic = magic;
    contents.port = static_cast<std::uint32_t>(point.port);
    put(contents.secret, point.secret);
    std::memcpy(id, &contents, sizeof contents);
    const std::lock_guard lock(listeners().mutex);
    listeners().sockets.emplace(std::string(contents.secret.begin(), contents.secret.end()), point.listener);
  });
}
