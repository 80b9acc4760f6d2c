#include "stretto/grow.hpp"

#include <unistd.h>

#include "collectives/communicator/group.hpp"
#include "core/fail.hpp"
#include "stretto/require_same.hpp"

namespace stretto {

Communicator grow(const Communicator& members, int ranks, const MeetingPoint& point, const std::string& name) {
  try {
    require_same(members, {{"the number of ranks to grow to", std::to_string(ranks)},
                           {"the port to meet at", std::to_string(point.port)}});
    require(ranks > members.size(),
            "A job of {} ranks cannot grow to {}; give the number of all ranks, with those that join.", members.size(),
            ranks);
  } catch (...) {
    if (point.listener >= 0) close(point.listener);
    throw;
  }
  // The members' claims on their cores would keep these from the larger job.
  if (point.may_pin) Communicator::Group::of(members).context().network().unpin();
  return connect(members.rank(), ranks, point, name);
}

}  // namespace stretto
