#pragma once
#include <array>

#include "collectives/communicator/launched_group.hpp"

namespace stretto {

// Calls on inline streams between ranks of one host, which are over in less time than the bookkeeping of a task takes: they
// run in the calling thread; where they go over mapped memory and need no buffers of their own, without an allocation, a
// lock or a read-modify-write. What cannot go that way says so, and takes the way of all others.
class InlineFastPath {
 public:
  explicit InlineFastPath(Communicator::Group& group) : group_(group) {}

  // True: it is done, and here is its work. Throws what the operation throws.
  bool run(const Call& call, const OperationOptions& options, Work& work);
  bool run(const Operation::State& prepared, Work& work);

  // The next call of this shape need not be looked at so closely.
  void remember(const Operation::State& prepared);

 private:
  struct Shape {
    std::shared_ptr<const PlannedCall> planned;  // none: the place is free
    Call call;                                   // of this shape; its buffers are a barrier's only
    Method method;                               // that was asked for
    double factor = 1;
    std::int64_t read_bytes = 0, written_bytes = 0;
    bool in_place = false;          // whether it can be ...
    std::ptrdiff_t difference = 0;  // ... and how far the input then lies behind the output
  };
  static bool can_pass(const Call& call, const OperationOptions& options);
  // Where the call's shape is, if it is there: another may have the same place.
  Shape& place_of(const Call& call, const Method& method);
  bool run_barrier(const Method& method, Work& work);
  void perform(const PlannedCall& planned, const Call& call, double factor, Work& work);

  Communicator::Group& group_;
  std::array<Shape, 64> shapes_;
  Shape barrier_;  // it has buffers of its own
};

}  // namespace stretto
