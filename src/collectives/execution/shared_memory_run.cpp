#include "collectives/execution/shared_memory_run.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "collectives/plan/plan_builder.hpp"
#include "core/fail.hpp"
#include "device/memory/memory.hpp"
#include "stretto/kernels.hpp"
#include "stretto/memory.hpp"

namespace stretto {
namespace {

static_assert(Board::room_bytes >= most_packet_bytes);

// If all ranks together write at least this many bytes, the stores bypass the caches: the results would not fit, and are not
// read soon.
constexpr std::int64_t streams_from = std::int64_t{16} << 20;
// Other processes' ordinary memory is fetched in pieces that stay in the cache until they are reduced.
constexpr std::size_t fetched_piece = std::size_t{128} << 10;

// Whether the plan's first signal tells only where input and output are.
bool needs_no_scratch(const PlanRequest& request) {
  const Algorithm algorithm = request.method.algorithm;
  return touches_buffers(algorithm) && !(algorithm == Algorithm::pull && request.collective == Collective::reduce);
}

}  // namespace

bool SharedMemoryRun::announces(const Execution& execution) {
  const PlanRequest& request = execution.planned->ordinary.plan->request;
  if (request.method.algorithm != Algorithm::packet && request.method.algorithm != Algorithm::staged) return false;
  return buffer_places_of(execution.buffers.input, execution.buffers.output, nullptr, request).symmetric == 0;
}

SharedMemoryRun::SharedMemoryRun(const Execution& execution, const PlanVariant& variant, Announcement announcement)
    : request_(variant.plan->request),
      caller_(execution.buffers),
      wire_(variant.wire),
      shared_(*execution.shared),
      board_(shared_.board()),
      buffers_(caller_, wire_, request_, symmetric_space()),
      width_(size_of(wire_)),
      post_bytes_(sizeof(BufferPlaces)),
      announcement_(announcement),
      posts_(announcement == Announcement::with_first_signal ? 2 : 1) {
  if (announcement != Announcement::exchanged) shared_.begin(execution);  // else the exchange has begun it
  const Plan& plan = *variant.plan;
  ensure(plan.lanes.size() <= 1, "A plan over shared memory has {} lanes.", plan.lanes.size());
  if (!plan.lanes.empty()) {
    step_ = plan.lanes.front().steps.data();
    end_ = step_ + plan.lanes.front().steps.size();
  }
  if (variant.packet_bytes > 0 && request_.size > 1) {
    post_bytes_ = packet_bytes_ = variant.packet_bytes;
    ensure(packet_bytes_ <= most_packet_bytes, "A packet of {} bytes does not fit.", packet_bytes_);
    const bool from_root = request_.collective == Collective::broadcast || request_.collective == Collective::scatter;
    only_hears_ = from_root && request_.rank != request_.root;
  } else {
    kept_bytes_ = static_cast<std::size_t>(plan.scratch_count) * width_;
  }
}

// The others may still access this rank's buffers, which the handler of the exception may free. So this tells them to stop,
// and waits until they have. A dead rank has stopped.
SharedMemoryRun::~SharedMemoryRun() {
  if (finished_ || !signaled_ || !touches_buffers(request_.method.algorithm)) return;
  board_.give_up();
  const double until = now_seconds() + std::chrono::duration<double>(grace_after_failure).count();
  while (!board_.all_gave_up() && now_seconds() < until) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

bool SharedMemoryRun::advance() {
  if (!begun_ && !begin()) return false;
  bool moved = false;
  for (; step_ != end_; ++step_) {
    if (!perform(*step_)) return moved;
    moved = true;
  }
  if (finished_) return false;
  buffers_.finish();
  if (kept_bytes_ > 0) shared_.scratch().keep(board_.posted());
  return finished_ = true;
}

// Takes the plan's scratch. Returns false while members may still read its earlier contents.
bool SharedMemoryRun::begin() {
  if (packet_bytes_ > 0) {  // scratch_ is the place of the bytes of the posts_-th post from now
    if (!board_.may_post(post_bytes_, posts_)) return false;
    scratch_ = board_.draft(packet_bytes_, posts_);
  } else if (kept_bytes_ > 0) {
    if (!board_.all_posted(shared_.scratch().posts_needed(kept_bytes_))) return false;
    scratch_ = shared_.scratch().next(kept_bytes_);
  }
  return begun_ = true;
}

std::vector<int> SharedMemoryRun::awaited() const {
  if (!begun_ && kept_bytes_ > 0) return board_.without_post(shared_.scratch().posts_needed(kept_bytes_));
  if (!begun_ || step_ == end_ || step_->kind != StepKind::wait) return board_.behind(post_bytes_, posts_);
  std::vector<int> silent;  // the ones for which this phase waits
  for (const Step* step = step_; step != end_ && step->kind != StepKind::signal; ++step) {
    if (step->kind == StepKind::wait && board_.seen(step->peer, post_bytes_) == nullptr) silent.push_back(step->peer);
  }
  return silent;
}

// Returns false if the step has to wait.
bool SharedMemoryRun::perform(const Step& step) {
  switch (step.kind) {
    case StepKind::signal: return signal();
    case StepKind::wait: return wait(step.peer);
    case StepKind::read: read(step); return true;
    case StepKind::read_reduce: read_reduce(step); return true;
    case StepKind::copy_to_all: copy_to_all(step); return true;
    case StepKind::copy: {
      const std::byte* const from = own(step.source);
      std::byte* const to = own(step.destination);
      if (step.destination.buffer == Buffer::scratch) {
        shared_.copy_to_reader(to, from, bytes(step.source));
      } else if (from != to) {  // equal in place
        kernels::copy(from, to, bytes(step.source), streams(step));
      }
      return true;
    }
    default: fail(ErrorCode::internal, "A plan over shared memory has a step of kind {}.", static_cast<int>(step.kind));
  }
}

bool SharedMemoryRun::signal() {
  const bool is_first = !signaled_;
  signaled_ = true;
  if (is_first && announcement_ == Announcement::exchanged && needs_no_scratch(request_) && !caller_.need_copies(wire_)) {
    return true;
  }
  if (packet_bytes_ > 0) {
    if (posts_ > 1) shared_.draft({});  // says no more than that the buffers are not symmetric
    board_.post(posts_);
  } else {
    if (!board_.may_post(post_bytes_, posts_)) return false;
    BufferPlaces& mine = shared_.places[shared_.rank()];
    mine = buffer_places_of(buffers_.input(), buffers_.output(), scratch_, request_);
    // The caller's buffers are not symmetric, even if copies of them travel.
    if (announcement_ == Announcement::with_first_signal) mine.symmetric = 0;
    for (int i = 1; i <= posts_; ++i) shared_.draft(mine, i);
    board_.post(posts_);
  }
  posts_ = 1;
  heard_ = 0;
  return true;
}

bool SharedMemoryRun::wait(int peer) {
  const std::byte* const word = shared_.look(peer, post_bytes_);
  if (word == nullptr) return false;
  if (only_hears_) board_.fetch_ahead(peer, post_bytes_);
  if (packet_bytes_ == 0) std::memcpy(&shared_.places[peer], word, sizeof(BufferPlaces));
  if (++heard_ < shared_.size() - 1) return true;
  board_.saw_all();
  if (request_.method.algorithm == Algorithm::push) check_symmetric();
  return true;
}

void SharedMemoryRun::read(const Step& step) {
  const std::size_t length = bytes(step.source);
  std::byte* const to = own(step.destination);
  if (packet_bytes_ > 0 || shared_.memory(step.peer).maps(place_in_member(step.peer, step.source.buffer))) {
    kernels::copy(reach(step.peer, step.source), to, length, streams(step));
  } else {
    shared_.memory(step.peer).read(place_in_member(step.peer, step.source.buffer),
                                   static_cast<std::size_t>(step.source.offset) * width_, to, length);
  }
}

void SharedMemoryRun::read_reduce(const Step& step) {
  const int size = shared_.size();
  const bool to_all = step.peer == everybody;
  for (int member = 0; member < size; ++member) {
    const bool mapped = member == shared_.rank() || packet_bytes_ > 0 ||
                        shared_.memory(member).maps(place_in_member(member, step.source.buffer));
    if (!mapped) return reduce_in_pieces(step);
    shared_.sources[member] = member == shared_.rank() ? own(own_part(step)) : reach(member, step.source);
    if (to_all) shared_.targets[member] = const_cast<std::byte*>(reach(member, step.destination));
  }
  const ReduceOp op = combining(caller_.op);
  const std::int64_t divisor = step.finishes && caller_.op == ReduceOp::avg ? size : 1;
  const std::int64_t count = step.destination.count;
  if (packet_bytes_ > 0) {  // one destination: a faster call of the kernel
    return kernels::reduce_all(op, wire_, shared_.sources.data(), size, own(step.destination), count, divisor);
  }
  if (!to_all) shared_.targets[0] = const_cast<std::byte*>(reach(step.peer, step.destination));
  kernels::reduce_all(op, wire_, shared_.sources.data(), size, shared_.targets.data(), to_all ? size : 1, count, divisor,
                      streams(step));
}

// The loop begins with this rank's own memory.
void SharedMemoryRun::copy_to_all(const Step& step) {
  const std::byte* const from = reach(step.peer, step.source);
  for (int i = 0; i < shared_.size(); ++i) {
    const int member = (shared_.rank() + i) % shared_.size();
    auto* const to = const_cast<std::byte*>(reach(member, step.destination));
    if (from != to) kernels::copy(from, to, bytes(step.source), streams(step));  // equal in place
  }
}

// All ranks detect this at the same step, before any of them has touched a buffer, so the communicator stays usable.
void SharedMemoryRun::check_symmetric() {
  for (int member = 0; member < shared_.size() && !shared_.one_process(); ++member) {
    if (shared_.places[member].symmetric != 0) continue;
    finished_ = true;
    fail(ErrorCode::invalid_argument,
         "{} by push needs all ranks' buffers in symmetric memory, and rank {}'s are not; take them from "
         "stretto::allocate, or choose pull or staged.",
         name(request_.collective), member);
  }
}

// Reduces sources in other processes' ordinary memory: each piece is copied here first.
void SharedMemoryRun::reduce_in_pieces(const Step& step) {
  const int size = shared_.size();
  const std::int64_t piece = static_cast<std::int64_t>(fetched_piece / width_);
  const std::shared_ptr<std::byte> fetched = pool_allocate(fetched_piece * static_cast<std::size_t>(size));
  const std::int64_t divisor = step.finishes && caller_.op == ReduceOp::avg ? size : 1;
  for (std::int64_t done = 0; done < step.destination.count; done += piece) {
    const std::int64_t count = std::min(piece, step.destination.count - done);
    const Slice source{step.source.buffer, step.source.offset + done, count};
    const Slice destination{step.destination.buffer, step.destination.offset + done, count};
    for (int member = 0; member < size; ++member) {
      const BufferPlace place = place_in_member(member, source.buffer);
      if (member == shared_.rank() || shared_.memory(member).maps(place)) {
        shared_.sources[member] = reach(member, source);
        continue;
      }
      std::byte* const to = fetched.get() + fetched_piece * static_cast<std::size_t>(member);
      shared_.memory(member).read(place, static_cast<std::size_t>(source.offset) * width_, to, bytes(source));
      shared_.sources[member] = to;
    }
    kernels::reduce_all(combining(caller_.op), wire_, shared_.sources.data(), size, own(destination), count, divisor);
  }
}

// Whether the stores of a step bypass the caches: results of large collectives do, unless other ranks read them here.
bool SharedMemoryRun::streams(const Step& step) const {
  if (packet_bytes_ > 0 || step.destination.buffer != Buffer::output) return false;
  if (request_.method.algorithm == Algorithm::pull && request_.collective == Collective::all_reduce &&
      step.kind == StepKind::read_reduce) {
    return false;
  }
  const std::int64_t written =
      request_.collective == Collective::reduce ? request_.count : output_count(request_) * request_.size;
  return static_cast<std::int64_t>(width_) * written >= streams_from;
}

const std::byte* SharedMemoryRun::reach(int member, const Slice& slice) const {
  if (member == shared_.rank()) return own(slice);
  const std::size_t offset = static_cast<std::size_t>(slice.offset) * width_;
  if (packet_bytes_ > 0) return board_.seen(member, packet_bytes_) + offset;
  BufferPlace place = place_in_member(member, slice.buffer);
  place.address += offset;
  if (place.in_heap != BufferPlace::no_heap) place.in_heap += offset;
  return shared_.memory(member).at(place, bytes(slice));
}

BufferPlace SharedMemoryRun::place_in_member(int member, Buffer buffer) const {
  const BufferPlaces& theirs = shared_.places[member];
  return buffer == Buffer::input ? theirs.input : buffer == Buffer::output ? theirs.output : theirs.scratch;
}

std::byte* SharedMemoryRun::own(const Slice& slice) const {
  std::byte* const begin = slice.buffer == Buffer::input    ? const_cast<std::byte*>(buffers_.input())
                           : slice.buffer == Buffer::output ? buffers_.output()
                                                            : scratch_;
  return begin + static_cast<std::size_t>(slice.offset) * width_;
}

}  // namespace stretto
