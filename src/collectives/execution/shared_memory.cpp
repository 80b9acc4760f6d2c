#include "collectives/execution/shared_memory.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "collectives/execution/plan_run.hpp"
#include "collectives/plan/plan_builder.hpp"
#include "core/fail.hpp"
#include "device/memory/memory.hpp"
#include "stretto/kernels.hpp"
#include "stretto/memory.hpp"

namespace stretto {
namespace {

static_assert(Board::room_bytes >= most_packet_bytes);

// What all ranks write together fits no cache from here on: then results go past the caches, for nobody reads them soon.
constexpr std::int64_t streams_from = std::int64_t{16} << 20;
// Other processes' ordinary memory is fetched in pieces that stay in the cache until they are reduced.
constexpr std::size_t fetched_piece = std::size_t{128} << 10;

// Whether its first signal tells no more than where input and output are.
bool needs_no_scratch(const PlanRequest& request) {
  const Algorithm algorithm = request.method.algorithm;
  return touches_buffers(algorithm) && !(algorithm == Algorithm::pull && request.collective == Collective::reduce);
}

BufferPlaces whereabouts_of(const std::byte* input, const std::byte* output, const std::byte* scratch,
                            const PlanRequest& request) {
  BufferPlaces mine{place_of(input), place_of(output), place_of(scratch), 1};
  if (input_count(request) > 0 && mine.input.in_heap == Place::no_heap) mine.symmetric = 0;
  if (output_count(request) > 0 && mine.output.in_heap == Place::no_heap) mine.symmetric = 0;
  return mine;
}

void post(Board& board, const BufferPlaces& mine) {
  std::memcpy(board.draft(sizeof mine), &mine, sizeof mine);
  board.post();
}

}  // namespace

std::size_t packet_bytes_of(const PlanRequest& request, DType wire) {
  if (request.method.algorithm != Algorithm::packet) return 0;
  return std::max<std::size_t>(1, static_cast<std::size_t>(packet_elements(request)) * size_of(wire));
}

std::byte* SharedMemory::scratch(std::size_t bytes) {
  if (bytes > scratch_bytes_) {
    scratch_ = nullptr;
    scratch_ = allocate(bytes);
    scratch_bytes_ = bytes;
  }
  return scratch_.get();
}

BufferExchange::BufferExchange(const Execution& execution, const PlannedCall& planned)
    : shared_(*execution.shared),
      mine_(whereabouts_of(execution.caller.input, execution.caller.output, nullptr, planned.ordinary.plan->request)) {}

bool BufferExchange::advance() {
  Board& board = shared_.board();
  if (!posted_) {
    if (!board.may_post(sizeof mine_)) return false;
    post(board, mine_);
    posted_ = true;
  }
  bool moved = false;
  for (; member_ < shared_.size(); ++member_) {
    const std::byte* const word = shared_.look(member_, sizeof(BufferPlaces));
    if (word == nullptr) return moved;
    std::memcpy(&shared_.told[member_], word, sizeof(BufferPlaces));
    symmetric_ &= shared_.told[member_].symmetric != 0;
    moved = true;
  }
  board.saw_all();
  return true;
}

SharedMemoryRun::SharedMemoryRun(const Execution& execution, bool announced)
    : run_(execution),
      shared_(*run_.shared),
      board_(shared_.board()),
      buffers_(run_.caller, run_.plan->request, symmetric_place()),
      width_(size_of(run_.caller.wire)),
      post_bytes_(sizeof(BufferPlaces)),
      announced_(announced && needs_no_scratch(run_.plan->request) && !run_.caller.needs_own_buffers()) {
  const Plan& plan = *run_.plan;
  ensure(plan.lanes.size() <= 1, "A plan over shared memory has {} lanes.", plan.lanes.size());
  if (!plan.lanes.empty()) {
    step_ = plan.lanes.front().steps.data();
    end_ = step_ + plan.lanes.front().steps.size();
  }
  if (run_.packet_bytes > 0 && plan.request.size > 1) {
    post_bytes_ = packet_bytes_ = run_.packet_bytes;
    ensure(packet_bytes_ <= most_packet_bytes, "A packet of {} bytes does not fit.", packet_bytes_);
    const Collective collective = plan.request.collective;
    only_hears_ =
        (collective == Collective::broadcast || collective == Collective::scatter) && plan.request.rank != plan.request.root;
  } else if (plan.scratch_count > 0) {
    scratch_ = shared_.scratch(static_cast<std::size_t>(plan.scratch_count) * width_);
  }
}

// The others may still read and write this rank's buffers, which whoever catches the exception frees. They learn of its end
// and stop; a dead one has stopped.
SharedMemoryRun::~SharedMemoryRun() {
  if (finished_ || !has_signalled_ || !touches_buffers(run_.plan->request.method.algorithm)) return;
  board_.give_up();
  const double until = now_seconds() + std::chrono::duration<double>(grace_after_failure).count();
  while (!board_.all_gave_up() && now_seconds() < until) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

bool SharedMemoryRun::advance() {
  if (!begun_) {
    if (packet_bytes_ > 0) {  // its scratch is the slot of the next post
      if (!board_.may_post(post_bytes_)) return false;
      scratch_ = board_.draft(packet_bytes_);
    }
    begun_ = true;
  }
  bool moved = false;
  for (; step_ != end_; ++step_) {
    if (!perform(*step_)) return moved;
    moved = true;
  }
  if (finished_) return false;
  buffers_.finish(run_.caller, run_.plan->request, symmetric_place());
  return finished_ = true;
}

std::vector<int> SharedMemoryRun::awaited() const {
  if (!begun_ || step_ == end_ || step_->kind != StepKind::wait) return board_.behind(post_bytes_);
  std::vector<int> silent;  // of all that this phase waits for
  for (const Step* step = step_; step != end_ && step->kind != StepKind::signal; ++step) {
    if (step->kind == StepKind::wait && board_.seen(step->peer, post_bytes_) == nullptr) silent.push_back(step->peer);
  }
  return silent;
}

// False where it has to wait.
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
      if (from != to) kernels::copy(from, to, bytes(step.source), streams(step));  // equal in place
      return true;
    }
    default: fail(ErrorCode::internal, "A plan over shared memory has a step of kind {}.", static_cast<int>(step.kind));
  }
}

