#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "device/cpu/products/compute_threads.hpp"
#include "layers/optimizer/matrices/chunked_dct.hpp"
#include "stretto/layers/optimizer.hpp"

namespace stretto {

// The coefficients by which a vector of momentum travels. The message of a rank has the values of all coefficients in f32,
// and behind them, in 16 bits each, the places of the coefficients in their chunks.
struct CoefficientVector {
  static constexpr std::int64_t largest_chunk = 256;  // sides whose places fit into 16 bits

  struct Matrix {
    std::size_t parameter = 0;
    std::int64_t first = 0;  // in the vector
    ChunkGrid grid;
    std::int64_t kept = 0;  // coefficients that a rank sends of each chunk
    std::int64_t at = 0;    // coefficients that the message has before those of this matrix
  };
  std::vector<Matrix> matrices;
  std::int64_t coefficients = 0;  // of a message

  // The bytes of a message are a multiple of 4, so that the values of the next one are aligned.
  std::int64_t bytes() const { return (6 * coefficients + 3) / 4 * 4; }
  // The most bytes in which so many threads transform the chunks of a matrix.
  std::int64_t scratch_bytes(int threads) const;
};
CoefficientVector coefficients_of(const std::vector<LocalGradients::Piece>& pieces, const Parameters& parameters,
                                  const CoefficientChoice& how);

// The exchange of DeMo (Peng et al. 2024), over the ranks of each vector of ShardedParameters::local_gradients(). The
// momentum that a rank has not sent yet lies in ShardedParameters::errors(), under unsent_momentum().
class CoefficientExchange {
 public:
  // `parameters` must keep gradients local, and outlive the object. Results do not depend on the number of threads, which
  // divide the chunks of a matrix.
  CoefficientExchange(ShardedParameters& parameters, const CoefficientChoice& how, double decay,
                      int threads = kernels::cpu::compute_threads());

  // momentum <- decay momentum + factor g; sends the largest coefficients of each chunk and takes them out of the momentum.
  // Leaves in the vectors the signs of the decoded mean. Collective.
  void run(double factor);
  // The signs of a range's elements, which the last run() has left.
  Tensor sign_of(const ShardedParameters::Range& range) const;

 private:
  struct Place {  // of a parameter's slice
    std::size_t vector = 0;
    std::int64_t first = 0;
  };
  void run(const LocalGradients& vector, const CoefficientVector& as, double factor);

  ShardedParameters& parameters_;
  double decay_;
  int threads_;
  std::vector<CoefficientVector> as_;  // by vector
  std::vector<Place> places_;          // by parameter
  ChunkedDCT dct_;
};

}  // namespace stretto
