#pragma once
#include <random>

#include "matrix.hpp"
#include "support/tiers.hpp"

// Which cells of the matrix a test draws, and what it measures where a type is too narrow for equality.
namespace parity {

// Up to `count` of them.
inline std::vector<MatrixCell> sample(std::vector<MatrixCell> cells, std::size_t count) {
  std::mt19937 random(seed_of_the_day());
  std::ranges::shuffle(cells, random);
  cells.resize(std::min(cells.size(), count));
  return cells;
}

// The squares of gradients, and of their errors against f64 on one rank.
struct GradientError {
  double squares = 0, errors = 0;
  double relative() const { return std::sqrt(errors / squares); }

  // Adds one rank's pieces, which are `scale` times the gradients. `expected`: whole.
  void add(const Pieces& found, const Pieces& expected, double scale) {
    for (const auto& [name, piece] : found) {
      const Piece& whole = expected.at(piece.parameter);
      for_each_run(piece.global_shape, piece.first, piece.extents,
                   [&, &values = piece.values](std::int64_t here, std::int64_t there, std::int64_t count) {
                     for (std::int64_t i = 0; i < count; ++i) {
                       const double right = whole.values[static_cast<std::size_t>(there + i)];
                       const double error = values[static_cast<std::size_t>(here + i)] / scale - right;
                       squares += right * right;
                       errors += error * error;
                     }
                   });
    }
  }
};

// One rank's part in the error of the first step's gradients. Collective.
inline GradientError own_gradient_error(const Mesh& mesh, const TrainingOptions& options, const Pieces& expected) {
  Trainer trainer(mesh, options);
  const double scale = trainer.compute_gradients(text_of_step(options, 0)).loss_scale;
  GradientError error;
  error.add(pieces_of(trainer, trainer.sharded().whole_gradients()), expected, scale);
  return error;
}

}  // namespace parity
