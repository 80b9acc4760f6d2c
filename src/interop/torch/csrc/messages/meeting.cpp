#include "messages/meeting.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <future>
#include <sstream>
#include <thread>

#include "python/signals.hpp"
#include "stretto/error.hpp"

namespace stretto_torch {
namespace {

// The host of the rendezvous, from the store or else from the launcher.
std::string rendezvous_host(StorePtr store) {
  while (auto* prefix = dynamic_cast<c10d::PrefixStore*>(store.get())) store = prefix->getUnderlyingStore();
  if (const auto* tcp = dynamic_cast<const c10d::TCPStore*>(store.get())) return tcp->getHost();
  const char* const master = std::getenv("MASTER_ADDR");
  return master != nullptr ? master : "";
}

// The address of this host's end of a connection to `host`. Nothing is sent.
std::string address_towards(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), "9", &hints, &found) != 0) return "";
  std::string address;
  for (const addrinfo* there = found; there != nullptr && address.empty(); there = there->ai_next) {
    const int probe = socket(there->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (probe < 0) continue;
    sockaddr_storage here{};
    socklen_t length = sizeof here;
    std::array<char, NI_MAXHOST> text{};
    if (connect(probe, there->ai_addr, there->ai_addrlen) == 0 &&
        getsockname(probe, reinterpret_cast<sockaddr*>(&here), &length) == 0 &&
        getnameinfo(reinterpret_cast<sockaddr*>(&here), length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0) {
      address = text.data();
    }
    close(probe);
  }
  freeaddrinfo(found);
  return address;
}

// stretto::connect() does not return to Python until all ranks have come. An interrupted caller leaves its thread behind.
stretto::Communicator connect_ranks(int rank, int size, const stretto::MeetingPoint& point) {
  if (!is_python_main_thread()) return stretto::connect(rank, size, point);
  std::packaged_task<stretto::Communicator()> task([=] { return stretto::connect(rank, size, point); });
  std::future<stretto::Communicator> connected = task.get_future();
  std::thread(std::move(task)).detach();
  while (connected.wait_for(between_signals) == std::future_status::timeout) run_signal_handlers();
  return connected.get();
}

}  // namespace

std::string own_address(const StorePtr& store) {
  const std::string host = rendezvous_host(store);
  // A file store has no host. Then use the address of the default route (192.0.2.1 belongs to no host).
  std::string address = address_towards(host.empty() ? "192.0.2.1" : host);
  return address.empty() ? "127.0.0.1" : address;
}

void publish_meeting(const StorePtr& store, const std::string& key, const stretto::MeetingPoint& point) {
  const std::string text = point.host + " " + std::to_string(point.port) + " " + point.secret;
  store->set(key, std::vector<std::uint8_t>(text.begin(), text.end()));
}

stretto::MeetingPoint read_meeting(const StorePtr& store, const std::string& key) {
  const std::vector<std::uint8_t> bytes = store->get(key);
  std::istringstream text(std::string(bytes.begin(), bytes.end()));
  stretto::MeetingPoint point;
  text >> point.host >> point.port >> point.secret;
  TORCH_CHECK(!text.fail(), "The store has no meeting place under '", key, "'.");
  return point;
}

bool await_key(const StorePtr& store, const std::string& key, const std::function<bool()>& goes_on) {
  auto pause = std::chrono::microseconds(500);
  while (!store->check({key})) {
    if (!goes_on()) return false;
    run_signal_handlers();
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(50000));
  }
  return true;
}

stretto::Communicator meet(const StorePtr& store, int rank, int size, Milliseconds timeout) {
  const std::string key = "stretto/meeting";
  stretto::MeetingPoint point;
  if (size > 1 && rank == 0) {
    point = stretto::open_meeting(own_address(store));
    publish_meeting(store, key, point);
  } else if (size > 1) {
    const auto until = std::chrono::steady_clock::now() + timeout;
    TORCH_CHECK(await_key(store, key, [&] { return std::chrono::steady_clock::now() < until; }), "Rank ", rank,
                " Timed out waiting ", seconds(timeout), " s for rank 0 of this group of ", size,
                " to say where to meet it.");
    point = read_meeting(store, key);
  }
  point.timeout = seconds(timeout);
  // The store may outlive this group, and a later group of the same name then uses the key again.
  const auto forget = [&] {
    if (size > 1 && rank == 0) store->deleteKey(key);
  };
  stretto::Communicator world;
  try {
    world = connect_ranks(rank, size, point);
  } catch (const stretto::Error& error) {
    forget();
    if (error.code() != stretto::ErrorCode::timeout) throw;
    throw stretto::Error(error.code(), c10::str("Rank ", rank, " Timed out waiting for its group: ", error.what()));
  }
  world.job().set_timeout(seconds(timeout));
  forget();  // all ranks have read it
  return world;
}

}  // namespace stretto_torch
