#pragma once
#include "collectives/proof/verify_accesses.hpp"
#include "collectives/proof/verify_layout.hpp"
#include "collectives/proof/verify_refused.hpp"

namespace stretto {

// The checks of a step by itself: whether it is well formed, and which memory it touches.
class Steps {
 public:
  // sums: whether the collective reduces.
  Steps(int size, bool sums, const Layout& layout) : size_(size), sums_(sums), layout_(layout) {}

  // Whether a step ends only when another rank has done its part.
  static bool waits(StepKind kind) {
    return kind == StepKind::send || kind == StepKind::recv || kind == StepKind::recv_reduce || kind == StepKind::wait;
  }

  // Calls visit(rank) for each rank whose memory the step writes.
  template <class Visit>
  void for_each_owner(int rank, const Step& step, Visit visit) const {
    const bool reaches_all =
        step.kind == StepKind::copy_to_all || (step.kind == StepKind::read_reduce && step.peer == everybody);
    if (!reaches_all) return visit(step.kind == StepKind::read_reduce ? step.peer : rank);
    for (int owner = 0; owner < size_; ++owner) visit(owner);
  }

  // Whether a step is well formed and stays inside its buffers, wherever these lie.
  void check(int rank, const Step& step) const {
    const bool local = step.kind == StepKind::copy || step.kind == StepKind::reduce || step.kind == StepKind::signal ||
                       quantizes(step.kind);
    const bool reads_one = step.kind == StepKind::read || step.kind == StepKind::copy_to_all;
    const bool reaches_itself = reads_one || step.kind == StepKind::read_reduce;
    const bool reaches_all = step.kind == StepKind::read_reduce && step.peer == everybody;
    const bool adds = step.kind == StepKind::recv_reduce || step.kind == StepKind::reduce ||
                      step.kind == StepKind::read_reduce || adds_records(step.kind);
    demand(local || reaches_all || (step.peer >= 0 && step.peer < size_ && (step.peer != rank || reaches_itself)),
           "Rank {} has rank {} as its peer.", rank, step.peer);
    demand(!adds || sums_, "Rank {} reduces, but the collective only moves elements.", rank);
    demand(adds || !step.finishes, "Rank {} finishes a step that does not reduce.", rank);
    demand(step.vectors == 1 || (step.vectors > 1 && adds_records(step.kind)), "Rank {} takes {} vectors at once.", rank,
           step.vectors);
    if (step.kind == StepKind::signal || step.kind == StepKind::wait) return;
    if (step.kind == StepKind::read_reduce) {
      for (int owner = 0; owner < size_; ++owner) check_slice(rank, owner, part_of(owner, rank, step));
    } else if (step.kind != StepKind::recv) {
      check_slice(rank, reads_one ? step.peer : rank, step.source);
    }
    if (step.kind == StepKind::send) return;
    for_each_owner(rank, step, [&](int owner) { check_slice(rank, owner, step.destination); });
    demand(step.destination.buffer != Buffer::input, "Rank {} writes to {} input.", rank,
           (step.kind == StepKind::read_reduce && step.peer != rank) || step.kind == StepKind::copy_to_all ? "another rank's"
                                                                                                           : "its");
    if (step.kind == StepKind::recv) return;
    if (quantizes(step.kind)) return check_quantizing(rank, step);
    demand(step.source.format == step.destination.format && (step.kind == StepKind::copy || !is_packed(step.destination)),
           "Rank {} copies or reduces records as if they were elements.", rank);
    const std::int64_t vectors = step.destination.count == 0                   ? 0
                                 : step.source.count == step.destination.count ? 1  // mostly, and spared a division
                                                                               : step.source.count / step.destination.count;
    demand(step.source.count == vectors * step.destination.count && (vectors == 1 || step.kind == StepKind::reduce),
           "Rank {} combines {} elements with {}.", rank, step.source.count, step.destination.count);
  }

  // Checks a step with the buffers where the layout puts them: a step may write where it reads, element by element, but not
  // shifted. (A quantizing step may do neither, which is checked when its round begins.)
  void check_overlap(int rank, const Step& step) const {
    const bool reads_one = step.kind == StepKind::read || step.kind == StepKind::copy_to_all;
    if (exchanges_or_orders(step.kind) || quantizes(step.kind)) return;
    for_each_owner(rank, step, [&](int owner) {
      if (reads_one && owner != step.peer) return;
      const bool of_all = step.kind == StepKind::read_reduce;
      const Range from = layout_.range_of(owner, of_all ? part_of(owner, rank, step) : step.source);
      const Range to = layout_.range_of(owner, step.destination);
      demand(from.begin == to.begin || from.end <= to.begin || to.end <= from.begin,
             "Rank {} reads memory that the same step writes elsewhere.", rank);
    });
  }

