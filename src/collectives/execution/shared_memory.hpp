#pragma once
#include <vector>

#include "collectives/execution/host_executor.hpp"

// Plans whose ranks reach each other's memory: they signal, wait, and read and write where the others' buffers lie.
namespace stretto {

// What a rank tells the others with a signal: where its buffers are.
struct BufferPlaces {
  Place input, output, scratch;
  std::uint64_t symmetric = 0;  // whether input and output are in memory that others can map
};

// The most bytes that any rank puts into a packet of that call, at least 1: all know of each packet how large it is. 0 by
// other algorithms.
std::size_t packet_bytes_of(const PlanRequest& request, DType wire);

// What a communicator keeps for it between operations, so that these allocate nothing. One operation at a time.
class SharedMemory {
 public:
  explicit SharedMemory(Links& links)
      : told(links.membership().job_ranks.size()),
        sources(told.size()),
        targets(told.size()),
        links_(links),
        looks_(links.wait_policy().looks > 1 ? 32 : 1) {}

  Board& board() { return links_.board(); }
  PeerMemory& memory(int member) { return links_.memory(member); }
  int rank() const { return links_.membership().rank; }
  int size() const { return static_cast<int>(told.size()); }
  // At what a member posted; where ranks have cores of their own some looks in a row, which see it soonest.
  const std::byte* look(int member, std::size_t bytes) {
    Board& all = board();
    const std::byte* word = nullptr;
    for (int i = 0; i < looks_ && word == nullptr; ++i) word = all.seen(member, bytes);
    return word;
  }
  std::byte* scratch(std::size_t bytes);  // in the symmetric heap; the same as last time where that was large enough

  std::vector<BufferPlaces> told;  // by member
  std::vector<const void*> sources;
  std::vector<void*> targets;

 private:
  Links& links_;
  int looks_;
  std::shared_ptr<std::byte> scratch_;
  std::size_t scratch_bytes_ = 0;
};

// Whether every member's buffers of a call lie where all others can map them: the members tell each other.
class BufferExchange {
 public:
  BufferExchange(const Execution& execution, const PlannedCall& planned);
  bool advance();  // without waiting; true if anything moved
  bool finished() const { return member_ == shared_.size(); }
  bool symmetric() const { return symmetric_; }  // of all members, once finished
  std::vector<int> awaited() const { return posted_ ? std::vector{member_} : shared_.board().behind(sizeof mine_); }

 private:
  SharedMemory& shared_;
  BufferPlaces mine_;
  bool posted_ = false;
  int member_ = 0;  // whose word is awaited
  bool symmetric_ = true;
};

// One such plan under way.
class SharedMemoryRun {
 public:
  // announced: a BufferExchange about the same call has just finished, which stands for the plan's first signal if it tells
  // no more than that. The execution must outlive it.
  SharedMemoryRun(const Execution& execution, bool announced);
  ~SharedMemoryRun();  // unfinished: when the others have given up, too
  SharedMemoryRun(const SharedMemoryRun&) = delete;
  SharedMemoryRun& operator=(const SharedMemoryRun&) = delete;

  bool advance();  // as above
  bool finished() const { return finished_; }
  std::vector<int> awaited() const;

 private:
  bool perform(const Step& step);
  bool signal();
  bool wait(int peer);
  void read(const Step& step);
  void read_reduce(const Step& step);
  void copy_to_all(const Step& step);
  void reduce_in_pieces(const Step& step);
  void check_symmetric();
  bool streams(const Step& step) const;
  const std::byte* own_term(const Slice& slice) const;
  const std::byte* reach(int member, const Slice& slice) const;
  Place place_of_buffer(int member, Buffer buffer) const;
  std::byte* own(const Slice& slice) const;
  std::size_t bytes(const Slice& slice) const { return static_cast<std::size_t>(slice.count) * width_; }

  const Execution& run_;
  SharedMemory& shared_;
  Board& board_;
  WireBuffers buffers_;
  std::size_t width_;
  const Step* step_ = nullptr;
  const Step* end_ = nullptr;
  std::byte* scratch_ = nullptr;
  std::size_t packet_bytes_ = 0;  // 0: no packet
  std::size_t post_bytes_;
  int heard_ = 0;            // members since the last signal
  bool only_hears_ = false;  // in packets from the root, which may be ahead
  bool begun_ = false;
  bool has_signalled_ = false;
  bool announced_;
  bool finished_ = false;
};

}  // namespace stretto
