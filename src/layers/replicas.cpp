#include "stretto/layers/replicas.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>

#include "core/fail.hpp"
#include "core/rank_list.hpp"

namespace stretto {
namespace {

std::uint64_t checksum(const Tensor& values) {
  if (!values) return 0;  // of another stage
  const Tensor on_host = values.on(Device::cpu);
  return XXH3_64bits(on_host.raw(), static_cast<std::size_t>(on_host.size()) * size_of(on_host.dtype()));
}

// The sets of ranks that hold the same slice of a parameter.
std::vector<std::vector<int>> copies_of(const Parameter& parameter, const MeshShape& mesh) {
  std::map<std::vector<int>, std::vector<int>> by_place;
  for (int rank = 0; rank < static_cast<int>(mesh.ranks()); ++rank) {
    std::vector<int> place;
    for (const Axis axis : all_axes) {
      const bool is_copied = token_axes.contains(axis) && parameter.replicated_over.contains(axis);
      place.push_back(is_copied ? 0 : mesh.place(rank, axis));
    }
    by_place[place].push_back(rank);
  }
  std::vector<std::vector<int>> sets;
  sets.reserve(by_place.size());
  for (auto& [place, ranks] : by_place) sets.push_back(std::move(ranks));
  return sets;
}

// Empty if the ranks of a set have the same checksum.
std::string difference(const std::string& name, const std::vector<int>& ranks, const std::function<std::uint64_t(int)>& of) {
  std::map<std::uint64_t, std::vector<int>> by_checksum;
  for (const int rank : ranks) by_checksum[of(rank)].push_back(rank);
  if (by_checksum.size() == 1) return {};
  const auto count = [](const auto& entry) { return entry.second.size(); };
  const auto most = std::ranges::max_element(by_checksum, {}, count);
  const auto as_many = [&](const auto& entry) { return count(entry) == count(*most); };
  if (std::ranges::count_if(by_checksum, as_many) > 1) return fmt::format("{} differs between {}", name, rank_list(ranks));
  std::vector<int> guilty;
  std::ranges::copy_if(ranks, std::back_inserter(guilty), [&](int rank) { return of(rank) != most->first; });
  return fmt::format("{} on {} differs from that on {}", name, rank_list(guilty), rank_list(most->second));
}

}  // namespace

void check_replicas(ShardedParameters& parameters) {
  const MeshShape& mesh = parameters.mesh().shape();
  require(
      parameters.options().zero != ZeroStage::values && !mesh.divided(token_axes).empty(),
      "Replicas cannot be compared: with {} ranks along the data, ring and ulysses axes and ZeRO stage {}, each value is on "
      "one of them only.",
      mesh.ranks_over(token_axes), static_cast<int>(parameters.options().zero));
  parameters.wait_for_values();
  const auto& all = parameters.parameters().all();
  std::vector<std::uint64_t> mine;
  mine.reserve(all.size());
  for (const auto& parameter : all) mine.push_back(checksum(parameter->value));
  const Communicator& world = parameters.mesh().world();
  std::vector<std::uint64_t> gathered(mine.size() * static_cast<std::size_t>(world.size()));
  world
      .all_gather(mine.data(), gathered.data(), static_cast<std::int64_t>(mine.size()), DType::u64, Stream::inline_(),
                  {.tag = "checksums of replicas"})
      .wait();
  std::vector<std::string> found;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto checksum_of = [&](int rank) { return gathered[static_cast<std::size_t>(rank) * all.size() + i]; };
    for (const std::vector<int>& ranks : copies_of(*all[i], mesh)) {
      std::string sentence = difference(all[i]->name, ranks, checksum_of);
      if (!sentence.empty()) found.push_back(std::move(sentence));
    }
  }
  if (found.empty()) return;
  fail(world.rank() == 0 ? ErrorCode::unavailable : ErrorCode::peer_gave_up,
       "{}{}: a memory, a processor or a link has changed values; go on from a checkpoint, without its host.", found.front(),
       found.size() > 1 ? fmt::format(" (and {} more)", found.size() - 1) : "");
}

}  // namespace stretto
