#include "stretto/ledger.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>

#include "collectives/ledger/fast_path_log.hpp"
#include "core/fail.hpp"
#include "core/setting_values.hpp"
#include "device/stream/stream_queue.hpp"

namespace stretto {

// The folder and the name tell files of a program apart. Compilers are given whole paths, by CMake for one.
std::string CallSite::to_string() const {
  if (file == nullptr) return "";
  const std::string_view path = file;
  const std::size_t name = path.rfind('/');
  const std::size_t folder = name == std::string_view::npos || name == 0 ? name : path.rfind('/', name - 1);
  return fmt::format("{}:{}", folder == std::string_view::npos ? path : path.substr(folder + 1), line);
}

std::string Record::method_text() const { return plan.empty() ? stretto::to_string(method) : plan; }

std::string Record::headline() const {
  const std::string at = site.to_string();
  return fmt::format("{} #{} of '{}' ({} {}{}{}{}{})", name(collective), number, group, count,
                     quantized == QuantizedFormat::none ? name(dtype) : name(quantized), tag.empty() ? "" : ", ", tag,
                     at.empty() ? "" : ", at ", at);
}

std::string Record::to_string() const {
  const char* state = failed ? "failed" : times.done > 0 ? "done" : times.started > 0 ? "started" : "enqueued";
  return fmt::format("{} of {} ranks by {} on stream '{}': {}", headline(), group_size, method_text(), stream, state);
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
      if (!work.state()) return current;
      current.times = work.times();
      current.failed = work.state()->failure() != nullptr;
      return current;
    }
  };
  mutable std::mutex mutex;
  std::deque<LedgerEntry> entries;
  std::uint64_t next = 0;
  std::size_t most = static_cast<std::size_t>(std::max(1.0, number_setting("STRETTO_LEDGER")));

  struct GroupLog {
    std::shared_ptr<FastPathLog> log;
    std::uint64_t group_id;
  };
  std::vector<GroupLog> fast_path_logs;
  // The last numbers given, by Partners::group_id and kind of operation.
  std::map<std::pair<std::uint64_t, int>, std::uint64_t> numbers;
  static constexpr int collectives = -1;

  // Messages count apart for each peer and direction.
  std::uint64_t& last_number(const Record& record) {
    const bool message = is_message(record.collective);
    const int kind = message ? 2 * record.root + (record.collective == Collective::send ? 1 : 0) : collectives;
    return numbers[{record.partners ? record.partners->group_id : 0, kind}];
  }

  void push(Record record, const Work& work) {
    record.sequence = next++;
    record.number = ++last_number(record);
    entries.push_back({std::move(record), work});
    if (entries.size() > most) entries.pop_front();
  }

  // Appends the operations that the communicators have run on their fast paths since the last call.
  void collect() {
    std::vector<Record> fresh;
    for (auto& [log, group_id] : fast_path_logs) {
      const bool last_time = log.use_count() == 1;
      if (!last_time && !log->has_more()) continue;
      std::uint64_t lost = 0;
      for (Record& record : log->take(lost)) fresh.push_back(std::move(record));
      if (lost > 0) {  // numbers of entries have no gaps, and all entries so far are older than the lost ones
        next += lost;
        numbers[{group_id, collectives}] += lost;
        entries.clear();
      }
      if (last_time) log.reset();
    }
    std::stable_sort(fresh.begin(), fresh.end(),
                     [](const Record& a, const Record& b) { return a.times.started < b.times.started; });
    for (Record& record : fresh) push(std::move(record), Work());
    std::erase_if(fast_path_logs, [this](const GroupLog& each) {
      const bool has_ended = each.log == nullptr;
      if (has_ended) forget_numbers(each.group_id);
      return has_ended;
    });
  }
  void forget_numbers(std::uint64_t group_id) {
    numbers.erase(numbers.lower_bound({group_id, collectives}), numbers.lower_bound({group_id + 1, collectives}));
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

void Ledger::begin_again() {
  const std::lock_guard lock(book_->mutex);
  book_->collect();
  book_->entries.clear();
  book_->numbers.clear();
  book_->next = 0;
}

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

std::vector<Record> Ledger::last(std::size_t count) const {
  const std::lock_guard lock(book_->mutex);
  book_->collect();
  std::vector<Record> result;
  const std::size_t entries = book_->entries.size();
  for (std::size_t i = entries - std::min(entries, count); i < entries; ++i) result.push_back(book_->entries[i].now());
  for (const auto& each : book_->fast_path_logs) {
    std::optional<Record> waiting = each.log ? each.log->waiting_in() : std::nullopt;
    if (!waiting) continue;
    waiting->sequence = book_->next;
    waiting->number = book_->last_number(*waiting) + 1;
    result.push_back(std::move(*waiting));
  }
  return result;
}

std::string Ledger::last_operations(std::size_t count) const {
  std::string text;
  for (const Record& record : last(count)) text += "\n  " + record.to_string();
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
  entry->record.method = how.method;
  entry->record.dtype = how.dtype;
  entry->record.quantized = how.quantized;
  entry->record.bytes_sent = how.bytes_sent;
  entry->record.bytes_between_nodes = how.bytes_between_nodes;
  entry->record.partners = how.partners;
}

void Ledger::add(std::shared_ptr<FastPathLog> log, std::uint64_t group_id) {
  const std::lock_guard lock(book_->mutex);
  book_->fast_path_logs.push_back({std::move(log), group_id});
}

// Under the mutex: who asks what the rank is in sees the operation once.
void Ledger::enter_failed(Record record, FastPathLog& log) {
  const std::lock_guard lock(book_->mutex);
  book_->collect();
  book_->push(std::move(record), Work());
  log.waits_no_longer();
}

std::size_t Ledger::most_records() const { return book_->most; }

}  // namespace stretto
