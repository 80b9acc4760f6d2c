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

// What a server does: it hands messages to the parts that it has a copy of, passes their updates on along the chain of
// servers, and sends what the parts answer.
class ServerSide {
 public:
  // layout and live must outlive the object.
  ServerSide(const ServedLayout& layout, LiveRanks& live);

  // Until the last worker has left. answer: of WorkerSide::ask().
  void serve(const ServerSet::Answer& answer);
  void join();
  // Whether all workers have left. A loss does not matter then.
  bool is_over() const { return over_; }
  // Behind a loss: handles what has come before it, which may be the last that the server waited for.
  void take_what_has_come();

  // The server that workers talk to, the first of the part's chain; of those that have joined as far as this one knows.
  int server_of(const ServedLayout::PartKey& key) const;

  // Which parts it has, their clocks, copies and queues, as text. From any thread.
  std::string state() const;

  // By part, in the order of tables: whether this server has its values.
  std::vector<std::int64_t> holdings() const;
  // After LiveRanks::go_on(). holdings: of all ranks that are left, by server.
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
    // A part that comes from, or goes to, another server, because one has joined. What a worker has sent to the server
    // before comes through that one, up to `switched`; what the worker sends here meanwhile is held back.
    struct Moved {
      std::optional<int> to;                          // it is gone; what comes for it is passed on
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
  void take_from_worker(const ReceivedMessage& message, const PartKey& key, ServedPart& part);
  // Of servers that join.
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
