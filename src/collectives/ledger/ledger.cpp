#include "stretto/ledger.hpp"

#include <algorithm>
#include <deque>
#include <mutex>

#include "collectives/ledger/fast_path_log.hpp"
#include "core/fail.hpp"
#include "core/setting_values.hpp"

namespace stretto {

std::string Record::to_string() const {
  const char* state = times.done > 0 ? "done" : times.started > 0 ? "started" : "enqueued";
  return fmt::format("#{} {} of {} {} in group '{}' of {} by {} on stream '{}'{}{}: {}", sequence, name(collective), count,
                     quantized == QuantizedFormat::none ? name(dtype) : name(quantized), group, group_size, name(algorithm),
                     stream, tag.empty() ? "" : ", ", tag, state);
}

Traffic& Traffic::operator+=(const Record& record) {
  ++operations;
  bytes_sent += record.bytes_sent;
  bytes_between_nodes += record.bytes_between_nodes;
  if (record.shares_times) return *this;
  if (record.times.done > 0) busy_seconds += record.times.done - record.times.started;
  exposed_seconds += record.times.waited;
  return *this;
}

struct Ledger::Book {
  struct LedgerEntry {
    Record record;
    Work work;
    Record now() const {
      Record current = record;
      if (work.state()) current.times = work.times();
      return current;
    }
  };
  mutable std::mutex mutex;
  std::deque<LedgerEntry> entries;
  std::uint64_t next = 0;
  std::size_t most = static_cast<std::size_t>(std::max(1.0, number_setting("STRETTO_LEDGER")));

  std::vector<std::shared_ptr<FastPathLog>> fast_path_logs;

  void push(Record record, const Work& work) {
    record.sequence = next++;
    entries.push_back({std::move(record), work});
    if (entries.size() > most) entries.pop_front();
  }

  // Appends the operations that the communicators have run on their fast paths since the last call.
  void collect() {
    std::vector<Record> fresh;
    for (auto& log : fast_path_logs) {
      const bool last_time = log.use_count() == 1;
      std::uint64_t lost = 0;
      for (Record& record : log->take(lost)) fresh.push_back(std::move(record));
      if (lost > 0) {  // numbers of entries have no gaps, and all entries so far are older than the lost ones
        next += lost;
        entries.clear();
      }
      if (last_time) log.reset();
    }
    std::erase(fast_path_logs, nullptr);
    std::stable_sort(fresh.begin(), fresh.end(),
                     [](const Record& a, const Record& b) { return a.times.started < b.times.started; });
    for (Record& record : fresh) push(std::move(record), Work());
  }

  LedgerEntry* find(std::uint64_t sequence) {
    const std::size_t index = index_of(sequence);
    return index < entries.size() && entries[index].record.sequence == sequence ? &entries[index] : nullptr;
  }

  std::size_t index_of(std::uint64_t sequence) const {  // the first entry that is not older
    const std::uint64_t oldest = next - entries.size();
    return sequence <= oldest ? 0 : std::min<std::size_t>(sequence - oldest, entries.size());
  }
};

Ledger::Ledger() : book_(std::make_unique<Book>()) {}
Ledger::~Ledger() = default;

std::uint64_t Ledger::next_sequence() const {
  const std::lock_guard lock(book_->mutex);
  book_->collect();
  return book_->next;
}

std::vector<Record> Ledger::records(std::uint64_t since) const {
  const std::lock_guard lock(book_->mutex);
  book_->collect();
  std::vector<Record> result;
  for (std::size_t i = book_->index_of(since); i < book_->entries.size(); ++i) result.push_back(book_->entries[i].now());
  return result;
}

Traffic Ledger::traffic(std::uint64_t since) const {
  Traffic sum;
  for (const Record& record : records(since)) sum += record;
  return sum;
}

std::string Ledger::last_operations(int count) const {
  const std::uint64_t next = next_sequence();
  std::string text;
  for (const Record& record : records(next > static_cast<std::uint64_t>(count) ? next - count : 0)) {
    text += "\n  " + record.to_string();
  }
  return text;
}

std::uint64_t Ledger::enter(Record record) {
  const std::lock_guard lock(book_->mutex);
  book_->collect();
  book_->push(std::move(record), Work());
  return book_->next - 1;
}

void Ledger::attach(std::uint64_t sequence, const Work& work) {
  const std::lock_guard lock(book_->mutex);
  if (Book::LedgerEntry* const entry = book_->find(sequence)) entry->work = work;
}

void Ledger::settle(std::uint64_t sequence, const Record& how) {
  const std::lock_guard lock(book_->mutex);
  Book::LedgerEntry* const entry = book_->find(sequence);
  if (entry == nullptr) return;
  entry->record.algorithm = how.algorithm;
  entry->record.dtype = how.dtype;
  entry->record.quantized = how.quantized;
  entry->record.bytes_sent = how.bytes_sent;
  entry->record.bytes_between_nodes = how.bytes_between_nodes;
  entry->record.partners = how.partners;
}

void Ledger::add(std::shared_ptr<FastPathLog> log) {
  const std::lock_guard lock(book_->mutex);
  book_->fast_path_logs.push_back(std::move(log));
}

std::size_t Ledger::most_records() const { return book_->most; }

}  // namespace stretto
