#include "transport/tell_members.hpp"

#include <algorithm>

#include "core/fail.hpp"
#include "transport/network.hpp"

namespace stretto {
namespace {

struct Conversation {  // with one member
  int member = 0;
  Link* link = nullptr;
  Transfer sending, receiving;
  bool done() const { return sending.complete() && receiving.complete(); }
};

}  // namespace

std::vector<Bytes> tell_members(Links& links, const Bytes& mine) {
  const Membership& members = links.membership();
  std::vector<Bytes> said(members.job_ranks.size(), Bytes(mine.size()));
  said[members.rank] = mine;
  std::vector<Conversation> conversations;
  for (int member = 0; member < static_cast<int>(said.size()); ++member) {
    if (member == members.rank || mine.empty()) continue;
    Conversation& with = conversations.emplace_back();
    with.member = member;
    with.link = &links.to(member, Links::check_lane);
    with.sending.source = mine.data();
    with.receiving.destination = said[member].data();
    with.sending.bytes = with.receiving.bytes = mine.size();
  }
  Network& network = links.network();
  try {
    forget_looks();
    Waiter waiter(links.wait_policy(), network.segment().bell());
    while (true) {
      bool moved = false;
      for (Conversation& with : conversations) {
        if (!with.sending.complete()) moved |= with.link->progress(with.sending);
        if (!with.receiving.complete()) moved |= with.link->progress(with.receiving);
      }
      const auto open =
          std::find_if(conversations.begin(), conversations.end(), [](const auto& one) { return !one.done(); });
      if (open == conversations.end()) return said;
      if (moved) {
        waiter.moved();
        continue;
      }
      if (waiter.pause_briefly()) continue;
      network.job().check();
      if (waiter.idle_seconds() > network.timeout()) {
        fail(ErrorCode::timeout,
             "Rank {} has waited {} s (STRETTO_TIMEOUT) for rank {} to set up the communication of their GPUs, which all "
             "members of a communicator do together.",
             members.job_ranks[members.rank], network.timeout(), members.job_ranks[open->member]);
      }
      waiter.pause();
    }
  } catch (...) {
    for (Conversation& with : conversations) {
      if (!with.sending.complete()) with.link->cancel(with.sending);
      if (!with.receiving.complete()) with.link->cancel(with.receiving);
    }
    throw;
  }
}

}  // namespace stretto
