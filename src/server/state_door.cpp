#include "server/state_door.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "core/fail.hpp"
#include "core/log.hpp"
#include "stretto/settings.hpp"
#include "stretto/stream.hpp"

namespace stretto {
namespace {

constexpr std::size_t most_arriving = 16;
constexpr double longest_arrival = 10, longest_answer = 5;  // seconds
constexpr std::uint64_t most_bytes = std::uint64_t{64} << 20;

bool is_for_all_hosts(const Meeting& meeting) { return !meeting.secret.empty() || meeting.insecure; }

}  // namespace

Meeting place_of_door(int port, const std::string& host, double seconds) {
  return {.host = host,
          .port = port,
          .secret = setting("STRETTO_JOB_SECRET"),
          .timeout = seconds,
          .insecure = setting("STRETTO_INSECURE") == "1"};
}

StateDoor::StateDoor(const Meeting& meeting, const RankIntroduction& self, std::function<std::string()> state,
                     const DoorKind& kind)
    : kind_(kind), self_(self), key_(hash_of(meeting.secret)), state_(std::move(state)), stop_(eventfd(0, EFD_CLOEXEC)) {
  if (!stop_)
    fail(ErrorCode::unavailable, "The {} of rank {} cannot make an eventfd: {}.", kind.who, self.rank, errno_text(errno));
  try {
    const Listener listener = listen_on(is_for_all_hosts(meeting) ? "0.0.0.0" : "127.0.0.1", meeting.port);
    listener_ = Socket(listener.socket);
    port_ = listener.port;
  } catch (const Error&) {
    fail(ErrorCode::unavailable, "The {} of rank {} cannot listen on port {}, which another program has; set {} to another.",
         kind.who, self.rank, meeting.port, kind.setting);
  }
  thread_ = std::thread([this] { run(); });
}

StateDoor::~StateDoor() {
  const std::uint64_t one = 1;
  if (write(stop_.descriptor(), &one, sizeof one) < 0) log().debug("A server's door does not hear that it closes.");
  thread_.join();
}

void StateDoor::run() {
  while (true) {
    std::vector<pollfd> wanted{{stop_.descriptor(), POLLIN, 0}, {listener_.descriptor(), POLLIN, 0}};
    for (const Arriving& one : arriving_) wanted.push_back({one.descriptor(), POLLIN, 0});
    const int wait = arriving_.empty() ? -1 : static_cast<int>(longest_arrival * 1000);
    if (poll(wanted.data(), wanted.size(), wait) < 0 && errno != EINTR) return;
    if ((wanted[0].revents & POLLIN) != 0) return;
    arriving_.remove_if([this](Arriving& one) { return look(one); });
    if ((wanted[1].revents & POLLIN) != 0) accept_one();
  }
}

void StateDoor::accept_one() {
  Socket socket = accept_on(listener_.descriptor());
  if (!socket) return;
  if (arriving_.size() >= most_arriving) arriving_.pop_front();
  arriving_.emplace_back(std::move(socket), key_);
}

bool StateDoor::look(Arriving& one) {
  switch (one.look()) {
    case Arriving::State::waits: return now_seconds() - one.since() > longest_arrival;
    case Arriving::State::other_secret: one.turn_away("STRETTO_JOB_SECRET differs between them."); return true;
    case Arriving::State::no_rank:
    case Arriving::State::other_version: return true;
    case Arriving::State::came: break;
  }
  if (one.who().job_hash != hash_of(kind_.name)) {
    one.turn_away(fmt::format("it is the port of a {}, and not where ranks meet.", kind_.who));
    return true;
  }
  const Socket socket = one.admit(self_, 0);
  const std::string text = state_();
  const std::uint64_t bytes = text.size();
  if (socket.write_all(&bytes, sizeof bytes, longest_answer))
    std::ignore = socket.write_all(text.data(), bytes, longest_answer);
  return true;
}

std::string state_behind(const Meeting& meeting, const DoorKind& kind) {
  const auto refuse = [&](ErrorCode code, const std::string& why) {
    fail(code, "No {} says its state at {}:{}: {}", kind.who, meeting.host, meeting.port, why);
  };
  try {
    const Admission admission = arrive(meeting, introduce(0, 1, kind.name));
    std::uint64_t bytes = 0;
    std::string text;
    bool whole = admission.socket.read_all(&bytes, sizeof bytes, longest_answer) && bytes <= most_bytes;
    if (whole) {
      text.resize(bytes);
      whole = admission.socket.read_all(text.data(), bytes, longest_answer);
    }
    if (whole) return text;
  } catch (const Error& error) {
    refuse(error.code(), error.what());
  }
  refuse(ErrorCode::unavailable, "it has ended in the middle of its answer.");
  return {};
}

}  // namespace stretto
