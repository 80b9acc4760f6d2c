#pragma once
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "stretto/layers/parameter.hpp"

namespace stretto {

// The parameters of a unit, one behind the other, as they lie in its table of parameter servers.
class TableParameters {
 public:
  TableParameters(std::shared_ptr<const Parameters> records, std::vector<std::size_t> members)
      : records_(std::move(records)), members_(std::move(members)) {}

  std::string name() const {
    const std::string& first = records_->all()[members_.front()]->name;
    return members_.size() == 1 ? first : first + " to " + records_->all()[members_.back()]->name;
  }

  // Calls f(parameter, the first of its elements, where they begin behind `first`, how many) for those that lie in a range.
  template <class F>
  void for_each_in(std::int64_t first, std::int64_t count, F f) const {
    std::int64_t begin = 0;
    for (const std::size_t member : members_) {
      const Parameter& parameter = *records_->all()[member];
      const std::int64_t end = begin + parameter.elements();
      const std::int64_t from = std::max(first, begin), to = std::min(first + count, end);
      if (from < to) f(parameter, from - begin, from - first, to - from);
      begin = end;
    }
  }

 private:
  std::shared_ptr<const Parameters> records_;
  std::vector<std::size_t> members_;
};

}  // namespace stretto