bool SharedMemoryRun::signal() {
  if (auto* const hold_up = before_each_round.load(std::memory_order_relaxed)) hold_up();
  has_signalled_ = true;
  if (announced_) {
    announced_ = false;
    return true;
  }
  if (packet_bytes_ > 0) {
    board_.post();
  } else {
    if (!board_.may_post(post_bytes_)) return false;
    BufferPlaces& mine = shared_.told[shared_.rank()];
    mine = whereabouts_of(buffers_.input(), buffers_.output(), scratch_, run_.plan->request);
    post(board_, mine);
  }
  heard_ = 0;
  return true;
}

bool SharedMemoryRun::wait(int peer) {
  const std::byte* const word = shared_.look(peer, post_bytes_);
  if (word == nullptr) return false;
  if (only_hears_) board_.fetch_ahead(peer, post_bytes_);
  if (packet_bytes_ == 0) std::memcpy(&shared_.told[peer], word, sizeof(BufferPlaces));
  if (++heard_ < shared_.size() - 1) return true;
  board_.saw_all();
  if (run_.plan->request.method.algorithm == Algorithm::push) check_symmetric();
  return true;
}

void SharedMemoryRun::read(const Step& step) {
  const std::size_t length = bytes(step.source);
  std::byte* const to = own(step.destination);
  if (packet_bytes_ > 0 || shared_.memory(step.peer).maps(place_of_buffer(step.peer, step.source.buffer))) {
    kernels::copy(reach(step.peer, step.source), to, length, streams(step));
  } else {
    shared_.memory(step.peer).read(place_of_buffer(step.peer, step.source.buffer),
                                   static_cast<std::size_t>(step.source.offset) * width_, to, length);
  }
}

void SharedMemoryRun::read_reduce(const Step& step) {
  const int size = shared_.size();
  const bool to_all = step.peer == everybody;
  for (int member = 0; member < size; ++member) {
    const bool mapped = member == shared_.rank() || packet_bytes_ > 0 ||
                        shared_.memory(member).maps(place_of_buffer(member, step.source.buffer));
    if (!mapped) return reduce_in_pieces(step);
    shared_.sources[member] = member == shared_.rank() ? own_term(step.source) : reach(member, step.source);
    if (to_all) shared_.targets[member] = const_cast<std::byte*>(reach(member, step.destination));
  }
  const ReduceOp op = combining(run_.caller.op);
  const std::int64_t divisor = step.finishes && run_.caller.op == ReduceOp::avg ? size : 1;
  const std::int64_t count = step.destination.count;
  if (packet_bytes_ > 0) {  // the shorter way to the kernel
    return kernels::reduce_all(op, run_.caller.wire, shared_.sources.data(), size, own(step.destination), count, divisor);
  }
  if (!to_all) shared_.targets[0] = const_cast<std::byte*>(reach(step.peer, step.destination));
  kernels::reduce_all(op, run_.caller.wire, shared_.sources.data(), size, shared_.targets.data(), to_all ? size : 1, count,
                      divisor, streams(step));
}

