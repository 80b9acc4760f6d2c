#include "overlap/bucket_cut.hpp"

#include <algorithm>

namespace stretto {
namespace {

bool belong_together(const GradientSize& one, const GradientSize& next) {
  return !one.ends_bucket && one.dtype == next.dtype;
}

std::size_t begin_of_last(const std::vector<GradientSize>& gradients, std::size_t most_bytes) {
  std::size_t begin = gradients.size() - 1;
  std::size_t bytes = gradients[begin].bytes;
  while (begin > 0 && belong_together(gradients[begin - 1], gradients[begin]) &&
         bytes + gradients[begin - 1].bytes <= most_bytes) {
    bytes += gradients[--begin].bytes;
  }
  return begin;
}

}  // namespace

std::vector<std::size_t> cut_into_buckets(const std::vector<GradientSize>& gradients, std::size_t bytes,
                                          std::size_t first_bytes) {
  std::vector<std::size_t> ends;
  if (gradients.empty()) return ends;
  const std::size_t last = begin_of_last(gradients, first_bytes);
  std::size_t held = 0;
  std::size_t left = 0;  // bytes from the beginning of the open bucket
  for (const GradientSize& gradient : gradients) left += gradient.bytes;
  for (std::size_t i = 0; i < last; ++i) {
    held += gradients[i].bytes;
    const std::size_t wanted = ends.empty() ? first_bytes : std::clamp(left / 2, first_bytes, bytes);
    if (held >= wanted || i + 1 == last || !belong_together(gradients[i], gradients[i + 1])) {
      ends.push_back(i + 1);
      left -= held;
      held = 0;
    }
  }
  ends.push_back(gradients.size());
  return ends;
}

}  // namespace stretto
