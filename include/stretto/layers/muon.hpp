#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "stretto/layers/optimizer.hpp"

namespace stretto {

class MatrixExchange;

// The factor of a matrix's orthogonalised update, by which its size follows the matrix's shape.
enum class MuonScale : std::uint8_t {
  keller,     // sqrt(max(1, rows / columns)) (Jordan et al. 2024): set matrix_lr, too, about 0.02 / (the highest lr)
  moonlight,  // 0.2 sqrt(max(rows, columns)): updates are as large as AdamW's, and take its lr (Liu et al. 2025)
};
STRETTO_API double muon_scale(MuonScale scale, std::int64_t rows, std::int64_t columns);

// Muon (Jordan et al. 2024) for the hidden matrices of a model (Parameter::matrices), and AdamW for all other parameters.
// torch.optim.Muon computes the same, in bf16. Of each matrix, rows = outputs:
//
//   m <- momentum m + (1 - momentum) g;  G = (1 - momentum) g + momentum m
//   X = G / (|G|_F + 1e-7), and five times: A = X X^T, X <- 3.4445 X + (-4.775 A + 2.0315 A^2) X
//   w <- w - lr (scale X + weight_decay w)
//
// One rank of the pipeline stage computes a matrix's update from the whole matrix, so that its bits do not depend on the
// layout; matrices are dealt out to even the work. Gradients of matrices go to their owners by one all_to_all_v a step, and
// updates come back by another, at ZeRO stage 0 without tensor parallelism by one all_gather_v, in the accumulator type.
// Products are computed in the accumulator type, too, or in bf16, 5 (4 rows columns s + 2 s^3) operations a step for the
// smaller side s.
// State of an element of a matrix: 4 bytes, or 8 with 16-bit values; of others as AdamW's.
class STRETTO_API Muon : public Optimizer {
 public:
  struct STRETTO_API Options {
    double momentum = 0.95;
    MuonScale scale = MuonScale::moonlight;
    double matrix_lr = 1;                              // of matrices, as a multiple of the step's lr
    bool bf16_products = false;                        // of the five iterations, as torch.optim.Muon has them
    double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;  // of AdamW
    double weight_decay = 0.1;                         // of both
    OptimizerKind kind() const;
    // Throws Error(invalid_argument) for numbers that cannot be, and for bf16 products beside values of f64.
    void check(DType values) const;
  };
  // Collective over the ranks of a pipeline stage. Throws Error(invalid_argument) for a momentum below 0 or from 1 on, and
  // if the model trains no hidden matrix, such as with adapters alone.
  Muon(ShardedParameters& parameters, const Options& options);
  explicit Muon(ShardedParameters& parameters) : Muon(parameters, Options()) {}
  ~Muon() override;

 private:
  void prepare(const Step& step) override;
  void update(const ShardedParameters::Range& range, const Parameter& parameter, const State& state,
              const Step& step) override;

  const ShardedParameters& parameters_;
  Options options_;
  std::unique_ptr<MatrixExchange> exchange_;
  std::vector<std::size_t> chunks_of_;  // by range: the first of its chunks in exchange_->updated()
  Tensor updates_;                      // from prepare() to the last update() of the step
  std::size_t pending_ = 0;             // chunks whose update has not been applied
};

}  // namespace stretto
