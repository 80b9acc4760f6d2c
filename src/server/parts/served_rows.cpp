#include "server/parts/served_rows.hpp"

#include <algorithm>
#include <cstring>

#include "core/fail.hpp"

namespace stretto {
namespace {

std::byte* row_at(const Tensor& rows, std::size_t place, std::size_t bytes) {
  return static_cast<std::byte*>(rows.raw()) + place * bytes;
}

}  // namespace

ServedRows::ServedRows(const ServedTable& table, int workers, Consistency consistency, bool acknowledges)
    : ServedPart(workers, consistency, acknowledges),
      width_(table.width),
      dtype_(table.dtype),
      initial_row_(table.initial_row),
      function_(table.update),
      storage_({64, table.width}, table.dtype) {}

void ServedRows::check(int worker, const KeyedRows& pushed) const {
  require(pushed.rows.size() == std::ssize(pushed.keys) * width_ && (pushed.keys.empty() || pushed.rows.dtype() == dtype_),
          "Worker {} pushes {} elements of {} for {} keys with rows of {} {}.", worker, pushed.rows.size(),
          name(pushed.rows.dtype()), pushed.keys.size(), width_, name(dtype_));
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
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto place = static_cast<std::size_t>(place_of(keys[i]));
    std::memcpy(row_at(result, i, row_bytes()), row_at(storage_, place, row_bytes()), row_bytes());
  }
  return result;
}

void ServedRows::apply(const PartUpdate& update) {
  const KeyedRows& pushed = update.pushed;
  if (pushed.keys.empty()) return;
  const Tensor values = gathered(pushed.keys);
  function_.update(
      {.values = values, .state = {}, .pushed = pushed.rows, .updates = update.number, .pushes = update.pushes});
  for (std::size_t i = 0; i < pushed.keys.size(); ++i) {
    const auto place = static_cast<std::size_t>(places_.at(pushed.keys[i]));
    std::memcpy(row_at(storage_, place, row_bytes()), row_at(values, i, row_bytes()), row_bytes());
  }
}

Tensor ServedRows::read(const Pull& pull, std::int64_t /*versions_before_last*/) { return gathered(pull.keys); }

void ServedRows::save_to(std::vector<Bytes>& pieces) const {
  std::vector<std::uint64_t> keys(places_.size());
  for (const auto& [key, place] : places_) keys[static_cast<std::size_t>(place)] = key;
  pieces.push_back(bytes_of(keys));
  const auto* const rows = static_cast<const std::byte*>(storage_.raw());
  pieces.emplace_back(rows, rows + keys.size() * row_bytes());
}

void ServedRows::load_from(const std::vector<Bytes>& pieces) {
  ensure(pieces.size() == 2, "A copy of keys came in {} pieces.", pieces.size());
  const auto keys = values_of<std::uint64_t>(pieces[0]);
  ensure(pieces[1].size() == keys.size() * row_bytes(), "A copy of {} keys came with {} bytes.", keys.size(),
         pieces[1].size());
  places_.clear();
  storage_ = Tensor({std::max<std::int64_t>(64, std::ssize(keys)), width_}, dtype_);
  for (const std::uint64_t key : keys) places_.emplace(key, std::ssize(places_));
  if (!keys.empty()) std::memcpy(storage_.raw(), pieces[1].data(), pieces[1].size());
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
