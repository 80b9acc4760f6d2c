#pragma once
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "core/fail.hpp"
#include "overlap/exchange.hpp"

namespace stretto {

// The places of all ranks' rows in a tensor that holds them in rank order.
class RowShares {
 public:
  // what: who got the rows, for the sentence that refuses them.
  RowShares(std::string_view what, const std::vector<std::int64_t>& rows, const Communicator& group) {
    require(static_cast<int>(rows.size()) == group.size() &&
                std::ranges::all_of(rows, [](std::int64_t each) { return each >= 0; }),
            "{} got the rows [{}] for a group of {} ranks; give each rank's number of rows, 0 or more.", what,
            fmt::join(rows, ", "), group.size());
    firsts_.reserve(rows.size() + 1);
    for (const std::int64_t each : rows) firsts_.push_back(firsts_.back() + each);
  }
  int ranks() const { return static_cast<int>(firsts_.size()) - 1; }
  std::int64_t first(int rank) const { return firsts_[static_cast<std::size_t>(rank)]; }
  std::int64_t count(int rank) const { return first(rank + 1) - first(rank); }
  std::int64_t all() const { return firsts_.back(); }
  std::int64_t most() const {
    std::int64_t rows = 0;
    for (int rank = 0; rank < ranks(); ++rank) rows = std::max(rows, count(rank));
    return rows;
  }
  Tensor share(const Tensor& of_all, int rank) const { return rows_of(of_all, first(rank), count(rank)); }

 private:
  std::vector<std::int64_t> firsts_{0};  // the first row of each rank, then the number of all rows
};

}  // namespace stretto
