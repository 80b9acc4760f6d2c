#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/parts/served_part.hpp"

namespace stretto {

// A part of the keys of a sparse table. A key's row is made when the key is first pushed or pulled, and keeps its length.
class ServedRows final : public ServedPart {
 public:
  ServedRows(const ServedTable& table, int workers, Consistency consistency, bool acknowledges = false);

  std::size_t keys() const { return places_.size(); }

 private:
  void check(int worker, const KeyedRows& pushed) const override;
  std::string refusal(int worker, const std::vector<std::uint64_t>& keys, const std::vector<std::int64_t>& lengths) override;
  void note(const KeyedRows& pushed) override;
  KeyedRows sum(const std::vector<KeyedRows>& pushes) const override { return sum_by_key(pushes); }
  void apply(const PartUpdate& update) override;
  void read(Answer& answer, std::int64_t versions_before_last) override;
  void save_to(std::vector<Bytes>& pieces) const override;
  void load_from(const std::vector<Bytes>& pieces) override;
  struct Place {  // of a row, in storage_
    std::int64_t begin = 0, length = 0;
  };
  // refusal() must have allowed the lengths of all three.
  Tensor room_for(const std::vector<std::uint64_t>& keys, const std::vector<std::int64_t>& lengths) const;
  void gather(const std::vector<std::uint64_t>& keys, const std::vector<std::int64_t>& lengths, const Tensor& rows);
  Place place_of(std::uint64_t key, std::int64_t length);
  void reserve(std::int64_t elements);  // for all rows; throws Error(unavailable) if there is no such memory
  bool has_lengths() const { return width_ == ServedTable::any_length; }
  std::size_t bytes_of_row(const Place& place) const { return static_cast<std::size_t>(place.length) * size_of(dtype_); }
  std::byte* row_at(const Place& place) const {
    return static_cast<std::byte*>(storage_.raw()) + static_cast<std::size_t>(place.begin) * size_of(dtype_);
  }

  std::string name_;
  std::int64_t width_;
  DType dtype_;
  std::function<void(const Tensor& row, std::uint64_t key)> initial_row_;
  ServerFunction function_;
  std::unordered_map<std::uint64_t, Place> places_;
  std::int64_t used_ = 0;  // elements
  Tensor storage_;         // rows, one behind the other, and room for more
};

}  // namespace stretto
