#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "collectives/communicator/operation.hpp"

namespace stretto {

// What is known of calls that differ in nothing but their buffers, the factor of premul_sum, and their place in the program.
struct CallShape {
  std::shared_ptr<const PlannedCall> planned;  // null: this entry is free
  Call call;                                   // of this shape; its buffers are meaningless, except for a barrier
  Method method;                               // as the caller asked for it
  std::int64_t read_bytes = 0, written_bytes = 0;
  bool can_be_in_place = false;
  std::ptrdiff_t in_place_distance = 0;  // in place, the input begins this many bytes after the output

  bool is_of(const Call& other, const Method& other_method) const {
    return call.collective == other.collective && call.count == other.count && call.dtype == other.dtype &&
           call.op == other.op && call.root == other.root && method == other_method;
  }
};

// The shapes of a communicator's calls, in a hash table with linear probing: calls of equal hashes do not displace each
// other.
class CallShapes {
 public:
  // Null for a shape that is unknown. Valid until the next call of add().
  const CallShape* find(const Call& call, const Method& method) const;
  void add(CallShape shape);  // takes the place of the same shape, if that is known

 private:
  static constexpr std::size_t most = 256;  // shapes; those of a program with more are forgotten and planned anew
  std::size_t place_of(const Call& call, const Method& method) const;  // of the shape, or the free one where it belongs

  std::vector<CallShape> entries_ = std::vector<CallShape>(64);  // a power of two, at most half of them in use
  std::size_t mask_ = entries_.size() - 1;
  std::size_t used_ = 0;
};

inline std::size_t CallShapes::place_of(const Call& call, const Method& method) const {
  std::uint64_t hash = static_cast<std::uint64_t>(call.count) * 16 + static_cast<std::uint64_t>(call.collective);
  hash = hash * 16 + static_cast<std::uint64_t>(call.dtype);
  hash = (hash * 8 + static_cast<std::uint64_t>(call.op)) * 64 + static_cast<std::uint64_t>(call.root);
  hash = (hash * 32 + static_cast<std::uint64_t>(method.algorithm)) * 0x9e3779b97f4a7c15U;
  for (std::size_t place = hash >> 32;; ++place) {
    place &= mask_;
    const CallShape& entry = entries_[place];
    if (!entry.planned || entry.is_of(call, method)) return place;
  }
}

inline const CallShape* CallShapes::find(const Call& call, const Method& method) const {
  const CallShape& entry = entries_[place_of(call, method)];
  return entry.planned ? &entry : nullptr;
}

inline void CallShapes::add(CallShape shape) {
  CallShape& entry = entries_[place_of(shape.call, shape.method)];
  if (entry.planned) {
    entry = std::move(shape);
    return;
  }
  if (used_ == most) {
    entries_.assign(entries_.size(), {});
    used_ = 0;
  } else if (2 * (used_ + 1) > entries_.size()) {
    std::vector<CallShape> before = std::exchange(entries_, std::vector<CallShape>(2 * entries_.size()));
    mask_ = entries_.size() - 1;
    for (CallShape& each : before) {
      if (each.planned) entries_[place_of(each.call, each.method)] = std::move(each);
    }
  }
  ++used_;
  entries_[place_of(shape.call, shape.method)] = std::move(shape);
}

}  // namespace stretto
