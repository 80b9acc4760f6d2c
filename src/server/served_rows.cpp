#include "server/served_rows.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/fail.hpp"

namespace stretto {
namespace {

std::byte* row_at(const Tensor& rows, std::size_t place, std::size_t bytes) {
  return static_cast<std::byte*>(rows.raw()) + place * bytes;
}

}  // namespace

ServedRows::ServedRows(const ServedTable& table, int workers, Consistency consistency)
    : width_(table.width),
      dtype_(table.dtype),
      initial_row_(table.initial_row),
      consistency_(consistency),
      update_(table.update.make(0, 0)),
      storage_({64, table.width}, table.dtype),
      pushes_(workers) {}

void ServedRows::push(int worker, std::int64_t clock, KeyedRows pushed) {
  pushes_.count(worker, clock);
  if (consistency_.kind == Consistency::Kind::eventual) return apply(pushed);
  pushes_.keep(worker, std::move(pushed));
  while (pushes_.has_whole_clock()) apply(sum_by_key(pushes_.take_whole_clock()));
}

std::int64_t ServedRows::place_of(std::uint64_t key) {
  const auto [found, is_new] = places_.try_emplace(key, std::ssize(places_));
  if (!is_new) return found->second;
  if (found->second * width_ == storage_.size()) {
    const Tensor larger({2 * found->second, width_}, dtype_);
    std::memcpy(larger.raw(), storage_.raw(), storage_.bytes());
    storage_ = larger;
  }
  const Tensor fresh = row(found->second);
  std::memset(fresh.raw(), 0, fresh.bytes());
  if (initial_row_) initial_row_(fresh, key);
  return found->second;
}

Tensor ServedRows::gathered(const std::vector<std::uint64_t>& keys) {
  Tensor result({std::ssize(keys), width_}, dtype_);
  const std::size_t bytes = static_cast<std::size_t>(width_) * size_of(dtype_);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto place = static_cast<std::size_t>(place_of(keys[i]));
    std::memcpy(row_at(result, i, bytes), row_at(storage_, place, bytes), bytes);
  }
  return result;
}

void ServedRows::apply(const KeyedRows& pushed) {
  if (!pushed.keys.empty()) {
    const Tensor values = gathered(pushed.keys);
    update_(values, pushed.rows, version_);
    const std::size_t bytes = static_cast<std::size_t>(width_) * size_of(dtype_);
    for (std::size_t i = 0; i < pushed.keys.size(); ++i) {
      const auto place = static_cast<std::size_t>(places_.at(pushed.keys[i]));
      std::memcpy(row_at(storage_, place, bytes), row_at(values, i, bytes), bytes);
    }
  }
  ++version_;
}

std::vector<ServedRows::Answer> ServedRows::answers() {
  std::vector<Answer> result;
  std::erase_if(waiting_, [&](const Pull& pull) {
    if (version_ < least_version(consistency_, pull.clock)) return false;
    result.push_back({pull, gathered(pull.keys), version_});
    return true;
  });
  pushes_.check_waiting(waiting_.size());
  return result;
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
  const std::int64_t width = some->rows.size() / std::ssize(some->keys);
  const DType dtype = some->rows.dtype();
  const std::size_t bytes = static_cast<std::size_t>(width) * size_of(dtype);
  sum.rows = Tensor({std::ssize(sum.keys), width}, dtype);
  std::vector<bool> has(sum.keys.size());
  for (const KeyedRows& list : lists) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < list.keys.size(); ++i) {
      while (sum.keys[at] != list.keys[i]) ++at;
      std::byte* const to = row_at(sum.rows, at, bytes);
      const std::byte* const from = row_at(list.rows, i, bytes);
      if (has[at]) {
        kernels::reduce(ReduceOp::sum, dtype, to, from, to, width);
      } else {
        std::memcpy(to, from, bytes);
      }
      has[at] = true;
    }
  }
  return sum;
}

}  // namespace stretto
