#pragma once
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "stretto/layers/linear.hpp"

namespace stretto {

// The rows of a weight, or the elements of a bias, that this rank of a column-parallel layer multiplies with: those of a
// record, or, where ranks share a head (CopiedParts), some of two, copied together when they are used, which takes a pass
// over them in front of each product.
class OwnRows {
 public:
  OwnRows() = default;  // none
  explicit OwnRows(Parameter* record) : records_{record} {}
  // Tiles of a weight (WeightTiles), for their sizes: they are never used together.
  explicit OwnRows(std::vector<Parameter*> tiles) : records_(std::move(tiles)) {}
  // Adds the records of a parameter of `shape`, [parts, rows of a part, ...], or without its first dimension if it has one
  // part. traits.matrices are of the whole.
  OwnRows(Parameters& parameters, const std::string& name, Shape shape, int parts, const CopiedParts& copied,
          const Parameter::Traits& traits, const TensorParallel& tensor_parallel);

  bool any() const { return !records_.empty(); }
  bool trainable() const { return any() && records_.front()->trainable; }
  const std::vector<Parameter*>& records() const { return records_; }
  std::int64_t elements() const;  // that this rank keeps
  std::int64_t rows() const { return rows_ > 0 ? rows_ : elements() / columns(); }
  std::int64_t columns() const { return records_.front()->extents.back(); }  // of a weight
  bool is_copied() const { return !pieces_.empty(); }

  // An empty tensor if there are none. Call it while the records are in use.
  Tensor value() const;
  // add(gradient, accumulates) must add to a tensor like value(), or overwrite it. Does nothing if they are frozen.
  void add_gradient(const std::function<void(const Tensor& gradient, bool accumulates)>& add) const;

 private:
  struct Piece {
    std::size_t record;
    std::int64_t from, to, count;  // elements of the record, and of value()
  };
  Shape shape() const;

  std::vector<Parameter*> records_;
  std::int64_t rows_ = 0;
  std::vector<Piece> pieces_;  // with two records
};

}  // namespace stretto
