#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "stretto/ledger.hpp"

namespace stretto {

// What one communicator has done at once in the calling thread, in 24 bytes an operation: written without a lock or an
// allocation by whoever calls, one thread at a time, and read by the ledger when somebody looks there.
class FastPathLog {
 public:
  // What a record says beside its times. It must live until nothing in the journal speaks of it: labels are kept here.
  using Label = Record;

  explicit FastPathLog(std::size_t most);

  // The label stays valid while somebody holds it; after that, as long as entries refer to it.
  std::shared_ptr<const Label> keep(Label label);

  void write(const Label* label, std::uint64_t begin, std::uint64_t end) {
    // Nothing of this entry may be seen before all of the last one: a reader allows for one half-written entry.
    std::atomic_thread_fence(std::memory_order_release);
    const std::uint64_t number = written_.load(std::memory_order_relaxed);
    Entry& entry = entries_[next_];
    next_ = next_ + 1 == size_ ? 0 : next_ + 1;
    entry.begin.store(begin, std::memory_order_relaxed);
    entry.end.store(end, std::memory_order_relaxed);
    entry.label.store(label, std::memory_order_relaxed);
    written_.store(number + 1, std::memory_order_release);
  }

  // Records of what has been written since the last call, the oldest first, without sequence numbers; lost: how many more
  // there were, overwritten by now.
  std::vector<Record> take(std::uint64_t& lost);

 private:
  struct Entry {
    std::atomic<std::uint64_t> begin, end;
    std::atomic<const Label*> label;
  };
  void drop_unused_labels();  // under the mutex

  std::size_t size_;                                   // one more than are kept: one may be half written
  std::unique_ptr<Entry[], void (*)(void*)> entries_;  // pages that nobody has written to take no memory
  std::atomic<std::uint64_t> written_ = 0;
  std::size_t next_ = 0;  // written_ % size_, without the division
  std::mutex mutex_;
  std::uint64_t taken_ = 0;
  std::vector<std::shared_ptr<const Label>> labels_;
  std::size_t drop_at_ = 1024;  // labels
};

}  // namespace stretto
