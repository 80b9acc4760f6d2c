#pragma once
#include <memory>

#include "stretto/layers/optimizer.hpp"

namespace stretto {

class CoefficientExchange;

// DeMo, decoupled momentum optimization (Peng et al. 2024), for slow links: a momentum of which ranks send the strongest
// part only, and keep the rest. Ranks never sum gradients. Rank i adds its own gradient g_i to its own momentum delta_i, and
// takes the discrete cosine transform (DCT-II, orthonormal) of each chunk of it:
//
//   delta_i <- compression_decay delta_i + lr g_i
//   q_i = the compression_topk largest coefficients of each chunk, by magnitude
//   delta_i <- delta_i - the inverse DCT of q_i
//   q = the mean of each coefficient, over the ranks that have sent it      one all_gather of all q_i
//   w <- w - lr (sign(the inverse DCT of q) + weight_decay w)
//
// A chunk is a block of a matrix, or of a vector. Each side of it is the largest divisor of the matrix's side that is not
// above compression_chunk, so that chunks have one size and fill the matrix; matrices whose sides have no such divisors,
// such as primes, have chunks of few elements, and send much. A matrix is a rank's slice of a parameter, with leading
// dimensions flattened: tensor parallelism may change the chunks, and so the results.
//
// - All parameters are updated this way, vectors, embeddings and a rank alone too. Elements whose gradient is 0 move as well
//   if others of their chunk have one, since every element of the decoded chunk has a sign.
// - A coefficient travels in 6 bytes, f32 for its value and 16 bits for its place in the chunk: a chunk of 64 x 64 in 192
//   instead of 16384. Each rank gets the messages of all others, so that the bytes grow with the number of ranks.
// - All ranks get the same bits at ZeRO stages 1 and 2, where owners update. At stage 0 each rank decodes q itself, so that
//   the processors of a group must be alike.
// - The caller may clip g_i, by gradient_norm(), which is then the root of the mean square of the ranks' own norms. It must
//   be finite, or the caller must leave the step out; delta_i is then as it was.
// - Checkpoints have delta_i. In another layout the first rank of each group begins with the sum of all.
//
// Values must be f32, bf16 or f16, in host memory; ZeRO stage 2 or below. State: 4 bytes of delta_i for each of the rank's
// Psi elements at every ZeRO stage, beside 4 Psi for its own gradients and, with 16-bit values, the master weights. A step
// costs at most 6 (height + width of a chunk) operations an element, and with few coefficients hardly more than
// 6 height + 2 width: the two inverse transforms leave out coefficients of 0.
class STRETTO_API DeMo : public Optimizer {
 public:
  struct STRETTO_API Options {
    std::int64_t compression_chunk = 64, compression_topk = 32;  // names of the published code
    double compression_decay = 0.999;
    double weight_decay = 0;

    OptimizerKind kind() const;
    // Throws Error(invalid_argument), in one sentence, for options that cannot be, also together with those of `sharding`.
    void check(const ShardedParameters::Options& sharding) const;
  };
  // Collective: throws like Options::check(), and if ranks have other options.
  DeMo(ShardedParameters& parameters, const Options& options);
  ~DeMo() override;

 private:
  void prepare(const Step& step) override;
  void update(const ShardedParameters::Range& range, const Parameter& parameter, const State& state,
              const Step& step) override;

  Options options_;
  std::unique_ptr<CoefficientExchange> exchange_;
};

}  // namespace stretto
