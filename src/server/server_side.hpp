#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/filters/filter_chain.hpp"
#include "server/filters/key_cache.hpp"
#include "server/live_ranks.hpp"
#include "server/parts/served_part.hpp"
#include "server/served_layout.hpp"

namespace stretto {

// One server. It hands messages to its copies of parts, passes the parts' updates on along the chain of servers, and sends
// the parts' answers.
class ServerSide {
 public:
  // layout and live must outlive the object.
  ServerSide(const ServedLayout& layout, LiveRanks& live);

  // Blocks until the last worker has left. answer: for the questions of WorkerSide::ask().
  void serve(const ServerSet::Answer& answer);
  void join();
  // Whether all workers have left. A loss does not matter then.
  bool is_over() const { return over_; }
  // Call it behind a loss: it handles the messages that came before the loss; the server may have waited for no others.
  void take_what_has_come();

  // The server that workers talk to: the first of the part's chain, as far as this server knows who has joined.
  int server_of(const ServedLayout::PartKey& key) const;

  // Whether workers talk to this server about the part.
  bool serves(const ServedLayout::PartKey& key) const;

  // This server's parts with their clocks, copies and queues, as text. Any thread may call it.
  std::string state() const;

  // For each part, in the order of tables: 1 if this server has its values.
  std::vector<std::int64_t> holdings() const;
  // Call it after LiveRanks::go_on(). holdings: holdings() of each server that is left.
  void resume(const std::map<int, std::vector<std::int64_t>>& holdings);

 private:
  using PartKey = ServedLayout::PartKey;
  struct Copy {
    std::unique_ptr<ServedPart> part;                // null until its values have come
    std::vector<int> chain;                          // of servers
    std::optional<int> before, behind;               // servers of the chain; workers talk to the one without any before it
    bool behind_lacks_part = false;                  // the server behind must get the values before any update
    std::int64_t passed_on = 0;                      // updates
    std::int64_t acknowledged = 0;                   // updates, to the server before
    std::vector<std::int64_t> acknowledged_to = {};  // pushes, by worker
    // A part that moves from or to another server, because a server has joined. A worker's messages to the part's old
    // server come through it, up to `switched`; the worker's messages to the new server are held back meanwhile.
    struct Moved {
      std::optional<int> to;                          // the new server, to which messages are passed on
      std::vector<bool> told;                         // by worker: it sends nothing more here
      std::vector<bool> comes_directly;               // by worker
      std::vector<std::deque<ReceivedMessage>> held;  // by worker
    };
    std::optional<Moved> moved = {};
    std::int64_t moves = 0;  // of the part, between servers, so far
  };

  std::unique_ptr<ServedPart> make_part(const PartKey& key) const;
  void link(const PartKey& key, Copy& copy) const;
  void handle(const ReceivedMessage& message);
  void handle_and_note(const ReceivedMessage& message);
  void answer_questions();
  Tensor with_keys(const ReceivedMessage& message, const PartKey& key);
  void take_from_worker(const ReceivedMessage& message, const PartKey& key, Copy& copy);
  void note_refusal(const PartKey& key, const Copy& copy, int worker, std::int64_t clock, const std::string& sentence);
  // ---- servers that join
  void note_joined(int server);
  void move_part(const PartKey& key, Copy& copy);
  void take_moved_part(const ReceivedMessage& message, const PartKey& key);
  void take_moving(const ReceivedMessage& message, const PartKey& key, Copy& copy);
  void accept(const ReceivedMessage& message, const PartKey& key, Copy& copy);
  void forward(int worker, MessageHead head, const Tensor& bytes, const PartKey& key, const Copy& copy);
  void end_together();
  void end();
  void handle_goodbye(int rank);
  void advance(const PartKey& key, Copy& copy);
  void acknowledge(const PartKey& key, Copy& copy);
  void send(int to, const PartKey& key, MessageHead head, const Tensor& bytes = {});
  void refuse(int worker, const PartKey& key, std::uint64_t request, const std::string& sentence);
  void give_part_behind(const PartKey& key, Copy& copy);

  const ServedLayout& layout_;
  LiveRanks& live_;
  mutable std::mutex mutex_;  // of what state() reads: copies_ and what follows; not held while the server waits
  Mailbox::Traffic traffic_;
  Mailbox::Queue queue_;
  HashRing ring_;  // of all servers that serve
  std::set<int> joined_;
  std::map<int, int> rounds_;  // of the end: by server, how often it has said all_have_left
  std::map<PartKey, Copy> copies_;
  std::map<PartKey, FilterChain> filters_;
  std::map<int, KeyCache> known_keys_;  // by worker
  ServerSet::Answer answer_;
  std::deque<ReceivedMessage> questions_;  // until the parts that are on their way here have come
  bool over_ = false;
};

}  // namespace stretto
