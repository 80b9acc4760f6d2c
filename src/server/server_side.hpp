#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
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

  void serve();  // until the last worker has left
  // Whether all workers have left. A loss does not matter then.
  bool is_over() const { return over_; }

  // By part, in the order of tables: whether this server has its values.
  std::vector<std::int64_t> holdings() const;
  // After LiveRanks::go_on(). holdings: of all ranks that are left, by server.
  void resume(const std::map<int, std::vector<std::int64_t>>& holdings);

 private:
  using PartKey = ServedLayout::PartKey;
  struct Copy {
    std::unique_ptr<ServedPart> part;                // null until its values have come
    std::optional<int> before, behind;               // servers of the chain; workers talk to the one without any before it
    bool behind_lacks_part = false;                  // the server behind must get the values before any update
    std::int64_t passed_on = 0;                      // updates
    std::int64_t acknowledged = 0;                   // updates, to the server before
    std::vector<std::int64_t> acknowledged_to = {};  // pushes, by worker
  };

  std::unique_ptr<ServedPart> make_part(const PartKey& key) const;
  void link(const PartKey& key, Copy& copy) const;
  void handle(const ReceivedMessage& message);
  Tensor with_keys(const ReceivedMessage& message, const PartKey& key);
  void take_from_worker(const ReceivedMessage& message, const PartKey& key, ServedPart& part);
  void handle_goodbye(int rank);
  void advance(const PartKey& key, Copy& copy);
  void acknowledge(const PartKey& key, Copy& copy);
  void send(int to, const PartKey& key, MessageHead head, const Tensor& bytes = {});
  void give_part_behind(const PartKey& key, Copy& copy);

  const ServedLayout& layout_;
  LiveRanks& live_;
  std::map<PartKey, Copy> copies_;
  std::map<PartKey, FilterChain> filters_;
  std::map<int, KeyCache> known_keys_;  // by worker
  bool over_ = false;
};

}  // namespace stretto
