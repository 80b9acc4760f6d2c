#include "transport/bootstrap/admission.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <vector>

#include "core/fail.hpp"
#include "core/rank_list.hpp"
#include "stretto/stream.hpp"

namespace stretto {
namespace {

constexpr std::size_t most_arriving = 128;
constexpr double seconds_to_arrive = 10;

class AdmissionDesk {
 public:
  AdmissionDesk(const RankIntroduction& self, const Meeting& meeting, std::uint64_t identity,
                const std::function<void(const RankIntroduction&, Socket)>& admitted)
      : self_(self),
        size_(self.size),
        meeting_(meeting),
        identity_(identity),
        admitted_(admitted),
        key_(hash_of(meeting.secret)),
        here_(self.size) {}

  void admit_all() {
    const Listener listener =
        meeting_.listener >= 0 ? Listener{meeting_.listener, meeting_.port} : listen_on(meeting_.host, meeting_.port);
    const Socket closes(listener.socket);
    const double deadline = now_seconds() + meeting_.timeout;
    int missing = size_ - 1;
    while (missing > 0) {
      if (now_seconds() > deadline) name_missing(listener.port);
      std::vector<pollfd> wanted{{listener.socket, POLLIN, 0}};
      for (const Here& rank : here_) {
        if (rank.descriptor >= 0) wanted.push_back({rank.descriptor, POLLRDHUP, 0});
      }
      const std::size_t first = wanted.size();
      for (const Arriving& one : arriving_) wanted.push_back({one.descriptor(), POLLIN, 0});
      poll(wanted.data(), wanted.size(), 100);
      notice_losses(wanted);
      auto one = arriving_.begin();
      for (std::size_t i = first; i < wanted.size(); ++i) {
        const bool came = wanted[i].revents != 0 && look(*one, missing);
        const bool late = now_seconds() - one->since() > seconds_to_arrive;
        strangers_ += !came && late ? 1 : 0;
        one = came || late ? arriving_.erase(one) : std::next(one);
      }
      if (wanted.front().revents != 0) accept_one(listener.socket);
    }
  }

 private:
  struct Here {
    int descriptor = -1;  // of its connection, which the caller owns
    RankIntroduction who;
  };

  // Throws if a rank that was here has ended: else the others would wait for the rest.
  void notice_losses(const std::vector<pollfd>& wanted) const {
    for (const pollfd& one : wanted) {
      const auto lost = std::find_if(here_.begin(), here_.end(), [&](const Here& h) { return h.descriptor == one.fd; });
      if (lost == here_.end() || (one.revents & (POLLRDHUP | POLLHUP | POLLERR)) == 0) continue;
      fail(ErrorCode::peer_lost, "R{} has ended while the ranks met: it was killed or crashed, or its own message says why.",
           lost->who.to_string().substr(1));
    }
  }

  void accept_one(int listener) {
    Socket socket = accept_on(listener);
    if (socket) {
      if (arriving_.size() >= most_arriving) {
        ++strangers_;
        arriving_.pop_front();
      }
      arriving_.emplace_back(std::move(socket), key_);
      return;
    }
    const int error = errno;
    if (!lacks_descriptors(error) && error != ENOBUFS && error != ENOMEM) return;  // the connection has ended again
    if (!arriving_.empty()) return arriving_.pop_front();  // a stranger may hold the descriptor that a rank needs
    fail(ErrorCode::unavailable,
         "Rank 0 cannot accept the connection of another rank, and needs a descriptor for each of {}, beside its own: {}.",
         size_, errno_text(error));
  }

  // Returns whether the connection needs no further look.
  bool look(Arriving& one, int& missing) {
    switch (one.look()) {
      case Arriving::State::waits: return false;
      case Arriving::State::no_rank: ++strangers_; return true;
      case Arriving::State::other_version: ++other_versions_; return true;
      case Arriving::State::other_secret:
        ++other_secrets_;
        one.turn_away("STRETTO_JOB_SECRET differs between them.");
        return true;
      case Arriving::State::came: break;
    }
    const RankIntroduction who = one.who();
    const std::string refusal = reason_to_refuse(who, one.other_host());
    if (!refusal.empty()) {
      refusal_ = refusal;
      one.turn_away(refusal);
      return true;
    }
    Socket socket = one.admit(self_, identity_);
    here_[who.rank] = {socket.descriptor(), who};
    admitted_(who, std::move(socket));
    --missing;
    return true;
  }

  std::string reason_to_refuse(const RankIntroduction& who, const std::string& elsewhere) const {
    const std::string it = fmt::format("R{}", who.to_string().substr(1));
    if (self_.job_hash != who.job_hash) {
      return fmt::format("{} belongs to the job '{}', and rank 0 to '{}'; give one of the jobs another MASTER_PORT.", it,
                         who.job.data(), self_.job.data());
    }
    if (who.size != size_) return fmt::format("{} believes in {} ranks, rank 0 in {}.", it, who.size, size_);
    if (who.rank <= 0 || who.rank >= size_) return fmt::format("{} is outside 1..{}.", it, size_ - 1);
    if (here_[who.rank].descriptor >= 0) {
      return fmt::format("Rank {} came twice: {} is there, and then came process {} on {}.", who.rank,
                         here_[who.rank].who.to_string(), who.pid, who.host.data());
    }
    if (elsewhere.empty()) return "";
    try {
      require_trust(meeting_, it);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  [[noreturn]] void name_missing(int port) const {
    std::vector<int> missing;
    for (int rank = 1; rank < size_; ++rank) {
      if (here_[rank].descriptor < 0) missing.push_back(rank);
    }
    std::string hint;
    if (other_secrets_ > 0) hint += fmt::format("; {} came with another STRETTO_JOB_SECRET", other_secrets_);
    if (other_versions_ > 0) hint += fmt::format("; {} came with another version of Stretto", other_versions_);
    if (strangers_ > 0) hint += fmt::format("; {} connections were of no ranks", strangers_);
    if (!refusal_.empty()) hint += "; turned away was: " + refusal_;
    fail(ErrorCode::timeout, "Of {} ranks, {} did not come to {}:{} within {} s{}{}", size_, rank_list(missing),
         meeting_.host, port, meeting_.timeout, hint, refusal_.empty() ? "." : "");
  }

  RankIntroduction self_;
  int size_;
  const Meeting& meeting_;
  std::uint64_t identity_;
  const std::function<void(const RankIntroduction&, Socket)>& admitted_;
  Hash key_;
  std::vector<Here> here_;  // by rank
  std::list<Arriving> arriving_;
  int strangers_ = 0;
  int other_secrets_ = 0;
  int other_versions_ = 0;
  std::string refusal_;  // the last
};

}  // namespace

void admit_ranks(const RankIntroduction& self, const Meeting& meeting, std::uint64_t identity,
                 const std::function<void(const RankIntroduction&, Socket)>& admitted) {
  AdmissionDesk(self, meeting, identity, admitted).admit_all();
}

}  // namespace stretto
