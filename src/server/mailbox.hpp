#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "stretto/communicator.hpp"
#include "stretto/tensor.hpp"
#include "transport/link.hpp"

namespace stretto {

class Links;

// The head of a message precedes its bytes.
struct MessageHead {
  std::uint64_t bytes = 0;  // that follow; send() sets it
  std::uint32_t kind = 0;
  std::uint32_t table = 0;
  std::int64_t part = 0, clock = 0;
  std::uint64_t request = 0;
};

struct ReceivedMessage {
  int from = 0;
  MessageHead head;
  Tensor bytes;  // u8; empty if there are none
};

// Messages of any size between this rank and some partners of a group, of which the next one may come from any. One thread
// owns a mailbox; no other thread runs for it, and a rank that waits sleeps as in collectives.
//
// Back-pressure: no further message is taken off the links while more than `most_inbox_bytes` have arrived and not been
// received. A sender's bytes then stay where they are: send() keeps their memory and returns at once.
//
// All functions that move bytes throw LinkBroken, at once, when the link to a partner is gone; naming_losses() waits for the
// job's word. Behind lose() of that partner, the mailbox serves the others.
class Mailbox {
 public:
  // Collective over the group, which serves this mailbox alone from then on. Partners name each other.
  Mailbox(Communicator ranks, const std::vector<int>& partners, std::size_t most_inbox_bytes);
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // `bytes` must not change before it is sent: all_sent(). Messages to a rank arrive in this order, but for one with a
  // priority, which passes those of lower priorities that have not begun to leave. One without passes none, nor is passed.
  void send(int to, MessageHead head, const Tensor& bytes = {}, std::optional<int> priority = {});
  bool all_sent() const;
  bool has_sent(std::uint64_t request) const;  // all messages with that number in their heads
  // Blocks until a message has come, and moves what it can meanwhile. Throws the job's error if it has failed.
  ReceivedMessage receive();
  // Likewise, but returns nothing when `enough` says so first.
  std::optional<ReceivedMessage> receive_unless(const std::function<bool()>& enough);
  // Moves what it can without waiting. Throws like receive() if no message has come.
  std::optional<ReceivedMessage> try_receive();
  // Moves all that has come by now: behind it, try_receive() has the last messages of a partner that sends nothing more.
  void take_off_links();
  void send_all();  // blocks until all messages have left
  // That partner sends nothing more: its link is not listened to any longer.
  void close(int partner);
  bool is_open(int partner) const;
  // That partner is lost, or its link: like close(), and what was to be sent to it is dropped. What has come from it stays.
  void lose(int partner);

  struct Traffic {
    std::uint64_t payload_sent = 0, heads_sent = 0, messages_sent = 0;  // bytes, bytes, messages
  };
  const Traffic& traffic() const { return traffic_; }
  struct Queue {
    std::size_t messages = 0, bytes = 0;  // that have come and were not received
  };
  Queue queue() const { return {inbox_.size(), inbox_bytes_}; }

 private:
  struct Outgoing {
    MessageHead head;
    Tensor bytes;
    Transfer transfer;  // of the head, then of the bytes
    bool head_sent = false;
    std::optional<int> priority;
  };
  struct Partner {
    int rank = 0;
    bool open = true;
    std::deque<std::unique_ptr<Outgoing>> outgoing;  // their transfers must not move in memory
    MessageHead head;
    Tensor bytes;
    Transfer transfer;  // of the next head, or of the bytes behind it
    bool receives_bytes = false, waits_for_room = false;
  };
  void forget(const Outgoing& outgoing);
  bool progress();
  bool progress(const Partner& partner, Transfer& transfer);
  ReceivedMessage first_of_inbox();
  bool progress_sends(Partner& partner);
  bool progress_receives(Partner& partner);
  void await_head(Partner& partner);
  void arrived(Partner& partner);
  template <class Done>
  void progress_until(Done done);
  Partner& partner(int rank) const;
  void cancel(Partner& partner);

  Communicator ranks_;
  Links& links_;
  std::size_t most_inbox_bytes_, inbox_bytes_ = 0;
  std::vector<std::unique_ptr<Partner>> partners_;
  std::unordered_map<std::uint64_t, std::size_t> queued_;  // by request: outgoing messages
  std::size_t first_ = 0;                                  // whose link is looked at first: each in turn
  std::deque<ReceivedMessage> inbox_;
  Traffic traffic_;
};

}  // namespace stretto
