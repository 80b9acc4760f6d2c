#include "collectives/select.hpp"

namespace stretto {

// Few messages while latency counts, whole vectors only while they are tiny. Where both are bandwidth-optimal, the ring
// keeps every byte between neighbours, and halving-doubling saves messages.
Algorithm choose_algorithm(Collective collective, int size, std::int64_t bytes) {
  constexpr std::int64_t tiny = 8 << 10;
  constexpr std::int64_t medium = 512 << 10;
  switch (collective) {
    case Collective::all_reduce:
      if (bytes <= tiny && size > 1) return Algorithm::recursive_doubling;
      return bytes <= medium ? Algorithm::recursive_halving_doubling : Algorithm::ring;
    case Collective::reduce_scatter:
    case Collective::all_gather: return bytes <= medium ? Algorithm::recursive_halving_doubling : Algorithm::ring;
    case Collective::broadcast:
    case Collective::reduce: return Algorithm::binomial;
    case Collective::barrier: return Algorithm::recursive_doubling;
    case Collective::send:
    case Collective::recv: return Algorithm::direct;
  }
  return Algorithm::automatic;
}

}  // namespace stretto
