#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "server/parts/keyed_rows.hpp"
#include "stretto/push_filters.hpp"
#include "stretto/server.hpp"

namespace stretto {

// Throws Error(invalid_argument) for a chain that a table cannot have.
void check_filters(const ServedTable& table);

// The filters of a part, and the bytes of what they make of a push.
class FilterChain {
 public:
  static constexpr std::size_t keys_begin = 32;  // in the bytes of a sparse table
  // count: elements of the part, of a sparse table 0. seed: of random numbers, at a worker.
  FilterChain(const ServedTable& table, std::int64_t count, std::uint64_t seed = 0);

  Tensor encoded(KeyedRows rows);  // throws Error(invalid_argument) if a filter has broken the rules of PushFilter
  KeyedRows decoded(const Tensor& bytes) const;  // throws Error(internal) for bytes that no such chain has made
  void see_pulled(const std::vector<std::uint64_t>& keys, const Tensor& rows);

 private:
  void check_encoded(const PushedMessage& message) const;
  Tensor spread(const std::vector<std::uint64_t>& elements, const Tensor& rows) const;

  bool is_sparse_, packs_;
  std::int64_t count_, width_;
  std::vector<std::unique_ptr<PushFilter>> filters_;
};

}  // namespace stretto
