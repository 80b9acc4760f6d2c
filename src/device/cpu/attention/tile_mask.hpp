#pragma once
#include <array>
#include <cstdint>

#include "stretto/kernels.hpp"

// An attention mask, tile by tile. It knows nothing of vectors: kernels of all instruction sets share it.
namespace stretto::kernels::attention {

using Index = std::int64_t;

constexpr Index tile = 64;      // queries or keys
constexpr Index row_group = 8;  // rows that are computed together

struct Range {
  Index first, last;  // [first, last)
};

class TileMask {
 public:
  enum class Sees : std::uint8_t { none, some, all };

  explicit TileMask(const AttentionBlock& block) : block_(block) {}
  TileMask(const TileMask&) = delete;
  TileMask& operator=(const TileMask&) = delete;

  // The next tiles are of this sequence, whose documents begin at AttentionBlock::starts.
  void begin_sequence(Index number) {
    starts_ = block_.starts == nullptr ? nullptr : block_.starts + number * block_.queries;
  }

  // Prepares the tile of up to `tile` queries and keys. After `none`, no other function may be called. After `some`, no
  // query sees the keys that pad the last row group.
  Sees look(Index first_query, Index queries, Index first_key, Index keys);

  // The queries that see some key of a row group of keys, and the keys that some query of a row group of queries sees: whole
  // row groups, up to the last that the tile has.
  Range queries_of(Index key_group) const { return ranges_->queries_of[static_cast<std::size_t>(key_group)]; }
  Range keys_of(Index query_group) const { return ranges_->keys_of[static_cast<std::size_t>(query_group)]; }
  // After `some`: bit i of a key's word says whether query i sees the key. One word more than there are keys.
  const std::uint64_t* words() const { return words_.data(); }

 private:
  static constexpr std::size_t groups = tile / row_group;

  struct Ranges {
    std::array<Range, groups> queries_of{}, keys_of{};
  };

  void mark(const TokenRange& queries, const TokenRange& keys);
  std::uint64_t begun_at(const TokenRange& queries, Index position) const;
  std::uint64_t seen_in(const TokenRun& queries, Index key) const;

  AttentionBlock block_;
  const std::int32_t* starts_ = nullptr;  // of the sequence at hand
  std::array<std::uint64_t, tile + 1> words_{};
  Ranges all_, some_;
  const Ranges* ranges_ = nullptr;
  // The last tile that was marked. Without global positions only distances count, so that one marked tile serves the whole
  // diagonal.
  struct Marked {
    Index distance = 0, queries = 0, keys = 0;
    bool operator==(const Marked&) const = default;
  } marked_;
};

}  // namespace stretto::kernels::attention
