#include "stretto/grow.hpp"

#include <unistd.h>

#include <optional>

#include "collectives/communicator/group.hpp"
#include "core/fail.hpp"
#include "stretto/require_same.hpp"
#include "transport/bootstrap/processes/taken_place.hpp"

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
  if (!point.may_pin) return connect(members.rank(), ranks, point, name);
  // The members' claims on their cores would keep these from the larger job.
  const std::optional<TakenPlace> before = place_taken();
  Communicator::Group::of(members).context().network().unpin();
  try {
    return connect(members.rank(), ranks, point, name);
  } catch (...) {
    return_to(before);
    throw;
  }
}

}  // namespace stretto
