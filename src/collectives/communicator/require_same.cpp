#include "stretto/require_same.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "core/fail.hpp"
#include "core/rank_list.hpp"

namespace stretto {
namespace {

constexpr std::size_t most_named = 8;  // differences in the sentence
constexpr const char* comparison = "comparison";

// Fields end with a NUL, so that no two lists have the same bytes.
std::string packed(const std::vector<NamedValue>& values) {
  std::string text;
  for (const NamedValue& each : values) {
    for (const std::string* field : {&each.name, &each.value}) {
      require(field->find('\0') == std::string::npos, "The value of {} has a NUL byte, which cannot be compared.",
              each.name);
      text += *field + '\0';
    }
  }
  return text;
}

std::vector<NamedValue> unpacked(const char* at, const char* end) {
  std::vector<NamedValue> values;
  while (at < end) {
    NamedValue& each = values.emplace_back();
    each.name = at;
    at += each.name.size() + 1;
    each.value = at;
    at += each.value.size() + 1;
  }
  return values;
}

std::vector<std::vector<NamedValue>> gathered(const Communicator& ranks, const std::string& mine) {
  const auto size = static_cast<std::size_t>(ranks.size());
  const auto own = static_cast<std::int64_t>(mine.size());
  std::vector<std::int64_t> sizes(size);
  ranks.all_gather(&own, sizes.data(), 1, DType::i64, Stream::inline_(), {.tag = comparison}).wait();
  std::vector<char> all(static_cast<std::size_t>(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0})));
  ranks.all_gather_v(mine.data(), all.data(), sizes, DType::u8, Stream::inline_(), {.tag = comparison}).wait();
  std::vector<std::vector<NamedValue>> result;
  const char* at = all.data();
  for (const std::int64_t bytes : sizes) {
    result.push_back(unpacked(at, at + bytes));
    at += bytes;
  }
  return result;
}

// "--lr is '0.001' on ranks 0 to 2, '0.01' on rank 3", for each name whose values differ.
std::vector<std::string> differences(const std::vector<std::vector<NamedValue>>& of_ranks) {
  std::vector<std::string> names;  // in the order in which ranks give them
  std::map<std::string, std::map<std::string, std::vector<int>>> ranks_by_value;
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    for (const NamedValue& each : of_ranks[rank]) {
      if (!ranks_by_value.contains(each.name)) names.push_back(each.name);
      ranks_by_value[each.name]["'" + each.value + "'"].push_back(static_cast<int>(rank));
    }
  }
  std::vector<std::string> result;
  for (const std::string& name : names) {
    auto& values = ranks_by_value[name];
    std::vector<bool> has(of_ranks.size());
    for (const auto& [value, ranks] : values) {
      for (const int rank : ranks) has[static_cast<std::size_t>(rank)] = true;
    }
    for (std::size_t rank = 0; rank < has.size(); ++rank) {
      if (!has[rank]) values["missing"].push_back(static_cast<int>(rank));
    }
    if (values.size() == 1) continue;
    std::vector<std::pair<std::vector<int>, std::string>> in_rank_order;
    for (const auto& [value, ranks] : values) in_rank_order.emplace_back(ranks, value);
    std::sort(in_rank_order.begin(), in_rank_order.end());
    std::vector<std::string> parts;
    parts.reserve(in_rank_order.size());
    for (const auto& [ranks, value] : in_rank_order) parts.push_back(fmt::format("{} on {}", value, rank_list(ranks)));
    result.push_back(fmt::format("{} is {}", name, fmt::join(parts, ", ")));
  }
  return result;
}

}  // namespace

void require_same(const Communicator& ranks, const std::vector<NamedValue>& values) {
  const std::string mine = packed(values);
  const XXH128_hash_t digest = XXH3_128bits(mine.data(), mine.size());
  const std::uint64_t own[2] = {digest.low64, digest.high64};
  std::vector<std::uint64_t> all(2 * static_cast<std::size_t>(ranks.size()));
  ranks.all_gather(own, all.data(), 2, DType::u64, Stream::inline_(), {.tag = comparison}).wait();
  bool same = true;
  for (std::size_t i = 2; i < all.size(); ++i) same = same && all[i] == all[i % 2];
  if (same) return;

  std::vector<std::string> found = differences(gathered(ranks, mine));
  if (found.empty()) found.emplace_back("The order of the values differs");
  const std::size_t more = found.size() - std::min(found.size(), most_named);
  found.resize(found.size() - more);
  fail(ranks.rank() == 0 ? ErrorCode::invalid_argument : ErrorCode::peer_gave_up, "{}{}; give all ranks the same.",
       fmt::join(found, "; "), more > 0 ? fmt::format("; and {} more differ", more) : "");
}

void broadcast_text(const Communicator& ranks, std::string& text, const char* tag) {
  auto bytes = static_cast<std::int64_t>(text.size());
  ranks.broadcast(&bytes, &bytes, 1, DType::i64, 0, Stream::inline_(), {.tag = tag}).wait();
  text.resize(static_cast<std::size_t>(bytes));
  ranks.broadcast(text.data(), text.data(), bytes, DType::u8, 0, Stream::inline_(), {.tag = tag}).wait();
}

void broadcast_texts(const Communicator& ranks, std::map<std::string, std::string>& texts, const char* tag) {
  auto count = static_cast<std::int64_t>(texts.size());
  ranks.broadcast(&count, &count, 1, DType::i64, 0, Stream::inline_(), {.tag = tag}).wait();
  std::vector<std::pair<std::string, std::string>> all(texts.begin(), texts.end());
  all.resize(static_cast<std::size_t>(count));
  for (auto& [name, text] : all) {
    broadcast_text(ranks, name, tag);
    broadcast_text(ranks, text, tag);
  }
  texts = {all.begin(), all.end()};
}

}  // namespace stretto
