#include "transport/shm/departures.hpp"

namespace stretto {

std::atomic<std::uint32_t>& Departures::at(const Area& area) {
  const std::size_t page = area.departures / page_bytes * page_bytes;
  const std::lock_guard lock(mutex_);
  const Mapping& counts = pages_.try_emplace(page, file_, page, page_bytes).first->second;
  return *reinterpret_cast<std::atomic<std::uint32_t>*>(counts.data() + (area.departures - page));
}

}  // namespace stretto
