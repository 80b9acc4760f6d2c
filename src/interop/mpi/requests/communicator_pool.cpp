#include "requests/communicator_pool.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace stretto::mpi_door {

std::shared_ptr<const Communicator> CommunicatorPool::take(const Communicator& members) {
  std::vector<std::uint8_t> is_free(all_.size());
  std::transform(all_.begin(), all_.end(), is_free.begin(), [](const auto& each) { return each.use_count() == 1; });
  std::atomic_thread_fence(std::memory_order_acquire);  // use_count() is a relaxed load
  if (!is_free.empty()) {                               // free on this rank; a communicator must be free on all
    members
        .all_reduce(is_free.data(), is_free.data(), static_cast<std::int64_t>(is_free.size()), DType::u8, ReduceOp::min,
                    Stream::inline_(), {.tag = "free communicators"})
        .wait();
  }
  const auto found = std::find(is_free.begin(), is_free.end(), 1);
  if (found != is_free.end()) return all_[static_cast<std::size_t>(found - is_free.begin())];
  all_.push_back(std::make_shared<const Communicator>(members.duplicate("MPI persistent")));
  return all_.back();
}

}  // namespace stretto::mpi_door
