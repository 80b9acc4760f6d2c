#pragma once
#include "collectives/plans/generators.hpp"

// Ranks of one host that read and write each other's memory. A rank offers what others want, signals, and waits for theirs:
// by packet and staged it offers a copy in scratch, by pull its input itself. A last signal says that everything is read; a
// packet needs none, since its slot is kept.
namespace stretto::plans {

inline bool copies(const PlanRequest& request) { return request.method.algorithm != Algorithm::pull; }
inline bool closes(const PlanRequest& request) { return request.method.algorithm != Algorithm::packet; }

class SharedPlan : public PlanBuilder {
 public:
  explicit SharedPlan(const PlanRequest& request) : PlanBuilder(request), request_(request) {}

  // Where others find that part of this rank's input which it has offered.
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

  void tell() {
    next_round();
    signal();
    next_round();
  }
  // Rotated, so that not all read from the same rank.
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

  // Nobody's memory is touched any more.
  void close() {
    if (!closes(request_)) return;
    tell();
    wait_for_all();
  }
  // The root alone has read from the others.
  void close_behind_root() {
    if (!closes(request_)) return;
    tell();
    if (request_.rank != request_.root) wait(request_.root);
  }
  // Everybody has read from the root alone.
  void close_before_root() {
    if (!closes(request_)) return;
    tell();
    if (request_.rank == request_.root) wait_for_all();
  }

 private:
  const PlanRequest& request_;
};

inline Slice share_in(const Shares& shares, int rank) { return input(shares.begin(rank), shares.length(rank)); }
inline Slice share_out(const Shares& shares, int rank) { return output(shares.begin(rank), shares.length(rank)); }

// Of one rank.
inline Plan alone(const PlanRequest& request) {
  PlanBuilder plan(request);
  plan.copy(input(0, input_count(request)), output(0, output_count(request)));
  return plan.finish();
}

// What each algorithm counts as: by pull, what is read from others goes over the link, since it may go through the kernel.
inline Cost of_reads(const PlanRequest& request, double elements) {
  return copies(request) ? Cost{0, 0, 0, elements} : Cost{0, 0, elements, 0};
}
inline Cost of_reduction(const PlanRequest& request, double elements) {  // of all vectors
  const double work = (request.size - 1) * elements;
  return {0, 0, copies(request) ? 0 : work, work};
}
inline Cost of_copies(double elements) { return {0, 0, 0, elements}; }
inline Cost of_offer(const PlanRequest& request, double elements) { return of_copies(copies(request) ? elements : 0); }
// A signal and the waits for it: a store and some looks, which beside alpha cost nothing, whatever a message does.
constexpr Cost one_phase{1, 0, 0, 0};
inline Cost of_closing(const PlanRequest& request) { return closes(request) ? one_phase : Cost{}; }

}  // namespace stretto::plans
