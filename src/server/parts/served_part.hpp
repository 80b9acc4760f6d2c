#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/parts/keyed_rows.hpp"
#include "server/parts/push_clocks.hpp"
#include "stretto/server.hpp"
#include "transport/bootstrap/packing.hpp"

namespace stretto {

// Pushes that are applied at once. All copies of a part apply the same updates in the order of their numbers, and so have
// the same bits.
struct PartUpdate {
  static constexpr int all_workers = -1;
  std::int64_t number = 0;   // of updates before this one
  int worker = all_workers;  // whose push it is, or the sum of all workers' pushes of a clock
  int pushes = 1;            // in the sum
  KeyedRows pushed;
};

// A part of a table at one of its servers, with the pushes that have come, the updates that they make, and the pulls that
// wait for a version. The first server makes updates of pushes; the other copies get them. An update may be applied when all
// later servers of the chain have it, so that no value that a worker has read is lost. A part knows nothing of messages.
class ServedPart {
 public:
  // acknowledges: whether workers wait until what they push has been applied.
  ServedPart(int workers, Consistency consistency, bool acknowledges);
  virtual ~ServedPart() = default;
  ServedPart(const ServedPart&) = delete;
  ServedPart& operator=(const ServedPart&) = delete;

  // ---- at the first server

  // clock: the worker's pushes before this one; they come in order. Returns a sentence for the worker if the part cannot
  // take its rows, and nothing otherwise. The push then counts as one without rows, so that nobody waits for it for ever.
  // One that has come before is ignored, and gets the sentence that it got then, here or at a server that is lost.
  std::string push(int worker, std::int64_t clock, KeyedRows pushed);
  struct Pull {
    int worker = 0;
    std::int64_t clock = 0;
    std::uint64_t request = 0;
    std::vector<std::uint64_t> keys = {};
    bool settled = false;                    // waits for all pushes of clocks below `clock`, and gets the newest version
    std::vector<std::int64_t> lengths = {};  // KeyedRows
  };
  void pull(Pull pull) { waiting_.push_back(std::move(pull)); }
  void forget_pulls() { waiting_.clear(); }
  void leave(int worker) { pushes_.leave(worker); }  // it pushes no more
  void lose(int worker);                             // its pushes are not waited for
  // Returns each pull whose version is there, or can no longer come, once. The values stay as they are.
  struct Answer {
    Pull pull;
    Tensor values;
    std::int64_t version = 0;
    std::string refusal = {};  // a sentence instead of values if the part has no such rows, or no memory for them
    std::optional<PushClocks::Left> left = {};  // instead of values: for whose pushes the pull would wait
  };
  std::vector<Answer> answers();
  // Pushes of all workers that a pull waits for.
  std::int64_t needed_pushes(const Pull& pull) const {
    return pull.settled ? pull.clock : least_version(consistency_, pull.clock);
  }
  // The pushes of a worker, from the clock `left.pushes` on, that wait for those of a worker that has left. Returned once
  // for each push for whose acknowledgement its worker waits.
  struct StuckPushes {
    int worker = 0;
    PushClocks::Left left;
  };
  std::vector<StuckPushes> stuck_pushes();
  std::int64_t clock(int worker) const { return pushes_.clock(worker); }  // its pushes that have come
  std::size_t waiting_pushes() const { return pushes_.kept() + to_apply_.size(); }
  std::size_t waiting_pulls() const { return waiting_.size(); }
  std::int64_t applied(int worker) const { return applied_[static_cast<std::size_t>(worker)]; }  // its pushes, in the values

  // ---- at all servers

  std::int64_t version() const { return version_; }                      // updates applied
  std::int64_t end() const { return version_ + std::ssize(to_apply_); }  // updates made or received
  const PartUpdate& update(std::int64_t number) const { return to_apply_[static_cast<std::size_t>(number - version_)]; }
  // Takes the pushes and pulls that wait out of this part. With saved(), another server goes on from them.
  struct Waiting {
    struct Push {
      int worker = 0;
      std::int64_t clock = 0;
      KeyedRows rows;
    };
    std::vector<Push> pushes;  // by worker, in the order of clocks
    std::vector<Pull> pulls;
  };
  Waiting take_waiting();
  void append(PartUpdate update);  // one that is there is ignored; throws if others are missing before it
  // Refusals of pushes that may come again, by worker and clock. All copies must have a push's before the update that counts
  // it, whatever lengths they know and memory they find.
  using Refusals = std::map<std::pair<int, std::int64_t>, std::string>;
  const Refusals& refusals() const { return refusals_; }
  void note_refusal(int worker, std::int64_t clock, const std::string& sentence);  // none: the worker has learned of it
  void apply_below(std::int64_t number);

  // The newest values and the function's state of a dense table. Empty for a sparse one.
  virtual Tensor values() const { return {}; }
  virtual std::vector<Tensor> state() const { return {}; }

  Bytes saved() const;            // the state at version(), and all refusals
  void load(const Bytes& saved);  // of another copy

 protected:
  const Consistency& consistency() const { return consistency_; }
  // The oldest version for which a worker may still ask.
  std::int64_t oldest_version() const { return pushes_.least() - consistency_.delay; }

 private:
  virtual void check(int worker, const KeyedRows& pushed) const = 0;
  // Why the part can have no rows of these lengths, as a sentence that names who gives them; empty if it can. It looks at
  // all keys, and makes room for new ones, but no rows.
  virtual std::string refusal(int /*worker*/, const std::vector<std::uint64_t>& /*keys*/,
                              const std::vector<std::int64_t>& /*lengths*/) {
    return {};
  }
  virtual void note(const KeyedRows& /*pushed*/) {}  // a new push or update, before it is applied
  virtual KeyedRows sum(const std::vector<KeyedRows>& pushes) const = 0;
  virtual void apply(const PartUpdate& update) = 0;
  virtual void read(Answer& answer, std::int64_t versions_before_last) = 0;  // its values, or its refusal
  virtual void save_to(std::vector<Bytes>& pieces) const = 0;
  virtual void load_from(const std::vector<Bytes>& pieces) = 0;
  void make_updates();
  bool has_version(const Pull& pull) const;

  Consistency consistency_;
  bool acknowledges_;
  std::int64_t version_ = 0;
  std::deque<PartUpdate> to_apply_;    // from version_ on
  std::vector<std::int64_t> applied_;  // by worker
  PushClocks pushes_;
  std::vector<std::int64_t> told_stuck_;  // by worker: pushes that have come when its stuck ones were last returned
  Refusals refusals_;
  std::vector<Pull> waiting_;
};

// The part of `count` elements from `first` on, or for a sparse table a part of its keys; with its first values.
std::unique_ptr<ServedPart> make_served_part(const ServedTable& table, std::int64_t first, std::int64_t count, int workers,
                                             const Consistency& consistency, bool acknowledges);

}  // namespace stretto
