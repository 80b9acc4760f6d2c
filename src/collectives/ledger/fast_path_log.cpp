#include "collectives/ledger/fast_path_log.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <unordered_set>

#include "core/fail.hpp"
#include "device/stream/ticks.hpp"

namespace stretto {

void FastPathLog::Unmap::operator()(TimedCall* entries) const { munmap(entries, bytes); }

void FastPathLog::make_room() {
  const std::size_t bytes = size_ * sizeof(TimedCall);
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    fail(ErrorCode::unavailable, "Cannot allocate {} bytes for communication records; lower STRETTO_LEDGER={}.", bytes,
         size_ - 1);
  }
  entries_ = decltype(entries_)(static_cast<TimedCall*>(memory), Unmap{bytes});  // all zeros, as TimedCall() is
}

std::shared_ptr<const Record> FastPathLog::keep(Record record) {
  const std::lock_guard lock(mutex_);
  if (!entries_) make_room();
  if (records_.size() >= drop_at_) drop_unused_records();
  records_.push_back(std::make_shared<const Record>(std::move(record)));
  return records_.back();
}

// First finds the records that have no other owner, and then looks at the entries: no new entry can refer to such a record.
void FastPathLog::drop_unused_records() {
  std::unordered_set<const Record*> unused;
  for (const auto& record : records_) {
    if (record.use_count() == 1) unused.insert(record.get());
  }
  std::atomic_thread_fence(std::memory_order_acquire);
  const std::uint64_t written = written_.load(std::memory_order_acquire);
  for (std::uint64_t number = std::max(taken_.load(), written > size_ ? written - size_ : 0); number < written; ++number) {
    unused.erase(entries_[number % size_].record.load(std::memory_order_relaxed));
  }
  std::erase_if(records_, [&](const auto& record) { return unused.count(record.get()) > 0; });
  drop_at_ = 2 * records_.size() + 1024;
}

std::vector<Record> FastPathLog::take(std::uint64_t& lost) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t written = written_.load(std::memory_order_acquire);
  const std::uint64_t first = std::max(taken_.load(), written > size_ ? written - size_ : 0);
  struct TimedCallCopy {
    std::uint64_t begin, end;
    CallLabel label;
    const Record* record;
  };
  std::vector<TimedCallCopy> lines;
  lines.reserve(written - first);
  for (std::uint64_t number = first; number < written; ++number) {
    const TimedCall& entry = entries_[number % size_];
    lines.push_back({entry.begin.load(std::memory_order_relaxed), entry.end.load(std::memory_order_relaxed), entry.label(),
                     entry.record.load(std::memory_order_relaxed)});
  }
  // The writer may have overwritten the oldest entries meanwhile; the entry after its last one may be half written.
  std::atomic_thread_fence(std::memory_order_acquire);
  const std::uint64_t now = written_.load(std::memory_order_relaxed);
  const std::uint64_t whole = now >= size_ ? now - size_ + 1 : 0;
  const std::uint64_t skip = whole > first ? std::min(whole - first, written - first) : 0;
  lost = first - taken_.load() + skip;
  taken_ = written;
  std::vector<Record> records;
  if (skip == lines.size()) return records;
  records.reserve(lines.size() - skip);
  const TickClock clock;
  for (std::size_t i = skip; i < lines.size(); ++i) {
    records.push_back(*lines[i].record);
    lines[i].label.enter(records.back());
    const Span span = clock.seconds_of(lines[i].begin, lines[i].end);
    records.back().times = {span.begin, span.begin, span.end, span.end - span.begin};
  }
  return records;
}

// While the pointer is there, its thread holds the record, and afterwards the log keeps it until it is unused under the
// mutex.
std::optional<Record> FastPathLog::waiting_in() {
  const std::lock_guard lock(mutex_);
  const Record* const record = waiting_in_.record.load(std::memory_order_acquire);
  if (record == nullptr) return {};
  Record waiting = *record;
  waiting_in_.label().enter(waiting);
  const std::uint64_t begin = waiting_in_.begin.load(std::memory_order_relaxed);
  waiting.times.enqueued = waiting.times.started = seconds_of(begin, begin).begin;
  return waiting;
}

}  // namespace stretto
