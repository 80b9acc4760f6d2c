#include "models/families/packed_rows.hpp"

#include "core/fail.hpp"

namespace stretto {

std::vector<ForeignRows> packed_qkv_rows(const PackedHeads& sizes, const ForeignRows& q, const ForeignRows& k,
                                         const ForeignRows& v, RowOrder order) {
  const auto& [heads, kv_heads, head_size] = sizes;
  require(kv_heads > 0 && heads % kv_heads == 0, "{} heads do not share {} heads of keys and values equally.", heads,
          kv_heads);
  require(q.count == heads * head_size && k.count == kv_heads * head_size && v.count == k.count,
          "{}, {} and {} have {}, {} and {} rows, but {} heads and {} of keys and values of {} rows each need others.",
          q.tensor.name, k.tensor.name, v.tensor.name, q.count, k.count, v.count, heads, kv_heads, head_size);
  std::vector<ForeignRows> rows;
  const auto add_head = [&rows, size = head_size](const ForeignRows& from, std::int64_t head, RowOrder its_order) {
    rows.push_back({from.tensor, from.first + head * size, size, its_order});
  };
  // Part p has head p of each group.
  const std::int64_t each = heads / kv_heads;
  for (std::int64_t part = 0; part < each; ++part) {
    for (std::int64_t group = 0; group < kv_heads; ++group) add_head(q, group * each + part, order);
  }
  for (std::int64_t group = 0; group < kv_heads; ++group) add_head(k, group, order);
  for (std::int64_t group = 0; group < kv_heads; ++group) add_head(v, group, RowOrder::same);
  return rows;
}

}  // namespace stretto
