#include "collectives/calls/call_check.hpp"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "collectives/plan/call_signature.hpp"
#include "core/fail.hpp"

namespace stretto {
namespace {

static_assert(sizeof(CallAnnouncement) == 256, "as the header says");

// Whether the calls of two ranks can be the two ends of one operation, judged by the collectives alone.
bool meet(Collective mine, const CallAnnouncement& theirs) {
  const auto other = static_cast<Collective>(theirs.collective);
  if (mine == Collective::send) return other == Collective::recv;
  if (mine == Collective::recv) return other == Collective::send;
  return !is_message(other);
}

std::string text_of(const CheckedCall& checked) {
  const Call& call = *checked.call;
  PlanRequest request{call.collective, checked.method, 0, 1, call.count, call.root, call.counts, call.receive_counts};
  request.servers = checked.servers;
  std::string text = call_text(request, call.dtype, call.op);
  if (checked.method.algorithm != Algorithm::automatic) text += " by " + to_string(checked.method);
  text += checked.quantized;
  if (const std::string site = checked.site.to_string(); !site.empty()) text += " at " + site;
  if (!checked.refusal.empty()) text += ", which was refused there (" + checked.refusal + ")";
  return text;
}

bool agree(const CallAnnouncement& mine, const CallAnnouncement& theirs) {
  const auto collective = static_cast<Collective>(mine.collective);
  if (mine.refused != theirs.refused || mine.dtype != theirs.dtype) return false;
  if (is_message(collective)) return mine.count == theirs.count;
  if (mine.collective != theirs.collective || mine.uneven != theirs.uneven || mine.method_hash != theirs.method_hash) {
    return false;
  }
  if (reduces(collective) && mine.op != theirs.op) return false;
  if (has_root(collective) && mine.root != theirs.root) return false;
  if (collective == Collective::all_to_all && mine.uneven != 0) {
    return mine.count == theirs.back && mine.back == theirs.count;
  }
  return mine.count == theirs.count && mine.counts_hash == theirs.counts_hash;
}

std::string text_of(const Quantization& quantization) {
  if (quantization.format == QuantizedFormat::none) return {};
  std::string text = fmt::format(", quantized to {}", name(quantization.format));
  const bool other_result = quantization.result != QuantizedFormat::none && quantization.result != quantization.format;
  if (other_result) text += fmt::format(" and its result to {}", name(quantization.result));
  if (quantization.only_if_faster) text += " if that is faster";
  return text;
}

}  // namespace

CheckedCall checked_call(const Call& call, const OperationOptions& options) {
  return {.call = &call,
          .method = options.method,
          .quantized = text_of(options.quantization),
          .servers = options.servers,
          .site = options.site};
}

// Moves announcements to and from a peer. A receive begins only when an operation needs an announcement, which is then sure
// to come. So no receive is left open when the operations are over.
bool CallCheck::progress(int peer, bool wants_more) {
  PeerAnnouncements& state = peers_[peer];
  Link& link = links_.to(peer, Links::check_lane);
  bool moved = false;
  if (!state.outgoing.empty()) {
    if (state.sending.source == nullptr) {
      state.sending = {};
      state.sending.source = reinterpret_cast<const std::byte*>(&state.outgoing.front());
      state.sending.bytes = sizeof(CallAnnouncement);
    }
    moved |= link.progress(state.sending);
    if (state.sending.complete()) {
      state.outgoing.pop_front();
      state.sending = {};
    }
  }
  if (wants_more && !state.receives) {
    state.receiving = {};
    state.receiving.destination = reinterpret_cast<std::byte*>(&state.incoming);
    state.receiving.bytes = sizeof(CallAnnouncement);
    state.receives = true;
  }
  if (state.receives) {
    moved |= link.progress(state.receiving);
    if (state.receiving.complete()) {
      state.arrived.push_back(state.incoming);
      state.receives = false;
    }
  }
  return moved;
}

void CallComparison::begin() {
  begun_ = true;
  const Membership& members = check_.links_.membership();
  for (int rank = 0; rank < static_cast<int>(members.job_ranks.size()); ++rank) {
    const bool concerned = !is_message(checked_.call->collective) || rank == checked_.call->root;
    if (rank != members.rank && concerned) listeners_.push_back(rank);
  }
  ++check_.operations_;
  for (const int listener : listeners_) {
    mine_.push_back(announcement(listener));
    check_.peers_[listener].outgoing.push_back(mine_.back());
  }
  waiting_for_ = listeners_;
}

// A comparison stays unfinished only after an error. The communicator is not used again then, so its links may be cancelled.
CallComparison::~CallComparison() {
  if (!begun_ || finished_) return;
  for (const int peer : listeners_) {
    CallCheck::PeerAnnouncements& state = check_.peers_[peer];
    Link& link = check_.links_.to(peer, Links::check_lane);
    if (state.sending.source != nullptr) link.cancel(state.sending);
    if (state.receives) link.cancel(state.receiving);
    state = {};
  }
}

bool CallComparison::sent() const {
  return std::all_of(listeners_.begin(), listeners_.end(),
                     [&](int listener) { return check_.peers_[listener].outgoing.empty(); });
}

CallAnnouncement CallComparison::announcement(int listener) const {
  const Call& call = *checked_.call;
  const std::string method = fmt::format("{}{} {}", to_string(checked_.method), checked_.quantized, checked_.servers);
  const std::string text = text_of(checked_);
  CallAnnouncement result;
  result.count = call.count;
  result.method_hash = XXH3_64bits(method.data(), method.size());
  result.root = call.root;
  result.caller = check_.links_.membership().rank;
  result.collective = static_cast<std::uint8_t>(call.collective);
  result.dtype = static_cast<std::uint8_t>(call.dtype);
  result.op = static_cast<std::uint8_t>(call.op);
  result.refused = checked_.refusal.empty() ? 0 : 1;
  result.alone = checked_.alone ? 1 : 0;
  std::memcpy(result.text.data(), text.data(), std::min(text.size(), result.text.size() - 1));
  if (call.counts.empty()) return result;
  result.uneven = 1;
  if (call.collective != Collective::all_to_all) {
    result.counts_hash = XXH3_64bits(call.counts.data(), call.counts.size() * sizeof call.counts[0]);
  } else if (checked_.refusal.empty()) {
    result.count = call.counts[listener];
    result.back = call.receive_counts[listener];
  }
  return result;
}

bool CallComparison::advance() {
  if (!begun_) begin();
  bool moved = false;
  for (std::size_t i = 0; i < listeners_.size(); ++i) {
    auto waiting = std::find(waiting_for_.begin(), waiting_for_.end(), listeners_[i]);
    if (waiting != waiting_for_.end() && take(i)) {
      waiting_for_.erase(waiting);
      waiting = waiting_for_.end();
      moved = true;
    }
    moved |= check_.progress(listeners_[i], waiting != waiting_for_.end());
  }
  finished_ = waiting_for_.empty() && sent();
  return moved;
}

// Takes the listener's announcement of this operation, if it has come.
bool CallComparison::take(std::size_t listener) {
  std::deque<CallAnnouncement>& arrived = check_.peers_[listeners_[listener]].arrived;
  const CallAnnouncement& mine = mine_[listener];
  const auto theirs = std::find_if(arrived.begin(), arrived.end(),
                                   [&](const CallAnnouncement& other) { return meet(checked_.call->collective, other); });
  if (theirs == arrived.end()) {
    // The peer waits for this rank in another operation, and this rank waits for the peer in this one: both would wait
    // forever.
    if (mine.alone != 0 && !arrived.empty() && arrived.front().alone != 0) refuse(mine, arrived.front());
    return false;
  }
  if (!agree(mine, *theirs)) refuse(mine, *theirs);
  arrived.erase(theirs);
  return true;
}

void CallComparison::refuse(const CallAnnouncement& mine, const CallAnnouncement& theirs) const {
  const std::string sentence = fmt::format(
      "Rank {} called {} where rank {} called {}, in operation {} of communicator '{}'; all its ranks must make the same "
      "calls in the same order.",
      mine.caller, mine.text.data(), theirs.caller, theirs.text.data(), check_.operations_, check_.communicator_);
  check_.links_.network().job().abort(sentence);  // also informs the ranks whose calls were correct
  throw Error(ErrorCode::invalid_argument, sentence);
}

}  // namespace stretto
