#include "server/parts/served_rows.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <string>
#include <utility>

#include "core/fail.hpp"

namespace stretto {
namespace {

constexpr std::int64_t most_elements = std::int64_t{1} << 56;  // of a tensor

// The sentence of the error if take() finds no memory; empty if it does.
template <class Take>
std::string lack_of_memory(Take take) {
  try {
    take();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unavailable) throw;
    return error.what();
  } catch (const std::bad_alloc&) {
    return "Cannot allocate memory.";
  }
  return {};
}

}  // namespace

ServedRows::ServedRows(const ServedTable& table, int workers, Consistency consistency, bool acknowledges)
    : ServedPart(workers, consistency, acknowledges),
      name_(table.name),
      width_(table.width),
      dtype_(table.dtype),
      initial_row_(table.initial_row),
      function_(table.update),
      storage_({64 * std::max<std::int64_t>(table.width, 1)}, table.dtype) {}

void ServedRows::check(int worker, const KeyedRows& pushed) const {
  if (has_lengths()) return;
  require(pushed.rows.size() == std::ssize(pushed.keys) * width_ && (pushed.keys.empty() || pushed.rows.dtype() == dtype_),
          "Worker {} pushes {} elements of {} for {} keys with rows of {} {}.", worker, pushed.rows.size(),
          name(pushed.rows.dtype()), pushed.keys.size(), width_, name(dtype_));
}

// Lengths come from another process, and their sum must not overflow.
std::string ServedRows::refusal(int worker, const std::vector<std::uint64_t>& keys,
                                const std::vector<std::int64_t>& lengths) {
  const auto who = [&] {
    return worker == PartUpdate::all_workers ? "One of all workers" : "Worker " + std::to_string(worker);
  };
  const auto others = [&] {
    return keys.size() < 2 ? "" : fmt::format(" Keys of the same part that are refused with it: {}.", keys.size() - 1);
  };
  std::int64_t room = most_elements - used_;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const auto found = places_.find(keys[i]);
    if (found != places_.end() && found->second.length != lengths[i]) {
      return fmt::format(
          "{} pushes or pulls key {} of table {} with {} elements, and it has {}: a key keeps its first length; give that "
          "one.{}",
          who(), keys[i], name_, lengths[i], found->second.length, others());
    }
    if (found != places_.end()) continue;
    if (lengths[i] > room) {
      return fmt::format(
          "{} pushes or pulls key {} of table {} with {} elements, and no memory holds more than {} besides the others of "
          "its part; give the length of its row.{}",
          who(), keys[i], name_, lengths[i], room, others());
    }
    room -= lengths[i];
  }
  const std::string lack = lack_of_memory([&] { reserve(most_elements - room); });
  if (lack.empty()) return {};
  return fmt::format(
      "{} pushes or pulls {} keys of table {}, and their server has no memory for {} elements besides the {} of their "
      "part: {} Give the lengths of their rows.",
      who(), keys.size(), name_, most_elements - room - used_, used_, lack);
}

void ServedRows::reserve(std::int64_t elements) {
  if (elements <= storage_.size()) return;
  const Tensor larger({std::max(2 * storage_.size(), elements)}, dtype_);
  std::memcpy(larger.raw(), storage_.raw(), static_cast<std::size_t>(used_) * size_of(dtype_));
  storage_ = larger;
}

// Lengths of new keys count at once, also for what comes before the first push is applied.
void ServedRows::note(const KeyedRows& pushed) {
  for (std::size_t i = 0; i < pushed.lengths.size(); ++i) place_of(pushed.keys[i], pushed.lengths[i]);
}

ServedRows::Place ServedRows::place_of(std::uint64_t key, std::int64_t length) {
  const auto found = places_.find(key);
  if (found != places_.end()) return found->second;
  reserve(used_ + length);
  const Tensor fresh = storage_.view(used_, {length});
  std::memset(fresh.raw(), 0, fresh.bytes());
  if (initial_row_) initial_row_(fresh, key);
  // Last, since what throws above must leave no key without a row of its own.
  const Place place{used_, length};
  places_.emplace(key, place);
  used_ += length;
  return place;
}

Tensor ServedRows::room_for(const std::vector<std::uint64_t>& keys, const std::vector<std::int64_t>& lengths) const {
  if (!has_lengths()) return {{std::ssize(keys), width_}, dtype_};
  return {{std::reduce(lengths.begin(), lengths.end())}, dtype_};
}

void ServedRows::gather(const std::vector<std::uint64_t>& keys, const std::vector<std::int64_t>& lengths,
                        const Tensor& rows) {
  auto* to = static_cast<std::byte*>(rows.raw());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const Place place = place_of(keys[i], has_lengths() ? lengths[i] : width_);
    std::memcpy(to, row_at(place), bytes_of_row(place));
    to += bytes_of_row(place);
  }
}

void ServedRows::apply(const PartUpdate& update) {
  const KeyedRows& pushed = update.pushed;
  if (pushed.keys.empty()) return;
  const Tensor values = room_for(pushed.keys, pushed.lengths);
  gather(pushed.keys, pushed.lengths, values);
  function_.update(
      {.values = values, .state = {}, .pushed = pushed.rows, .updates = update.number, .pushes = update.pushes});
  const auto* from = static_cast<const std::byte*>(values.raw());
  for (const std::uint64_t key : pushed.keys) {
    const Place& place = places_.at(key);
    std::memcpy(row_at(place), from, bytes_of_row(place));
    from += bytes_of_row(place);
  }
}

