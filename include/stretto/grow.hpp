#pragma once
#include <string>

#include "stretto/launch.hpp"

namespace stretto {

// Collective over the members, and over ranks that join them: processes or threads that call connect(rank, ranks, point)
// with one of the ranks from members.size() on. Returns a communicator of a job of its own of all `ranks` ranks, in which
// the members keep their ranks. As NCCL's ncclCommGrow, and the counterpart of Job::shrink(): a job that has lost a rank
// shrinks, and grows when another one is there to take its place. State is the program's: it travels by broadcast(), or by a
// Move.
//
// point: the same on all ranks, as for connect(): rank 0 has made it by open_meeting(), and has its listener, which is
// closed in any case. A rank that joins must know the secret. The members' job stays as it is, and usable; it needs memory
// of its own until it is left. The new job can grow and shrink again; its timeout is STRETTO_TIMEOUT, not the members' own.
//
// Throws Error(invalid_argument), on all members, if they do not give the same number of ranks and the same port, or no more
// ranks than there are members. If some rank does not come within the meeting's timeout, rank 0 throws Error(timeout),
// which names it, and the others throw, too; a meeting point serves one call. Members that grow() has failed for are bound
// to the cores that they were bound to before. Cost: as to start a job.
STRETTO_API Communicator grow(const Communicator& members, int ranks, const MeetingPoint& point,
                              const std::string& name = "world");

}  // namespace stretto
