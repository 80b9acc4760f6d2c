#pragma once
#include "collectives/plans/generators.hpp"

// Ranks of one host read and write each other's memory. A rank offers the data that others want, signals, and waits for
// their signals. By packet and staged it offers a copy in scratch, which is kept for those that have not read it yet; by
// pull it offers its input itself. If ranks touch each other's buffers, a last signal says that the rank is done with
// them.
namespace stretto::plans {

inline bool copies(const PlanRequest& request) { return request.method.algorithm != Algorithm::pull; }
inline bool closes(const PlanRequest& request) { return touches_buffers(request.method.algorithm); }

class SharedPlan : public PlanBuilder {
 public:
  explicit SharedPlan(const PlanRequest& request) : PlanBuilder(request), request_(request) {}

  // The place where others find this part of this rank's input, which it has offered.
  Slice offered(std::int64_t offset, std::int64_t count) const {
    return copies(request_) ? scratch(offset, count) : input(offset, count);
  }
  void offer(const Slice& part) {
    if (!copies(request_)) return;
    copy(part, offered(part.offset, part.count));
    use_scratch(input_count(request_));
  }
  void offer_all_but(const Slice& own) {
    const std::int64_t end = own.offset + own.count;
    offer(input(0, own.offset));
    offer(input(end, input_count(request_) - end));
  }

  void signal_all() {
    next_round();
    signal();
    next_round();
  }
  // Visits the peers in rotated order, so that not all ranks read from the same one.
  template <class Visit>
  void for_each_peer(Visit visit) const {
    for (int i = 1; i < request_.size; ++i) visit((request_.rank + i) % request_.size);
  }
  void wait_for_all() {
    for_each_peer([&](int peer) { wait(peer); });
    next_round();
  }
  void read_when_told(int peer, const Slice& source, const Slice& destination) {
    wait(peer);
    next_round();
    read(peer, source, destination);
    next_round();
  }

  // After this, no rank touches another rank's memory any more.
  void close() {
    if (!closes(request_)) return;
    signal_all();
    wait_for_all();
  }
  // Like close(), if only the root has read from the others.
  void close_behind_root() {
    if (!closes(request_)) return;
    signal_all();
    if (request_.rank != request_.root) wait(request_.root);
  }
  // Like close(), if all have read from the root only.
  void close_before_root() {
    if (!closes(request_)) return;
    signal_all();
    if (request_.rank == request_.root) wait_for_all();
  }

 private:
  const PlanRequest& request_;
};

inline Slice share_in(const Shares& shares, int rank) { return input(shares.begin(rank), shares.length(rank)); }
inline Slice share_out(const Shares& shares, int rank) { return output(shares.begin(rank), shares.length(rank)); }

// The costs by algorithm. By pull, data that is read from others counts as traffic of the link, since it may go through the
// kernel.
inline Cost of_reads(const PlanRequest& request, double elements) {
  return copies(request) ? Cost{0, 0, 0, elements} : Cost{0, 0, elements, 0};
}
inline Cost of_reduction(const PlanRequest& request, double elements) {  // of all vectors
  const double work = (request.size - 1) * elements;
  return {0, 0, copies(request) ? 0 : work, work};
}
inline Cost of_copies(double elements) { return {0, 0, 0, elements}; }
inline Cost of_offer(const PlanRequest& request, double elements) { return of_copies(copies(request) ? elements : 0); }
// A signal costs one alpha; it has no overhead of a message.
constexpr Cost one_phase{1, 0, 0, 0};
inline Cost of_closing(const PlanRequest& request) { return closes(request) ? one_phase : Cost{}; }

}  // namespace stretto::plans