// All memory comes first: what initial_row throws is no refusal.
void ServedRows::read(Answer& answer, std::int64_t /*versions_before_last*/) {
  const Pull& pull = answer.pull;
  answer.refusal = refusal(pull.worker, pull.keys, pull.lengths);
  if (!answer.refusal.empty()) return;
  const std::string lack = lack_of_memory([&] {
    const auto fresh = std::ranges::count_if(pull.keys, [&](std::uint64_t key) { return !places_.contains(key); });
    if (!has_lengths()) reserve(used_ + fresh * width_);
    answer.values = room_for(pull.keys, pull.lengths);
  });
  if (lack.empty()) return gather(pull.keys, pull.lengths, answer.values);
  answer.refusal = fmt::format(
      "Worker {} pulls {} keys of table {}, and their server has no memory for their rows: {} Pull "
      "fewer keys at a time.",
      pull.worker, pull.keys.size(), name_, lack);
}

void ServedRows::save_to(std::vector<Bytes>& pieces) const {
  std::vector<std::pair<std::uint64_t, Place>> rows(places_.begin(), places_.end());
  std::ranges::sort(rows, {}, [](const auto& row) { return row.second.begin; });
  std::vector<std::uint64_t> keys;
  std::vector<std::int64_t> lengths;
  for (const auto& [key, place] : rows) {
    keys.push_back(key);
    lengths.push_back(place.length);
  }
  const auto* const values = static_cast<const std::byte*>(storage_.raw());
  pieces.push_back(bytes_of(keys));
  pieces.push_back(bytes_of(lengths));
  pieces.emplace_back(values, values + static_cast<std::size_t>(used_) * size_of(dtype_));
}

void ServedRows::load_from(const std::vector<Bytes>& pieces) {
  ensure(pieces.size() == 3, "A copy of keys came in {} pieces.", pieces.size());
  const auto keys = values_of<std::uint64_t>(pieces[0]);
  const auto lengths = values_of<std::int64_t>(pieces[1]);
  const auto elements = static_cast<std::int64_t>(pieces[2].size() / size_of(dtype_));
  ensure(lengths.size() == keys.size(), "A copy of {} keys came with {} lengths.", keys.size(), lengths.size());
  places_.clear();
  used_ = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const bool fits = lengths[i] > 0 && lengths[i] <= elements - used_ && (has_lengths() || lengths[i] == width_);
    ensure(fits && places_.emplace(keys[i], Place{used_, lengths[i]}).second,
           "A copy of {} keys came with a row of {} elements for key {}, or with the key twice.", keys.size(), lengths[i],
           keys[i]);
    used_ += lengths[i];
  }
  ensure(static_cast<std::size_t>(used_) * size_of(dtype_) == pieces[2].size(), "A copy of {} elements came with {} bytes.",
         used_, pieces[2].size());
  storage_ = Tensor({std::max(used_, 64 * std::max<std::int64_t>(width_, 1))}, dtype_);
  if (used_ > 0) std::memcpy(storage_.raw(), pieces[2].data(), pieces[2].size());
}

KeyedRows sum_by_key(const std::vector<KeyedRows>& lists) {
  KeyedRows sum;
  const KeyedRows* some = nullptr;
  for (const KeyedRows& list : lists) {
    sum.keys.insert(sum.keys.end(), list.keys.begin(), list.keys.end());
    if (!list.keys.empty()) some = &list;
  }
  if (some == nullptr) return sum;
  std::ranges::sort(sum.keys);
  sum.keys.erase(std::unique(sum.keys.begin(), sum.keys.end()), sum.keys.end());
  const auto for_rows_of = [&](const KeyedRows& list, const auto& body) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < list.keys.size(); ++i) {
      while (sum.keys[at] != list.keys[i]) ++at;
      body(at, i);
    }
  };
  const DType dtype = some->rows.dtype();
  if (some->lengths.empty()) {
    sum.rows = Tensor({std::ssize(sum.keys), some->length(0)}, dtype);
  } else {
    sum.lengths.resize(sum.keys.size());
    for (const KeyedRows& list : lists) {
      for_rows_of(list, [&](std::size_t at, std::size_t i) { sum.lengths[at] = list.lengths[i]; });
    }
    sum.rows = Tensor({std::reduce(sum.lengths.begin(), sum.lengths.end())}, dtype);
  }
  const std::vector<std::int64_t> begins = sum.begins();
  std::vector<bool> has(sum.keys.size());
  for (const KeyedRows& list : lists) {
    const auto* from = static_cast<const std::byte*>(list.rows.raw());
    for_rows_of(list, [&](std::size_t at, std::size_t i) {
      std::byte* const to = static_cast<std::byte*>(sum.rows.raw()) + static_cast<std::size_t>(begins[at]) * size_of(dtype);
      const std::int64_t length = list.length(i);
      if (has[at]) {
        kernels::reduce(ReduceOp::sum, dtype, to, from, to, length);
      } else {
        std::memcpy(to, from, static_cast<std::size_t>(length) * size_of(dtype));
      }
      has[at] = true;
      from += static_cast<std::size_t>(length) * size_of(dtype);
    });
  }
  return sum;
}

}  // namespace stretto
