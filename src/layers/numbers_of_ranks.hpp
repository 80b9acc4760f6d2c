#pragma once
#include <numeric>
#include <vector>

#include "stretto/communicator.hpp"

namespace stretto {

// Each member's numbers, of which members may have different counts. Collective over all members.
inline std::vector<std::vector<std::int64_t>> numbers_of_ranks(const Communicator& ranks,
                                                               const std::vector<std::int64_t>& own, const char* tag) {
  const OperationOptions options{.tag = tag};
  const std::int64_t count = std::ssize(own);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks.size()));
  ranks.all_gather(&count, counts.data(), 1, DType::i64, Stream::inline_(), options).wait();
  std::vector<std::int64_t> all(static_cast<std::size_t>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0})));
  ranks.all_gather_v(own.data(), all.data(), counts, DType::i64, Stream::inline_(), options).wait();
  std::vector<std::vector<std::int64_t>> result;
  result.reserve(counts.size());
  auto next = all.begin();
  for (const std::int64_t each : counts) {
    result.emplace_back(next, next + each);
    next += each;
  }
  return result;
}

}  // namespace stretto
