#include "served_pool.hpp"

#include <atomic>
#include <iterator>
#include <set>
#include <utility>

#include "door.hpp"

namespace stretto::mpi_door {

ServedPool::Offers ServedPool::take(const Members& members) {
  Offers taken;
  const std::lock_guard lock(mutex_);
  while (taken.size() < most_offers) {
    auto next = kept_.end();
    for (auto one = kept_.begin(); one != kept_.end(); ++one) {
      const bool is_free = one->second.use_count() == 1;  // calls in flight hold it, too
      if (one->first != members || !is_free) continue;
      if (next == kept_.end() || one->second->blocking.id() < next->second->blocking.id()) next = one;
    }
    if (next == kept_.end()) break;
    taken.push_back(std::move(next->second));
    kept_.erase(next);
  }
  std::atomic_thread_fence(std::memory_order_acquire);  // use_count() is a relaxed load
  return taken;
}

void ServedPool::put(const Members& members, Offers offers) {
  Offers oldest;  // ends after the mutex is released
  const std::lock_guard lock(mutex_);
  for (auto& one : offers) kept_.emplace_back(members, std::move(one));
  while (kept_.size() > most_kept) {
    oldest.push_back(std::move(kept_.front().second));
    kept_.erase(kept_.begin());
  }
}

void ServedPool::clear() {
  decltype(kept_) last;  // destroyed after the mutex is released
  const std::lock_guard lock(mutex_);
  last.swap(kept_);
}

std::map<std::int64_t, std::int64_t> agree(const std::vector<Wish>& wishes) {
  std::map<std::int64_t, std::set<std::int64_t>> offered_by_all;
  for (const Wish& wish : wishes) {
    if (wish.color == Wish::none) continue;
    std::set<std::int64_t> ids(std::begin(wish.ids), std::end(wish.ids));
    ids.erase(Wish::none);
    const auto [place, is_first] = offered_by_all.emplace(wish.color, ids);
    if (!is_first) std::erase_if(place->second, [&](std::int64_t id) { return ids.count(id) == 0; });
  }
  std::map<std::int64_t, std::int64_t> agreed;
  for (const auto& [color, ids] : offered_by_all) agreed[color] = ids.empty() ? Wish::none : *ids.begin();
  return agreed;
}

}  // namespace stretto::mpi_door
