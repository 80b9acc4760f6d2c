#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/execution/buffers/wire_buffers.hpp"
#include "stretto/plan.hpp"
#include "transport/links.hpp"
#include "transport/shm/copy_to_reader.hpp"

// The places of all ranks' buffers, and the state of a communicator for reading and writing them.
namespace stretto {

struct Execution;

// The places of a rank's buffers; the rank sends them to the others with a signal.
struct BufferPlaces {
  BufferPlace input, output, scratch;
  std::uint64_t symmetric = 0;  // 1 if input and output are in memory that others can map, else 0
};

// Places of a rank's buffers; a buffer without elements counts as symmetric.
BufferPlaces buffer_places_of(const std::byte* input, const std::byte* output, const std::byte* scratch,
                              const PlanRequest& request);

// The most bytes that any rank puts into a packet of the call, at least 1; 0 for other algorithms. Every rank can compute
// the size of every packet.
std::size_t packet_bytes_of(const PlanRequest& request, DType wire);

// State that a communicator keeps for plans over shared memory, so that an operation allocates nothing. Used by one
// operation at a time.
class SharedMemory {
 public:
  explicit SharedMemory(Links& links);

  Board& board() { return links_.board(); }
  PeerMemory& memory(int member) { return links_.memory(member); }
  int rank() const { return links_.membership().rank; }
  int size() const { return static_cast<int>(places.size()); }
  bool one_process() const { return links_.one_process(); }  // if so, every address of a member is valid here
  // Writes `mine` for the next post (ahead = 1), or for a later one.
  void draft(const BufferPlaces& mine, int ahead = 1);
  // Posts and looks belong to this call from here on. The execution must outlive them.
  void begin(const Execution& execution);
  // The bytes that a member posted, or null. Throws Error(invalid_argument), and tells all ranks, if the member posted them
  // for another call. If ranks have cores of their own, it looks several times in a row, which detects a post soonest. If
  // they share cores, it does so while all ranks that share this rank's core wait as well.
  const std::byte* look(int member, std::size_t bytes) {
    const std::byte* word = nullptr;
    for (int i = 0; i < looks_ && word == nullptr; ++i) word = board().seen(member, bytes);
    if (word == nullptr && !core_mates_.empty()) word = look_with_idle_mates(member, bytes);
    check(member, word != nullptr);
    return word;
  }
  // The same by a single look, for a rank that has something else to do.
  const std::byte* glance(int member, std::size_t bytes) {
    const std::byte* const word = board().seen(member, bytes);
    check(member, word != nullptr);
    return word;
  }
  KeptMemory& scratch() { return links_.kept_memory(); }

  std::vector<BufferPlaces> places;  // by member, as each has sent them
  std::vector<const void*> sources;
  std::vector<void*> targets;
  CopyToReader copy_to_reader;  // into slots and scratch

 private:
  const std::byte* look_with_idle_mates(int member, std::size_t bytes);
  // A member that refuses another's first post of the call never makes its next one.
  void check(int member, bool posted) {
    if (!board().agrees(member, posted ? board().posted() : board().first())) [[unlikely]]
      refuse(member);
  }
  [[noreturn]] void refuse(int member);

  Links& links_;
  const int looks_, looks_with_idle_mates_;
  std::vector<int> core_mates_;  // the members that share this rank's core
  const Execution* call_ = nullptr;
};

// The members of a communicator tell each other where their buffers of a call are. So they learn whether all buffers are in
// memory that the others can map.
class BufferExchange {
 public:
  explicit BufferExchange(const Execution& execution);  // which must outlive it
  // Never waits; returns true if anything moved. alone: this rank has nothing else to do meanwhile.
  bool advance(bool alone);
  bool finished() const { return member_ == shared_.size(); }
  bool posted() const { return posted_; }
  bool symmetric() const { return symmetric_; }  // false from the start if this rank's are not; else valid once finished
  std::vector<int> awaited() const { return posted_ ? std::vector{member_} : shared_.board().behind(sizeof mine_); }

 private:
  SharedMemory& shared_;
  BufferPlaces mine_;
  bool posted_ = false;
  int member_ = 0;  // whose post is awaited
  bool symmetric_;
};

}  // namespace stretto
