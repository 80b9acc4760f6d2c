#pragma once
#include <string>
#include <vector>

#include "stretto/layers/sharded_parameters.hpp"

namespace stretto {

// How a vector of gradients travels in factors: first all P and what is summed as it is, then all Q.
struct FactoredVector {
  struct Matrix {
    std::size_t parameter = 0;
    std::int64_t first = 0, rows = 0, columns = 0;  // in the vector
    std::int64_t p = 0, q = 0;                      // elements of the two messages before its P [rows, r] and Q [columns, r]
  };
  struct Whole {
    std::size_t parameter = 0;
    std::int64_t first = 0, count = 0;  // in the vector
    std::int64_t at = 0;                // elements of the first message before it
  };
  std::vector<Matrix> matrices;
  std::vector<Whole> whole;
  std::int64_t sent = 0, factors = 0;  // elements of the two messages
  std::int64_t largest = 0;            // elements of the largest matrix
};
FactoredVector factored(const std::vector<LocalGradients::Piece>& pieces, const Parameters& parameters,
                        const PowerSGDOptions& options);

// The sums of PowerSGDOptions. `parameters` must keep gradients local and outlive the object. Errors and Q lie in
// ShardedParameters::errors(), under the names below. Collective calls, over the ranks of each vector.
class PowerSGD {
 public:
  PowerSGD(ShardedParameters& parameters, const PowerSGDOptions& options);

  static std::string error_name(const LocalGradients& vector) { return "powersgd." + vector.name; }
  static bool is_error(const std::string& name) { return name.starts_with("powersgd."); }
  static std::string factor_name(const LocalGradients& vector) { return "powersgd q." + vector.name; }
  static bool is_factor(const std::string& name) { return name.starts_with("powersgd q."); }

  // Behind the gradients of a step: brings their sum to ShardedParameters::Range::gradient.
  void sum();
  // An update takes the sum: what it has left out is fed back, and its Q is where the next one begins.
  void taken();

 private:
  struct Exchange {  // of a vector
    FactoredVector as;
    Tensor errors, q;  // kept from step to step; empty if it does not travel
    Tensor next_q;     // between sum() and taken()
    bool is_summed = false;
  };
  void sum(const LocalGradients& vector, Exchange& exchange) const;
  void make_orthonormal(const Tensor& q, const FactoredVector& as) const;
  void set_gradient(std::size_t parameter, const Tensor& whole) const;

  ShardedParameters& parameters_;
  PowerSGDOptions options_;
  std::vector<Exchange> exchanges_;                  // by vector
  std::vector<std::vector<std::size_t>> ranges_of_;  // by parameter
};

}  // namespace stretto
