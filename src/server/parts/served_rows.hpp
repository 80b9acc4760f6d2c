#pragma once
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "server/parts/served_part.hpp"

namespace stretto {

// A part of the keys of a sparse table. A key's row is made when the key is first pushed or pulled.
class ServedRows final : public ServedPart {
 public:
  ServedRows(const ServedTable& table, int workers, Consistency consistency, bool acknowledges = false);

  std::size_t keys() const { return places_.size(); }

 private:
  void check(int worker, const KeyedRows& pushed) const override;
  KeyedRows sum(const std::vector<KeyedRows>& pushes) const override { return sum_by_key(pushes); }
  void apply(const PartUpdate& update) override;
  Tensor read(const Pull& pull, std::int64_t versions_before_last) override;
  void save_to(std::vector<Bytes>& pieces) const override;
  void load_from(const std::vector<Bytes>& pieces) override;
  Tensor gathered(const std::vector<std::uint64_t>& keys);
  std::int64_t place_of(std::uint64_t key);
  Tensor row(std::int64_t place) const { return storage_.view(place * width_, {width_}); }
  std::size_t row_bytes() const { return static_cast<std::size_t>(width_) * size_of(dtype_); }

  std::int64_t width_;
  DType dtype_;
  std::function<void(const Tensor& row, std::uint64_t key)> initial_row_;
  ServerFunction function_;
  std::unordered_map<std::uint64_t, std::int64_t> places_;  // in storage_
  Tensor storage_;                                          // [capacity, width]
};

}  // namespace stretto
