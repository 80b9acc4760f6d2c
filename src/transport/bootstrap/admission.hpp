#pragma once
#include <cstdint>
#include <functional>

#include "transport/bootstrap/handshake.hpp"
#include "transport/bootstrap/job.hpp"
#include "transport/bootstrap/socket.hpp"

namespace stretto {

// Rank 0 waits for the other ranks. It reads from all connections at the same time, from each for ten seconds at most. Of
// more than 128 it drops the oldest (a rank that is dropped connects again). Strangers, ranks of other jobs and a second
// process for a rank that is there are turned away, and disturb nothing.
//
// Calls admitted() for each rank that comes. Returns when all have come. Throws Error(timeout) naming those that have not,
// Error(peer_lost) if one that had come has gone.
void admit_ranks(const RankIntroduction& self, const Meeting& meeting, std::uint64_t identity,
                 const std::function<void(const RankIntroduction&, Socket)>& admitted);

}  // namespace stretto
