#pragma once
#include <functional>
#include <vector>

#include "layers/optimizer/kept_momentum.hpp"
#include "stretto/layers/optimizer.hpp"

namespace stretto {

// The compressed average of 1-bit Adam (Tang et al. 2021), over the ranks of each vector of ShardedParameters::
// local_gradients(). The errors of both hops lie in ShardedParameters::errors(), under unsent_momentum().
class MomentumExchange {
 public:
  // `parameters` must keep gradients local. format: onebit, or none. Takes its memory at once.
  MomentumExchange(ShardedParameters& parameters, double beta1, QuantizedFormat format);

  using OfRange = std::function<void(const ShardedParameters::Range& range, const Optimizer::State& state)>;
  using Visit = std::function<void(const std::vector<std::size_t>& units, const OfRange& action, bool writes)>;
  // m <- the sum over the ranks of beta1 m / N + (1 - beta1) gradient_scale g, in the first slot of each state, to which it
  // goes by Optimizer::visit(). Collective.
  void run(double gradient_scale, const Visit& visit);
  // The slots have been written from outside: the next run() brings the owners' to all ranks.
  void forget();

 private:
  void add_slots(const Visit& visit, bool of_all) const;

  ShardedParameters& parameters_;
  double beta1_;
  QuantizedFormat format_;
  std::vector<KeptMomentum> kept_;  // by vector
  struct Place {                    // of a parameter's slice
    std::size_t vector = 0;
    std::int64_t first = 0;
  };
  std::vector<Place> places_;  // by parameter
};

}  // namespace stretto
