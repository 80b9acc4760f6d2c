#pragma once
#include <vector>

#include "transport/job.hpp"

namespace stretto {

class Links;

// Collective over the members of a communicator: what each of them says, by member, over the lane in which calls are
// compared. All say equally many bytes. Throws when a member is lost, or does not come in STRETTO_TIMEOUT seconds.
std::vector<Bytes> tell_members(Links& links, const Bytes& mine);

}  // namespace stretto
