#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "stretto/communicator.hpp"
#include "transport/network.hpp"

// STRETTO_CHECK=1: before an operation moves data, the ranks that take part tell each other what they were called with.
// Where that does not fit together, each of them throws a sentence that names both ranks, operations and counts: without it
// such a call hangs or gives wrong numbers. One message of 80 bytes to each peer, and back.
namespace stretto {

// What one rank tells another about one operation.
struct Announcement {
  std::int64_t count = 0;         // as the call says; a single message's, and what goes to the listener in all_to_all_v
  std::int64_t back = 0;          // what the caller expects from the listener in all_to_all_v
  std::uint64_t counts_hash = 0;  // of uneven shares, which all ranks give alike
  std::uint64_t number = 0;       // the caller's operations on this communicator so far
  std::int32_t root = 0;
  std::int32_t caller = 0;  // rank
  std::uint8_t collective = 0;
  std::uint8_t dtype = 0;
  std::uint8_t op = 0;
  std::uint8_t uneven = 0;
  std::uint8_t refused = 0;    // the caller's own arguments were wrong: it will not take part
  std::uint8_t more = 0;       // announcements to this listener that follow and belong to the same group of operations
  std::uint8_t algorithm = 0;  // that the caller asked for
  std::uint8_t unused = 0;
};

// Of one communicator. Used in its turn, by one thread at a time.
class CallCheck {
 public:
  CallCheck(Network& network, Links& links) : network_(network), links_(links) {}

  struct Subject {
    const Call* call;
    const OperationOptions* options;
    bool refused = false;
  };
  // Tells everybody concerned. The subjects are what progresses together on this communicator.
  void announce(const std::vector<Subject>& subjects);
  // Waits for the others' announcements and compares. Throws Error(invalid_argument) where they do not fit.
  void compare(const std::vector<Subject>& subjects, const std::string& communicator);

 private:
  struct Inbox {
    std::vector<Announcement> unmatched;
    bool complete = true;  // nothing more of the last group is to come
  };
  std::vector<int> listeners(const Call& call) const;
  Announcement announcement(const Subject& subject, int listener) const;
  void exchange(int peer, Announcement* incoming, const Announcement* outgoing);
  void receive(int peer);

  Network& network_;
  Links& links_;
  std::uint64_t number_ = 0;
  std::map<int, Inbox> inboxes_;
};

}  // namespace stretto
