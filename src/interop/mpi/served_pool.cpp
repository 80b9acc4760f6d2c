#include "served_pool.hpp"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <set>
#include <utility>

#include "door.hpp"

namespace stretto::mpi_door {

ServedPool::Offers ServedPool::take(const Members& members) {
  Offers taken;
  const std::lock_guard lock(mutex_);
  const auto found = kept_.find(members);
  if (found == kept_.end()) return taken;
  Offers& kept = found->second;
  std::sort(kept.begin(), kept.end(), [](const auto& a, const auto& b) { return a->blocking.id() < b->blocking.id(); });
  for (auto& one : kept) {  // calls in flight hold it, too
    if (taken.size() < most_offers && one.use_count() == 1) taken.push_back(std::exchange(one, nullptr));
  }
  std::atomic_thread_fence(std::memory_order_acquire);  // use_count() is a relaxed load
  std::erase(kept, nullptr);
  return taken;
}

void ServedPool::put(const Members& members, Offers offers) {
  const std::lock_guard lock(mutex_);
  Offers& kept = kept_[members];
  while (!offers.empty() && kept.size() < most_kept) {
    kept.push_back(std::move(offers.back()));
    offers.pop_back();
  }
}  // the rest of the offers ends after the mutex is released

void ServedPool::clear() {
  std::map<Members, Offers> last;  // destroyed after the mutex is released
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