// Its own first.
void SharedMemoryRun::copy_to_all(const Step& step) {
  const std::byte* const from = reach(step.peer, step.source);
  for (int i = 0; i < shared_.size(); ++i) {
    const int member = (shared_.rank() + i) % shared_.size();
    auto* const to = const_cast<std::byte*>(reach(member, step.destination));
    if (from != to) kernels::copy(from, to, bytes(step.source), streams(step));  // equal in place
  }
}

// In a packet, what this rank has put into its slot still is in its input. A look at the slot would wait until the line,
// which others are reading, is back.
const std::byte* SharedMemoryRun::own_term(const Slice& slice) const {
  if (packet_bytes_ == 0) return own(slice);
  return buffers_.input() + static_cast<std::size_t>(slice.offset) * width_;
}

// All ranks find the same at the same place, before any of them has touched anything: the communicator is unharmed.
void SharedMemoryRun::check_symmetric() {
  for (int member = 0; member < shared_.size() && !run_.links->one_process(); ++member) {
    if (shared_.told[member].symmetric != 0) continue;
    finished_ = true;
    fail(ErrorCode::invalid_argument,
         "{} by push needs all ranks' buffers in symmetric memory, and rank {}'s are not; take them from "
         "stretto::allocate, or choose pull or staged.",
         name(run_.plan->request.collective), member);
  }
}

// Some source is the ordinary memory of another process: it comes here first.
void SharedMemoryRun::reduce_in_pieces(const Step& step) {
  const int size = shared_.size();
  const std::int64_t piece = static_cast<std::int64_t>(fetched_piece / width_);
  const std::shared_ptr<std::byte> fetched = pool_allocate(fetched_piece * static_cast<std::size_t>(size));
  const std::int64_t divisor = step.finishes && run_.caller.op == ReduceOp::avg ? size : 1;
  for (std::int64_t done = 0; done < step.destination.count; done += piece) {
    const std::int64_t count = std::min(piece, step.destination.count - done);
    const Slice source{step.source.buffer, step.source.offset + done, count};
    const Slice destination{step.destination.buffer, step.destination.offset + done, count};
    for (int member = 0; member < size; ++member) {
      const Place place = place_of_buffer(member, source.buffer);
      if (member == shared_.rank() || shared_.memory(member).maps(place)) {
        shared_.sources[member] = reach(member, source);
        continue;
      }
      std::byte* const to = fetched.get() + fetched_piece * static_cast<std::size_t>(member);
      shared_.memory(member).read(place, static_cast<std::size_t>(source.offset) * width_, to, bytes(source));
      shared_.sources[member] = to;
    }
    kernels::reduce_all(combining(run_.caller.op), run_.caller.wire, shared_.sources.data(), size, own(destination), count,
                        divisor);
  }
}

// Results of large collectives, unless the other ranks are going to read them here.
bool SharedMemoryRun::streams(const Step& step) const {
  const PlanRequest& request = run_.plan->request;
  if (packet_bytes_ > 0 || step.destination.buffer != Buffer::output) return false;
  if (request.method.algorithm == Algorithm::pull && request.collective == Collective::all_reduce &&
      step.kind == StepKind::read_reduce) {
    return false;
  }
  const std::int64_t written =
      request.collective == Collective::reduce ? request.count : output_count(request) * request.size;
  return static_cast<std::int64_t>(width_) * written >= streams_from;
}

const std::byte* SharedMemoryRun::reach(int member, const Slice& slice) const {
  if (member == shared_.rank()) return own(slice);
  const std::size_t offset = static_cast<std::size_t>(slice.offset) * width_;
  if (packet_bytes_ > 0) return board_.seen(member, packet_bytes_) + offset;
  Place place = place_of_buffer(member, slice.buffer);
  place.address += offset;
  if (place.in_heap != Place::no_heap) place.in_heap += offset;
  return shared_.memory(member).at(place, bytes(slice));
}

Place SharedMemoryRun::place_of_buffer(int member, Buffer buffer) const {
  const BufferPlaces& told = shared_.told[member];
  return buffer == Buffer::input ? told.input : buffer == Buffer::output ? told.output : told.scratch;
}

std::byte* SharedMemoryRun::own(const Slice& slice) const {
  std::byte* const begin = slice.buffer == Buffer::input    ? const_cast<std::byte*>(buffers_.input())
                           : slice.buffer == Buffer::output ? buffers_.output()
                                                            : scratch_;
  return begin + static_cast<std::size_t>(slice.offset) * width_;
}

}  // namespace stretto
