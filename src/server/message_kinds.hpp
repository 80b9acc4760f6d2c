#pragma once
#include <cstdint>

namespace stretto {

enum MessageKind : std::uint32_t {
  // Workers send these. Each part of a push that also pulls is one message, so that the first parts come back while the last
  // ones leave.
  push_part,
  pull_part,
  push_and_pull_part,
  question_of_worker,  // ServerSet::ask()
  // Servers send these to workers.
  values_of_part,
  // The server's word on a part of a push with rows of any_length is one of these two.
  accepted_push,    // the lengths are right
  refused_request,  // the bytes are the sentence for the worker's caller. Of a pull, instead of values; of a push that
                    // pulls,
                    // whose push is taken
  applied_pushes,   // all copies have the worker's pushes of a part below the clock
  stuck_pushes,     // from the clock on, they wait for those of a worker that has left; the bytes are the sentence
  answer_of_server,
  refused_question,  // instead of an answer; the bytes are the sentence
  // The servers of a part send these to each other.
  saved_part,      // to a new copy; to a server that joins, with the number of the part's moves in `clock`
  update_of_part,  // to the next copy
  copied_updates,  // to the copy before: this one and those behind it have the updates below the clock
  // To the next copy: the push of the worker `request` at the clock was refused with the sentence in the bytes; without
  // bytes, the worker has learned of it. (A message from a worker has the number of its own request there.)
  refused_push,
  // These are sent when a server joins.
  server_joins,   // to all servers
  moved_part,     // to workers: the server `clock` has it from now on, which is the part's `request`-th move
  switched,       // a worker's answer, behind all that it sends there; passed on to the part's new server
  all_have_left,  // to all servers: no worker is left, and all that came before the last round has been passed on
  // The last message of a worker, which pushes and pulls no more, or of a server, which serves no more.
  goodbye
};
// A bit in the kind of a message from a worker, whose keys are then those of its last one (KeyCache).
constexpr std::uint32_t has_cached_keys = 0x100;
// A bit in the kind of a pull that brings the newest version, which has all pushes of the clocks below the message's,
// whatever the table's consistency.
constexpr std::uint32_t is_settled = 0x200;
// A bit in the kind of a push that a server passes on as it has decoded it, without the table's filters.
constexpr std::uint32_t is_decoded = 0x400;
// The worker of a message that a server passes on, plus one, from this bit on.
constexpr int forwarded_shift = 16;

}  // namespace stretto
