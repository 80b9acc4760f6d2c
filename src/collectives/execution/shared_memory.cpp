#include "collectives/execution/shared_memory.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "collectives/execution/execution.hpp"
#include "collectives/plan/call_signature.hpp"
#include "collectives/plan/plan_builder.hpp"
#include "stretto/memory.hpp"
#include "transport/bootstrap/processes/pinning.hpp"

namespace stretto {

BufferPlaces buffer_places_of(const std::byte* input, const std::byte* output, const std::byte* scratch,
                              const PlanRequest& request) {
  BufferPlaces mine{buffer_place_of(input), buffer_place_of(output), buffer_place_of(scratch), 1};
  if (input_count(request) > 0 && mine.input.in_heap == BufferPlace::no_heap) mine.symmetric = 0;
  if (output_count(request) > 0 && mine.output.in_heap == BufferPlace::no_heap) mine.symmetric = 0;
  return mine;
}

std::size_t packet_bytes_of(const PlanRequest& request, DType wire) {
  if (request.method.algorithm != Algorithm::packet) return 0;
  return std::max<std::size_t>(1, static_cast<std::size_t>(packet_elements(request)) * size_of(wire));
}

SharedMemory::SharedMemory(Links& links)
    : places(links.membership().job_ranks.size()),
      sources(places.size()),
      targets(places.size()),
      links_(links),
      looks_(links.wait_policy().looks > 1 ? 32 : 1),
      looks_with_idle_mates_(links.wait_policy().looks_with_idle_mates) {
  if (looks_with_idle_mates_ == 0) return;
  for (int member = 0; member < size(); ++member) {
    if (links.network().shares_core(links.membership().job_ranks[member])) core_mates_.push_back(member);
  }
}

// Looks on without giving up the core if the ranks that share it have posted, too: they have no use for the core until a
// rank on another core posts, and that takes less time than giving up the core and getting it back.
const std::byte* SharedMemory::look_with_idle_mates(int member, std::size_t bytes) {
  if (!on_shared_core()) return nullptr;
  for (const int mate : core_mates_) {
    if (board().seen(mate, bytes) == nullptr) return nullptr;
  }
  for (int i = 0; i < looks_with_idle_mates_; ++i) {
    relax();
    if (const std::byte* const word = board().seen(member, bytes)) return word;
  }
  return nullptr;
}

void SharedMemory::begin(const Execution& execution) {
  call_ = &execution;
  board().begin(execution.planned->signature);
}

// The member detects the mismatch, too, and tells its call, unless it waits for nothing here.
void SharedMemory::refuse(int member) {
  const PlanVariant& variant = call_->planned->ordinary;
  const std::string mine = call_text(variant.plan->request, call_->buffers.dtype, call_->buffers.op);
  board().tell(mine);
  std::optional<std::string> theirs = board().told_by(member);
  for (const double until = now_seconds() + 2; !theirs && now_seconds() < until; theirs = board().told_by(member)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const std::string sentence = fmt::format(
      "Rank {} called {} where rank {} called {}, in communicator '{}'; all its ranks must make the same calls in the same "
      "order.",
      rank(), mine, member,
      !theirs           ? "something else (STRETTO_CHECK=1 says what)"
      : *theirs == mine ? "that, but behind another call (STRETTO_CHECK=1 says which)"
                        : *theirs,
      variant.record->group);
  links_.network().job().abort(sentence);  // also informs the ranks whose calls were correct
  throw Error(ErrorCode::invalid_argument, sentence);
}

void SharedMemory::draft(const BufferPlaces& mine, int ahead) {
  std::memcpy(board().draft(sizeof mine, static_cast<std::uint64_t>(ahead)), &mine, sizeof mine);
}

BufferExchange::BufferExchange(const Execution& execution)
    : shared_(*execution.shared),
      mine_(buffer_places_of(execution.buffers.input, execution.buffers.output, nullptr,
                             execution.planned->ordinary.plan->request)),
      symmetric_(mine_.symmetric != 0) {
  shared_.begin(execution);
}

bool BufferExchange::advance(bool alone) {
  Board& board = shared_.board();
  if (!posted_) {
    if (!board.may_post(sizeof mine_)) return false;
    shared_.draft(mine_);
    board.post();
    posted_ = true;
  }
  bool moved = false;
  for (; member_ < shared_.size(); ++member_) {
    const std::byte* const word =
        alone ? shared_.look(member_, sizeof(BufferPlaces)) : shared_.glance(member_, sizeof(BufferPlaces));
    if (word == nullptr) return moved;
    std::memcpy(&shared_.places[member_], word, sizeof(BufferPlaces));
    symmetric_ &= shared_.places[member_].symmetric != 0;
    moved = true;
  }
  board.saw_all();
  return true;
}

}  // namespace stretto
