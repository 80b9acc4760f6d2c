#pragma once
#include <cstdint>
#include <deque>
#include <vector>

#include "server/parts/served_part.hpp"

namespace stretto {

// Elements of a dense table, in the versions that workers may still ask for.
class ServedRange final : public ServedPart {
 public:
  ServedRange(const Tensor& values, int workers, Consistency consistency, ServerFunction function, bool acknowledges = false,
              std::int64_t first = 0);

  Tensor values() const override { return versions_.back(); }
  std::vector<Tensor> state() const override { return state_; }
  std::size_t versions_kept() const { return versions_.size(); }

 private:
  void check(int worker, const KeyedRows& pushed) const override;
  KeyedRows sum(const std::vector<KeyedRows>& pushes) const override;
  void apply(const PartUpdate& update) override;
  void read(Answer& answer, std::int64_t versions_before_last) override;
  void save_to(std::vector<Bytes>& pieces) const override;
  void load_from(const std::vector<Bytes>& pieces) override;

  ServerFunction function_;
  std::int64_t first_;           // the number of the first element in the table
  std::deque<Tensor> versions_;  // the last one is the newest
  std::vector<Tensor> state_;
  bool answered_ = false;  // someone has the newest values, which must then not change
};

}  // namespace stretto
