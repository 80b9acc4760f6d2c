#pragma once
#include <cstdint>
#include <deque>
#include <vector>

#include "server/push_clocks.hpp"
#include "stretto/server.hpp"

namespace stretto {

// The values of a part at its server: what has been pushed, which versions there are, and who waits for which. It knows
// nothing of messages.
class ServedPart {
 public:
  ServedPart(const Tensor& values, int workers, Consistency consistency, ServerUpdate update);

  // clock: the worker's pushes before this one; they come in order. pushed: of the values' size and type.
  void push(int worker, std::int64_t clock, const Tensor& pushed);
  struct Pull {
    int worker = 0;
    std::int64_t clock = 0;
    std::uint64_t request = 0;
  };
  void pull(const Pull& pull) { waiting_.push_back(pull); }

  void leave(int worker) { pushes_.leave(worker); }

  // Returns each pull whose version is there, once. The values stay as they are. Throws Error(peer_lost) if another pull
  // waits for a worker that has left.
  struct Answer {
    Pull pull;
    Tensor values;
    std::int64_t version = 0;
  };
  std::vector<Answer> answers();

  std::int64_t version() const { return version_; }                             // updates so far
  const std::vector<std::int64_t>& clocks() const { return pushes_.clocks(); }  // by worker: pushes
  std::size_t versions_kept() const { return versions_.size(); }

 private:
  void apply(const Tensor& pushed);
  void apply_all(const std::vector<Tensor>& pushed);
  void forget_versions();

  Consistency consistency_;
  ServerUpdate update_;
  std::deque<Tensor> versions_;  // the last one is that of version_
  std::int64_t version_ = 0;
  bool answered_ = false;  // someone has the newest values, which must then not change
  PushClocks<Tensor> pushes_;
  std::vector<Pull> waiting_;
};

}  // namespace stretto
