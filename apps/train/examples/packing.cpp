#include "apps/train/examples/packing.hpp"

#include <set>
#include <tuple>
#include <utility>

namespace apps {

std::vector<Pack> packed(const std::vector<std::int64_t>& lengths, std::int64_t sequence) {
  std::vector<Pack> packs;
  std::set<std::pair<std::int64_t, std::int64_t>> room;  // of packs that are not full, by tokens and number
  for (std::int64_t document = 0; document < std::ssize(lengths); ++document) {
    const std::int64_t length = lengths[static_cast<std::size_t>(document)];
    const auto found = room.lower_bound({length, 0});
    std::int64_t left = sequence, pack = std::ssize(packs);
    if (found == room.end()) {
      packs.emplace_back();
    } else {
      std::tie(left, pack) = *found;
      room.erase(found);
    }
    packs[static_cast<std::size_t>(pack)].push_back(document);
    if (left > length) room.emplace(left - length, pack);
  }
  return packs;
}

}  // namespace apps
