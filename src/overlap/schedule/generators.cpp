// The order of the computations of every stage. Messages are inserted afterwards, alike for all.
#include <algorithm>
#include <array>

#include "core/fail.hpp"
#include "overlap/schedule/limits.hpp"
#include "stretto/overlap/schedule.hpp"

namespace stretto {
namespace {

using Order = std::vector<ActionGroup>;

void put(Order& order, ActionKind kind, int microbatch, int chunk = 0) { order.push_back({{kind, microbatch, chunk}}); }

Order gpipe_order(int microbatches) {
  Order order;
  for (int i = 0; i < microbatches; ++i) put(order, ActionKind::forward, i);
  for (int i = 0; i < microbatches; ++i) put(order, ActionKind::backward, i);
  return order;
}

// Forwards and backwards take turns behind `first` forwards. Both come in Megatron-LM's order: p microbatches through
// chunk 0, the same through chunk 1, and so on, then the next p; backward from the last chunk to the first.
Order interleaved_order(const Schedule& of, int first) {
  const int all = of.microbatches * of.chunks;
  const int round = of.stages * of.chunks;
  const auto microbatch = [&](int k) { return k / round * of.stages + k % of.stages; };
  const auto chunk = [&](int k) { return k % round / of.stages; };
  Order order;
  const auto forward = [&](int k) { put(order, ActionKind::forward, microbatch(k), chunk(k)); };
  const auto backward = [&](int k) { put(order, ActionKind::backward, microbatch(k), of.chunks - 1 - chunk(k)); };
  first = std::min(first, all);
  for (int k = 0; k < first; ++k) forward(k);
  for (int k = first; k < all; ++k) {
    forward(k);
    backward(k - first);
  }
  for (int k = all - first; k < all; ++k) backward(k);
  return order;
}

// One chunk, `first` forwards before the first backward, and at most `late` weight gradients postponed.
Order zero_bubble_order(int microbatches, int first, int late) {
  Order order;
  int forwards = 0;
  const auto forward = [&] {
    if (forwards < microbatches) put(order, ActionKind::forward, forwards++);
  };
  for (int k = 0; k < first; ++k) forward();
  for (int k = 0; k < microbatches; ++k) {
    put(order, ActionKind::backward_input, k);
    if (k >= late) put(order, ActionKind::backward_weight, k - late);
    forward();
  }
  for (int k = std::max(0, microbatches - late); k < microbatches; ++k) put(order, ActionKind::backward_weight, k);
  return order;
}

// Two chunks, placed in a V. With fewer than 2 p - 1 microbatches it is the order of 2 p - 1 without those that are not
// there.
class ZbVOrder {
 public:
  ZbVOrder(int stages, int microbatches, int stage) : microbatches_(microbatches) {
    const int most = std::max(microbatches, 2 * stages - 1);
    for (int k = 0; k < 2 * (stages - stage) - 1; ++k) forward(0);
    for (int k = 0; k < stage; ++k) {
      forward(1);
      forward(0);
    }
    for (int k = 0; k < stages - stage; ++k) {
      forward(1);
      backward(1);
    }
    while (forwards_[1] < forwards_[0] || forwards_[0] < most) {
      if (forwards_[0] < most) forward(0);
      backward(0);
      forward(1);
      backward(1);
    }
    for (int k = 0; k < stage; ++k) {
      next(ActionKind::backward_input, 0, inputs_);
      next(ActionKind::backward_input, 1, inputs_);
    }
    for (int k = 0; k < stages - stage; ++k) backward(0);
    for (const int chunk : {1, 0}) {
      while (weights_[chunk] < inputs_[chunk]) next(ActionKind::backward_weight, chunk, weights_);
    }
  }
  Order order() && { return std::move(order_); }

 private:
  void next(ActionKind kind, int chunk, std::array<int, 2>& counts) {
    const int microbatch = counts[chunk]++;
    if (microbatch < microbatches_) put(order_, kind, microbatch, chunk);
  }
  void forward(int chunk) { next(ActionKind::forward, chunk, forwards_); }
  void backward(int chunk) {
    next(ActionKind::backward_input, chunk, inputs_);
    next(ActionKind::backward_weight, chunk, weights_);
  }

  int microbatches_;
  Order order_;
  std::array<int, 2> forwards_{}, inputs_{}, weights_{};  // how many were put, by chunk
};

Order order_of(ScheduleKind kind, const Schedule& of, int stage) {
  const int after = of.stages - 1 - stage;
  switch (kind) {
    case ScheduleKind::gpipe: return gpipe_order(of.microbatches);
    case ScheduleKind::interleaved:
      if (of.chunks > 1) return interleaved_order(of, 2 * after + (of.chunks - 1) * of.stages);
      [[fallthrough]];
    case ScheduleKind::one_forward_one_backward: return interleaved_order(of, after);
    case ScheduleKind::eager_one_forward_one_backward: return interleaved_order(of, 2 * after);
    case ScheduleKind::zb_h1: return zero_bubble_order(of.microbatches, after + 1, stage);
    case ScheduleKind::zb_h2: return zero_bubble_order(of.microbatches, 2 * after + 1, 2 * stage);
    default: return ZbVOrder(of.stages, of.microbatches, stage).order();
  }
}

}  // namespace

bool allows(ScheduleKind kind, int stages, int microbatches, int chunks) {
  if (kind == ScheduleKind::interleaved) return microbatches % stages == 0;
  return chunks == (kind == ScheduleKind::zb_v ? 2 : 1);
}

Schedule forward_schedule(int stages, int microbatches, int chunks, ChunkPlacement placement) {
  Schedule schedule{"forward", stages, microbatches, chunks, placement, {}};
  require_sizes(schedule);
  Order order;
  for (int first = 0; first < microbatches; first += stages) {
    for (int chunk = 0; chunk < chunks; ++chunk) {
      for (int i = first; i < std::min(first + stages, microbatches); ++i) put(order, ActionKind::forward, i, chunk);
    }
  }
  schedule.lists.assign(static_cast<std::size_t>(stages), order);
  return with_messages(std::move(schedule));
}

Schedule make_schedule(ScheduleKind kind, int stages, int microbatches, int chunks) {
  const ChunkPlacement placement = kind == ScheduleKind::zb_v ? ChunkPlacement::v_shaped : ChunkPlacement::round_robin;
  Schedule schedule{name(kind), stages, microbatches, chunks, placement, {}};
  require(kind == ScheduleKind::interleaved || allows(kind, stages, microbatches, chunks),
          "{} has {} a stage, not {}; leave the number out, or choose interleaved.", name(kind),
          kind == ScheduleKind::zb_v ? "2 chunks" : "1 chunk", chunks);
  require_sizes(schedule);
  require(allows(kind, stages, microbatches, chunks),
          "interleaved needs a multiple of its {} stages as microbatches, not {}; choose another number, or 1f1b.", stages,
          microbatches);
  for (int stage = 0; stage < stages; ++stage) schedule.lists.push_back(order_of(kind, schedule, stage));
  return with_messages(std::move(schedule));
}

}  // namespace stretto
