#pragma once
#include <array>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "stretto/communicator.hpp"
#include "transport/links.hpp"

// STRETTO_CHECK=1: before an operation moves data, the ranks that take part tell each other what they were called with.
// Where that does not fit together, all ranks of the job get a sentence that names both ranks, operations and counts:
// without it such a call hangs or gives wrong numbers. Costs one message of 256 bytes to each rank that takes part, and one
// back.
namespace stretto {

// What one rank tells another about one operation.
struct Announcement {
  std::int64_t count = 0;         // as the call says; in uneven all_to_all, what goes to the listener
  std::int64_t back = 0;          // in uneven all_to_all, what is expected from the listener
  std::uint64_t counts_hash = 0;  // of uneven shares, which all ranks give alike
  std::uint64_t method_hash = 0;  // of the method and the quantization that the caller asked for
  std::int32_t root = 0;
  std::int32_t caller = 0;  // rank
  std::uint8_t collective = 0;
  std::uint8_t dtype = 0;
  std::uint8_t op = 0;
  std::uint8_t uneven = 0;
  std::uint8_t refused = 0;  // the caller's own arguments were wrong: it will not take part
  std::uint8_t alone = 0;    // the caller does nothing else on this communicator until this is over
  std::array<char, 210> text{};
};

// One operation on its way to being compared. The call must outlive it.
struct CheckedCall {
  const Call* call = nullptr;
  Method method;          // that was asked for ...
  std::string quantized;  // ... and the quantization, in words; empty where there is none
  bool alone = true;      // on its communicator
  std::string refusal;
};

// Of it, what all ranks must give alike.
std::string text_of(const Quantization& quantization);

// Of one communicator: announcements on their way. Used in the communicator's turn, by one thread at a time.
class CallCheck {
 public:
  CallCheck(Network& network, Links& links) : network_(network), links_(links) {}

 private:
  friend class CheckRun;
  struct Peer {
    std::deque<Announcement> outgoing;  // the first is being sent
    Transfer sending, receiving;
    Announcement incoming;
    bool receives = false;             // into incoming
    std::deque<Announcement> arrived;  // and not yet matched
  };
  bool progress(int peer, bool wants_more);

  Network& network_;
  Links& links_;
  std::uint64_t operations_ = 0;
  std::map<int, Peer> peers_;
};

// The comparison of one operation, as something that progresses beside others.
class CheckRun {
 public:
  CheckRun(CallCheck& check, const CheckedCall& checked, const std::string& communicator);
  ~CheckRun();
  CheckRun(const CheckRun&) = delete;
  CheckRun& operator=(const CheckRun&) = delete;

  // Throws Error(invalid_argument), and tells all ranks, where the calls do not fit.
  bool advance();
  bool finished() const { return waiting_for_.empty() && sent(); }
  std::vector<int> awaited() const { return waiting_for_; }  // members

 private:
  bool sent() const;
  Announcement announcement(int listener) const;
  bool take(std::size_t listener);
  [[noreturn]] void refuse(const Announcement& mine, const Announcement& theirs) const;

  CallCheck& check_;
  const CheckedCall& checked_;
  std::string communicator_;
  std::vector<int> listeners_;
  std::vector<Announcement> mine_;  // for each of them
  std::vector<int> waiting_for_;
};

}  // namespace stretto
