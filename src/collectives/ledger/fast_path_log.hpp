#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "stretto/ledger.hpp"

namespace stretto {

// What a call says about itself, as OperationOptions has it.
struct CallLabel {
  CallSite site;
  const char* tag = nullptr;
  void enter(Record& record) const {
    record.site = site;
    record.tag = tag == nullptr ? "" : tag;
  }
};

// The operations that one communicator ran in the calling thread (InlineFastPath), in 48 bytes each. The calling thread, one
// at a time, writes without a lock or an allocation; the ledger collects the entries when it is queried.
class FastPathLog {
 public:
  // most: the number of operations that are kept.
  explicit FastPathLog(std::size_t most) : size_(most + 1) {}

  // Keeps a record without times, to which entries then refer. The record stays valid while a caller holds it, and after
  // that as long as entries refer to it. The first call makes room for the entries: many communicators never have any.
  std::shared_ptr<const Record> keep(Record record);

  // begin and end: ticks (device/stream/ticks.hpp).
  void write(const Record* record, const CallLabel& label, std::uint64_t begin, std::uint64_t end) {
    // No part of this entry may be seen before all of the last one: a reader allows for one half-written entry.
    std::atomic_thread_fence(std::memory_order_release);
    const std::uint64_t number = written_.load(std::memory_order_relaxed);
    TimedCall& entry = entries_[next_];
    next_ = next_ + 1 == size_ ? 0 : next_ + 1;
    entry.store(record, label, begin, end);
    written_.store(number + 1, std::memory_order_release);
  }

  // An operation that has not ended is not in the log. Once its wait for other ranks gets long, its thread says so here,
  // so that another thread can tell what the rank does. The caller must hold the record.
  void waits_in(const Record* record, const CallLabel& label, std::uint64_t begin) {
    if (waiting_in_.record.load(std::memory_order_relaxed) == record) return;
    waiting_in_.store(record, label, begin, 0);
  }
  void waits_no_longer() { waiting_in_.record.store(nullptr, std::memory_order_release); }
  // That operation, with `started` as its only time; null if there is none.
  std::optional<Record> waiting_in();

  // Whether take() has something to return. Costs two loads.
  bool has_more() const { return written_.load(std::memory_order_relaxed) != taken_.load(std::memory_order_relaxed); }
  // Returns records of the operations since the last call, the oldest first, without sequence numbers. lost: the number of
  // further operations whose entries were overwritten.
  std::vector<Record> take(std::uint64_t& lost);

 private:
  struct TimedCall {
    std::atomic<std::uint64_t> begin = 0, end = 0;
    std::atomic<const char*> file = nullptr;
    std::atomic<const char*> tag = nullptr;
    std::atomic<int> line = 0;
    std::atomic<const Record*> record = nullptr;

    void store(const Record* what, const CallLabel& label, std::uint64_t from, std::uint64_t until) {
      begin.store(from, std::memory_order_relaxed);
      end.store(until, std::memory_order_relaxed);
      file.store(label.site.file, std::memory_order_relaxed);
      tag.store(label.tag, std::memory_order_relaxed);
      line.store(label.site.line, std::memory_order_relaxed);
      record.store(what, std::memory_order_release);
    }
    CallLabel label() const {
      return {{file.load(std::memory_order_relaxed), line.load(std::memory_order_relaxed)},
              tag.load(std::memory_order_relaxed)};
    }
  };
  struct Unmap {
    std::size_t bytes;
    void operator()(TimedCall* entries) const;
  };
  void make_room();            // under the mutex
  void drop_unused_records();  // under the mutex

  std::size_t size_;  // one more than are kept: one entry may be half written
  // Pages that nobody has written to take no memory. calloc() would write to them where it takes them from a heap in which
  // something was freed.
  std::unique_ptr<TimedCall[], Unmap> entries_;
  std::atomic<std::uint64_t> written_ = 0;
  std::size_t next_ = 0;  // written_ % size_, without the division
  std::mutex mutex_;
  std::atomic<std::uint64_t> taken_ = 0;  // changes under the mutex
  std::vector<std::shared_ptr<const Record>> records_;
  std::size_t drop_at_ = 1024;  // records
  TimedCall waiting_in_;
};

}  // namespace stretto
