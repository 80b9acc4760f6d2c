#include "collectives/execution/shared_memory.hpp"

#include <algorithm>
#include <cstring>

#include "collectives/plan/plan_builder.hpp"
#include "stretto/memory.hpp"

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

void SharedMemory::post(const BufferPlaces& mine) {
  std::memcpy(board().draft(sizeof mine), &mine, sizeof mine);
  board().post();
}

std::byte* SharedMemory::scratch(std::size_t bytes) {
  if (bytes > scratch_bytes_) {
    scratch_ = nullptr;
    scratch_ = allocate(bytes);
    scratch_bytes_ = bytes;
  }
  return scratch_.get();
}

BufferExchange::BufferExchange(SharedMemory& shared, const CallBuffers& buffers, const PlanRequest& request)
    : shared_(shared), mine_(buffer_places_of(buffers.input, buffers.output, nullptr, request)) {}

bool BufferExchange::advance() {
  Board& board = shared_.board();
  if (!posted_) {
    if (!board.may_post(sizeof mine_)) return false;
    shared_.post(mine_);
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

}  // namespace stretto
