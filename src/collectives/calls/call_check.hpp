#pragma once
#include <array>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "collectives/execution/execution.hpp"
#include "stretto/communicator.hpp"
#include "transport/links.hpp"

// STRETTO_CHECK=1: before an operation moves data, the ranks that take part tell each other their arguments. If
// the calls do not fit together, all ranks of the job get a sentence that names both ranks, operations and counts; without
// the check such calls hang or give wrong numbers. Costs one message of 256 bytes to each rank that takes part, and one
// back.
namespace stretto {

// The message of one rank to another about one operation.
struct CallAnnouncement {
  std::int64_t count = 0;         // as the call says; in uneven all_to_all, the count for the receiver of this message
  std::int64_t back = 0;          // in uneven all_to_all, the count expected from it
  std::uint64_t counts_hash = 0;  // of uneven shares, for which all ranks must give the same counts
  std::uint64_t method_hash = 0;  // of the method and the quantization that the caller asked for
  std::int32_t root = 0;
  std::int32_t caller = 0;  // rank
  std::uint8_t collective = 0;
  std::uint8_t dtype = 0;
  std::uint8_t op = 0;
  std::uint8_t uneven = 0;
  std::uint8_t refused = 0;  // the caller's own arguments were wrong: it will not take part
  std::uint8_t alone = 0;    // the caller does nothing else on this communicator until this call is over
  std::array<char, 210> text{};
};

// A call that is to be compared. The call must outlive it.
struct CheckedCall {
  const Call* call = nullptr;
  Method method;          // as the caller asked for it
  std::string quantized;  // the quantization in words, as far as it must be the same on all ranks; empty if there is none
  int servers = 0;        // as OperationOptions has it
  CallSite site = {};     // of the call
  bool alone = true;      // the only operation in flight on its communicator
  std::string refusal;    // why this rank refused the call; empty if it did not
};
CheckedCall checked_call(const Call& call, const OperationOptions& options);

// The announcements of one communicator that are in flight. Used in the communicator's turn, by one thread at a time.
class CallCheck {
 public:
  // links must outlive this object. communicator: its name.
  CallCheck(Links& links, std::string communicator) : links_(links), communicator_(std::move(communicator)) {}

 private:
  friend class CallComparison;
  struct PeerAnnouncements {
    std::deque<CallAnnouncement> outgoing;  // the first is being sent
    Transfer sending, receiving;
    CallAnnouncement incoming;
    bool receives = false;                 // into incoming
    std::deque<CallAnnouncement> arrived;  // not yet matched
  };
  bool progress(int peer, bool wants_more);

  Links& links_;
  std::string communicator_;
  std::uint64_t operations_ = 0;
  std::map<int, PeerAnnouncements> peers_;
};

// The comparison of one call with the other ranks'. It begins with the first advance().
class CallComparison final : public Preamble {
 public:
  CallComparison(CallCheck& check, CheckedCall checked) : check_(check), checked_(std::move(checked)) {}
  ~CallComparison() override;
  CallComparison(const CallComparison&) = delete;
  CallComparison& operator=(const CallComparison&) = delete;

  // Throws Error(invalid_argument), and tells all ranks, if the calls do not fit together.
  bool advance() override;
  bool finished() const override { return finished_; }
  std::vector<int> awaited() const override { return waiting_for_; }

 private:
  void begin();
  bool sent() const;
  CallAnnouncement announcement(int listener) const;
  bool take(std::size_t listener);
  [[noreturn]] void refuse(const CallAnnouncement& mine, const CallAnnouncement& theirs) const;

  CallCheck& check_;
  CheckedCall checked_;
  bool begun_ = false;
  bool finished_ = false;               // stays true, although later calls may announce something to the same peers
  std::vector<int> listeners_;          // the members that take part
  std::vector<CallAnnouncement> mine_;  // for each of `listeners_`
  std::vector<int> waiting_for_;
};

}  // namespace stretto