  // Appends the memory that a step touches, of other ranks too. The step's own part of the source may be its destination;
  // the rest of the source does not overlap it. Elements that are copied onto themselves, in place, are left out.
  void append_accesses(int rank, const Step& step, std::vector<Access>& accesses) const {
    if (step.kind == StepKind::signal || step.kind == StepKind::wait) return;
    const auto add = [&](Range range, bool writes) {
      if (range.begin < range.end) accesses.push_back({range, writes});
    };
    if (step.kind == StepKind::copy_to_all) {
      const Range from = layout_.range_of(step.peer, step.source);
      add(from, false);
      return for_each_owner(rank, step, [&](int owner) {
        const Range to = layout_.range_of(owner, step.destination);
        if (to.begin != from.begin) add(to, true);
      });
    }
    const bool moves = step.kind == StepKind::copy || (step.kind == StepKind::read && step.peer == rank);
    if (moves && layout_.cell_of(rank, step.source) == layout_.cell_of(rank, step.destination)) return;
    const bool of_all = step.kind == StepKind::read_reduce;
    for (int vector = 1; vector < step.vectors; ++vector) add(layout_.range_of(rank, vector_of(step, vector)), false);
    if (step.kind != StepKind::send) {
      for_each_owner(rank, step, [&](int owner) { add(layout_.range_of(owner, step.destination), true); });
    }
    if (step.kind == StepKind::recv) return;
    for (int owner = 0; of_all && owner < size_; ++owner) add_source(rank, owner, step, add);
    if (!of_all) add_source(rank, step.kind == StepKind::read ? step.peer : rank, step, add);
  }

  // In a read_reduce, the part of the owner's memory that the rank adds.
  static Slice part_of(int owner, int rank, const Step& step) { return owner == rank ? own_part(step) : step.source; }
  static bool adds_records(StepKind kind) { return kind == StepKind::dequantize_reduce || kind == StepKind::requantize; }
  // One of the packed vectors that a step adds.
  static Slice vector_of(const Step& step, int vector) {
    Slice slice = step.source;
    slice.offset += vector * step.apart;
    return slice;
  }

 private:
  // Whether a step has no source, or no destination, in this rank's memory.
  static bool exchanges_or_orders(StepKind kind) {
    return kind == StepKind::send || kind == StepKind::recv || kind == StepKind::signal || kind == StepKind::wait;
  }
  static bool is_packed(const Slice& slice) { return slice.buffer == Buffer::packed; }

  void check_quantizing(int rank, const Step& step) const {
    demand(is_packed(step.source) == (step.kind != StepKind::quantize) &&
               is_packed(step.destination) == (step.kind == StepKind::quantize || step.kind == StepKind::requantize),
           "Rank {} takes elements for records, or records for elements.", rank);
    demand(step.source.count == step.destination.count, "Rank {} makes {} elements of {}.", rank, step.destination.count,
           step.source.count);
    for (int vector = 1; vector < step.vectors; ++vector) check_slice(rank, rank, vector_of(step, vector));
  }

  // rank touches a buffer of the owner's.
  void check_slice(int rank, int owner, const Slice& slice) const {
    demand(is_packed(slice) == (slice.format != QuantizedFormat::none), "Rank {} touches {} where there are {}.", rank,
           is_packed(slice) ? "records of no format" : "records", is_packed(slice) ? "records" : "elements");
    if (is_packed(slice) && slice.offset % group_elements(slice.format) != 0) {
      refuse("Rank {} touches records of {} from the middle of a group, {}.", rank, name(slice.format), slice.offset);
    }
    const std::int64_t room = layout_.room(owner, slice);
    demand(slice.offset >= 0 && slice.count >= 0 && slice.offset + Layout::cells_of(slice) <= room,
           "Rank {} touches elements [{}, {}) of a buffer of {}.", rank, slice.offset, slice.offset + slice.count, room);
  }

  template <class Add>
  void add_source(int rank, int owner, const Step& step, Add add) const {
    const bool of_all = step.kind == StepKind::read_reduce;
    Range from = layout_.range_of(owner, of_all ? part_of(owner, rank, step) : step.source);
    const bool writes_there =
        of_all ? step.peer == everybody || step.peer == owner : step.kind != StepKind::send && owner == rank;
    if (writes_there && !quantizes(step.kind) && step.destination.count > 0 &&
        from.begin == layout_.cell_of(owner, step.destination)) {
      from.begin += step.destination.count;
    }
    add(from, false);
  }

  int size_;
  bool sums_;
  const Layout& layout_;
};

}  // namespace stretto
