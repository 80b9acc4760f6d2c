#include "collectives/call_check.hpp"

#include <xxhash.h>

#include <algorithm>
#include <array>

#include "core/fail.hpp"
#include "core/setting_values.hpp"

namespace stretto {
namespace {

bool is_message(Collective collective) { return collective == Collective::send || collective == Collective::recv; }

// Whether two ranks' calls are two ends of one operation, as far as its kind goes.
bool meet(Collective mine, Collective theirs) {
  if (mine == Collective::send) return theirs == Collective::recv;
  if (mine == Collective::recv) return theirs == Collective::send;
  return !is_message(theirs);
}

std::string text_of(const Announcement& call) {
  const auto collective = static_cast<Collective>(call.collective);
  std::string text = name(collective);
  if (collective != Collective::barrier) {
    const std::string amount = call.uneven != 0 ? "uneven counts" : fmt::format("{}", call.count);
    text += fmt::format(" of {} {}", amount, name(static_cast<DType>(call.dtype)));
  }
  if (reduces(collective)) text += fmt::format(" ({})", name(static_cast<ReduceOp>(call.op)));
  if (has_root(collective)) text += fmt::format(" with root {}", call.root);
  if (is_message(collective)) text += fmt::format(" {} rank {}", collective == Collective::send ? "to" : "from", call.root);
  if (call.algorithm != 0) text += fmt::format(" by {}", name(static_cast<Algorithm>(call.algorithm)));
  if (call.refused != 0) text += ", which was refused there for its arguments";
  return text;
}

bool agree(const Announcement& mine, const Announcement& theirs) {
  const auto collective = static_cast<Collective>(mine.collective);
  if (mine.dtype != theirs.dtype || mine.refused != theirs.refused) return false;
  if (is_message(collective)) return mine.count == theirs.count;
  if (mine.collective != theirs.collective || mine.uneven != theirs.uneven || mine.algorithm != theirs.algorithm)
    return false;
  if (reduces(collective) && mine.op != theirs.op) return false;
  if (has_root(collective) && mine.root != theirs.root) return false;
  if (collective == Collective::all_to_all && mine.uneven != 0) {
    return mine.count == theirs.back && mine.back == theirs.count;
  }
  return mine.count == theirs.count && mine.counts_hash == theirs.counts_hash;
}

}  // namespace

std::vector<int> CallCheck::listeners(const Call& call) const {
  const Membership& members = links_.membership();
  const int size = static_cast<int>(members.job_ranks.size());
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) {
    if (rank != members.rank && (!is_message(call.collective) || rank == call.root)) ranks.push_back(rank);
  }
  return ranks;
}

Announcement CallCheck::announcement(const Subject& subject, int listener) const {
  const Call& call = *subject.call;
  Announcement result;
  result.count = call.count;
  result.number = number_;
  result.root = call.root;
  result.caller = links_.membership().rank;
  result.collective = static_cast<std::uint8_t>(call.collective);
  result.dtype = static_cast<std::uint8_t>(call.dtype);
  result.op = static_cast<std::uint8_t>(call.op);
  result.algorithm = static_cast<std::uint8_t>(subject.options->method.algorithm);
  result.refused = subject.refused ? 1 : 0;
  if (call.counts.empty()) return result;
  result.uneven = 1;
  if (call.collective != Collective::all_to_all) {
    result.counts_hash = XXH3_64bits(call.counts.data(), call.counts.size() * sizeof call.counts[0]);
  } else if (!subject.refused) {
    result.count = call.counts[listener];
    result.back = call.receive_counts[listener];
  }
  return result;
}

// One message each way, either of which may be left out.
void CallCheck::exchange(int peer, Announcement* incoming, const Announcement* outgoing) {
  Link& link = links_.to(peer, Links::check_lane);
  Transfer in;
  Transfer out;
  if (incoming != nullptr) {
    in.destination = reinterpret_cast<std::byte*>(incoming);
    in.bytes = sizeof *incoming;
  }
  if (outgoing != nullptr) {
    out.source = reinterpret_cast<const std::byte*>(outgoing);
    out.bytes = sizeof *outgoing;
  }
  Waiter waiter(network_.wait_policy(), network_.segment().bell());
  const double timeout = number_setting("STRETTO_TIMEOUT");
  while (!in.complete() || !out.complete()) {
    bool moved = false;
    if (!in.complete()) moved |= link.progress(in);
    if (!out.complete()) moved |= link.progress(out);
    if (moved) {
      waiter.moved();
      continue;
    }
    network_.job().check();
    if (waiter.idle_seconds() > timeout) {
      link.cancel(in);
      link.cancel(out);
      fail(ErrorCode::timeout, "Rank {} waited {} s for rank {} to say what it was called with.", network_.job().rank(),
           timeout, links_.membership().job_ranks[peer]);
    }
    waiter.pause();
  }
}

void CallCheck::announce(const std::vector<Subject>& subjects) {
  ++number_;
  std::map<int, std::vector<Announcement>> outgoing;
  for (const Subject& subject : subjects) {
    for (const int listener : listeners(*subject.call)) outgoing[listener].push_back(announcement(subject, listener));
  }
  for (auto& [listener, announcements] : outgoing) {
    for (std::size_t i = 0; i < announcements.size(); ++i) {
      announcements[i].more = static_cast<std::uint8_t>(std::min<std::size_t>(255, announcements.size() - 1 - i));
      exchange(listener, nullptr, &announcements[i]);
    }
  }
}

void CallCheck::receive(int peer) {
  Announcement arrived;
  exchange(peer, &arrived, nullptr);
  Inbox& inbox = inboxes_[peer];
  inbox.unmatched.push_back(arrived);
  inbox.complete = arrived.more == 0;
}

void CallCheck::compare(const std::vector<Subject>& subjects, const std::string& communicator) {
  const auto refuse = [&](const Announcement& mine, const Announcement& theirs) {
    fail(ErrorCode::invalid_argument,
         "Rank {} called {} where rank {} called {}, in operation {} of communicator '{}'; all its ranks must make the same "
         "calls in the same order.",
         mine.caller, text_of(mine), theirs.caller, text_of(theirs), number_, communicator);
  };
  for (std::size_t s = 0; s < subjects.size(); ++s) {
    const Collective collective = subjects[s].call->collective;
    for (const int peer : listeners(*subjects[s].call)) {
      const Announcement mine = announcement(subjects[s], peer);
      Inbox& inbox = inboxes_[peer];
      const auto theirs = [&] {
        return std::find_if(inbox.unmatched.begin(), inbox.unmatched.end(), [&](const Announcement& other) {
          return meet(collective, static_cast<Collective>(other.collective));
        });
      };
      while (theirs() == inbox.unmatched.end()) {
        // Everything that the peer is doing waits for this rank; if none of it is among what this rank still does, both
        // would wait forever.
        const auto known = [&](const Announcement& other) {
          return std::any_of(subjects.begin() + static_cast<std::ptrdiff_t>(s), subjects.end(), [&](const Subject& subject) {
            return meet(subject.call->collective, static_cast<Collective>(other.collective));
          });
        };
        if (inbox.complete && !inbox.unmatched.empty() &&
            std::none_of(inbox.unmatched.begin(), inbox.unmatched.end(), known)) {
          refuse(mine, inbox.unmatched.front());
        }
        receive(peer);
      }
      const auto found = theirs();
      if (!agree(mine, *found)) refuse(mine, *found);
      inbox.unmatched.erase(found);
    }
  }
}

}  // namespace stretto
