#pragma once
#include <string>
#include <vector>

#include "stretto/layers/adapter.hpp"
#include "stretto/layers/layer_cost.hpp"
#include "stretto/layers/linear.hpp"
#include "stretto/overlap/chunked_gemm.hpp"

namespace stretto {

// The two factors of all adapters of a linear layer, as one: A's lie below each other, times their scales; B's stand beside
// each other in the rows of their parts, with zeros in those of others. A tensor has no views of some columns, so that parts
// apart would cost copies of x and y; the zeros cost rank x out multiplications.
struct LowRank {
  Tensor b, a;  // [out, rank], [rank, in]; empty without adapters
  AdapterDropout dropout = {};
};

// The adapters of a linear layer or of its parts, and their records.
class LinearAdapters {
 public:
  // weight: the record of the layer's weight, which has a slice of its outputs or of its inputs. named: in which parts of
  // the weight's rows there may be adapters, beside that of all rows.
  LinearAdapters(Parameters& parameters, const std::string& name, const AdapterSet& adapters, const Parameter& weight,
                 const std::vector<NamedParts>& named, const TensorParallel& tensor_parallel, bool divides_outputs);

  std::vector<Parameter*> parameters() const;
  bool any_trainable() const;
  std::int64_t rank() const { return rank_; }  // of all together
  // Copies of the values, so that they outlast the parameters' use. draws: Tokens::draws of the layer's rows.
  LowRank factors(const Tensor& draws) const;
  // x: [tokens, in], dy: [tokens, out], of all rows. Needs no values but `of`.
  void add_gradients(const LowRank& of, const Tensor& x, const Tensor& dy) const;
  void add_cost(const CostedTokens& tokens, LayerCost& cost) const;

 private:
  struct One {
    Parameter *a, *b;
    double scale;
    std::int64_t rank, first;      // of all ranks
    std::int64_t first_row, rows;  // of the weight's slice
    std::uint64_t number;          // kernels::Dropout::number
    std::string set;               // its name among AdapterSet::others; empty: trained
  };
  void add(Parameters& parameters, const std::string& record, const NamedParts& part, const Adapter& adapter,
           const std::string& set, const AdapterSet& all, const Parameter& weight, const TensorParallel& tensor_parallel,
           bool divides_outputs);
  // The adapter's scale times the weight of its set.
  double scale_of(const One& one) const;
  // add_gradients() of one adapter, where each sees another x.
  void add_dropped_gradients(std::size_t i, const LowRank& of, const Tensor& x, const Tensor& dy) const;
  // Adds dB, or columns of it that begin with first_column, of an adapter of some rows.
  void add_columns(const One& one, const Tensor& db, std::int64_t first_column) const;
  bool is_one_of_all() const { return all_.size() == 1 && all_.front().rows == out_; }

  std::vector<One> all_;
  std::int64_t rank_ = 0, in_ = 0, out_ = 0;  // of the slice
  std::int64_t trained_rank_ = 0;             // of the first ones, which are trained
  double dropout_ = 0;
  std::shared_ptr<const AdapterWeights> weights_;
  std::int64_t first_column_ = 0;  // of the slice
};

}  // namespace stretto
