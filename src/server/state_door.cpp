#include "server/state_door.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/fail.hpp"
#include "core/log.hpp"
#include "stretto/settings.hpp"
#include "stretto/stream.hpp"

namespace stretto {
namespace {

constexpr std::size_t most_of_either = 16;                  // connections that have not proven the secret, and readers
constexpr double longest_arrival = 10, longest_answer = 5;  // seconds
constexpr double deaf_seconds = 0.1;
constexpr int look_milliseconds = 100;  // between looks at who is late
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
  const Listener listener = try_to_listen_on(is_for_all_hosts(meeting) ? "0.0.0.0" : "127.0.0.1", meeting.port);
  if (listener.socket < 0) {
    const int error = errno;
    fail(ErrorCode::unavailable, "The {} of rank {} cannot listen on port {}: {}; set {} to another.", kind.who, self.rank,
         meeting.port, errno_text(error), kind.setting);
  }
  listener_ = Socket(listener.socket);
  port_ = listener.port;
  thread_ = std::thread([this] { run(); });
}

StateDoor::~StateDoor() {
  const std::uint64_t one = 1;
  if (write(stop_.descriptor(), &one, sizeof one) < 0) log().debug("A server's door does not hear that it closes.");
  thread_.join();
}

void StateDoor::run() {
  while (true) {
    const double now = now_seconds();
    arriving_.remove_if([&](const Arriving& one) { return now - one.since() > longest_arrival; });
    answers_.remove_if([&](const Answer& one) { return now - one.since > longest_answer; });
    const bool is_deaf = now < deaf_until_;
    std::vector<pollfd> wanted{{stop_.descriptor(), POLLIN, 0}};
    wanted.push_back({is_deaf ? -1 : listener_.descriptor(), POLLIN, 0});  // poll() ignores a negative one
    for (const Arriving& one : arriving_) wanted.push_back({one.descriptor(), POLLIN, 0});
    for (const Answer& one : answers_) wanted.push_back({one.socket.descriptor(), POLLOUT, 0});
    const bool sleeps = arriving_.empty() && answers_.empty() && !is_deaf;
    if (poll(wanted.data(), wanted.size(), sleeps ? -1 : look_milliseconds) < 0 && errno != EINTR) return;
    if ((wanted[0].revents & POLLIN) != 0) return;
    arriving_.remove_if([this](Arriving& one) { return look(one); });
    answers_.remove_if(send);
    if (!is_deaf && (wanted[1].revents & POLLIN) != 0) accept_one();
  }
}

void StateDoor::accept_one() {
  Socket socket = accept_on(listener_.descriptor());
  if (!socket) {
    const int error = errno;
    if (!lacks_descriptors(error) && error != ENOBUFS && error != ENOMEM) return;  // the connection has ended again
    // The connection stays in the queue, where poll() would find it again at once.
    if (arriving_.empty()) deaf_until_ = now_seconds() + deaf_seconds;
    if (!arriving_.empty()) arriving_.pop_front();  // a stranger may hold the descriptor
    return;
  }
  if (arriving_.size() >= most_of_either) arriving_.pop_front();
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
  if (answers_.size() >= most_of_either) answers_.pop_front();
  Answer& answer = answers_.emplace_back();
  answer.socket = one.admit(self_, 0);
  const std::string text = state_();
  const std::uint64_t bytes = text.size();
  answer.bytes.assign(reinterpret_cast<const char*>(&bytes), sizeof bytes);
  answer.bytes += text;
  answer.since = now_seconds();
  return true;
}

bool StateDoor::send(Answer& answer) {
  const ssize_t sent = answer.socket.write_some(answer.bytes.data() + answer.sent, answer.bytes.size() - answer.sent);
  if (sent < 0) return true;
  if (sent > 0) answer.since = now_seconds();
  answer.sent += static_cast<std::size_t>(sent);
  return answer.sent == answer.bytes.size();
}

std::string state_behind(const Meeting& meeting, const DoorKind& kind) {
  const auto refuse = [&](ErrorCode code, const std::string& why) {
    fail(code, "No {} says its state at {}:{}: {}", kind.who, meeting.host, meeting.port, why);
  };
  const double deadline = now_seconds() + meeting.timeout;
  const auto left = [&] { return deadline - now_seconds(); };
  try {
    const ArrivalNames names{.there = fmt::format("the {}", kind.who),
                             .here = "this program",
                             .advice = fmt::format("give the port of a {} ({})", kind.who, kind.setting),
                             .none_there = ""};
    const Admission admission = arrive(meeting, introduce(0, 1, kind.name), names);
    std::uint64_t bytes = 0;
    std::string text;
    bool whole = admission.socket.read_all(&bytes, sizeof bytes, left()) && bytes <= most_bytes;
    if (whole) {
      text.resize(bytes);
      whole = admission.socket.read_all(text.data(), bytes, left());
    }
    if (whole) return text;
  } catch (const Error& error) {
    refuse(error.code(), error.what());
  }
  refuse(ErrorCode::unavailable, left() > 0 ? "it has ended in the middle of its answer."
                                            : fmt::format("its answer has not come within {} s.", meeting.timeout));
  return {};
}

}  // namespace stretto
