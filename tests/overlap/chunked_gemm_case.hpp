#pragma once
#include <gmock/gmock.h>

#include <cstring>
#include <numeric>

#include "device/kernels/kernel_data.hpp"
#include "stretto/overlap/chunked_gemm.hpp"
#include "stretto/stretto.hpp"
#include "support/data.hpp"

namespace stretto {

using kernels::Transpose;

inline constexpr DType types[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

// The operands of a product: all rows of x, each rank's share of them, and one weight for each rank.
struct Case {
  std::vector<std::int64_t> rows;
  std::int64_t inner = 0, columns = 0;
  DType dtype = DType::f32;
  Transpose transpose = Transpose::yes;

  std::int64_t all() const { return std::accumulate(rows.begin(), rows.end(), std::int64_t{0}); }
  std::int64_t first(int rank) const { return std::accumulate(rows.begin(), rows.begin() + rank, std::int64_t{0}); }
  std::int64_t own(int rank) const { return rows[static_cast<std::size_t>(rank)]; }
  Tensor x(unsigned seed, bool integers) const {
    return integers ? integer_tensor({all(), inner}, dtype, seed) : random_tensor({all(), inner}, dtype, seed);
  }
  Tensor share(const Tensor& of_all, int rank) const {
    return of_all.view(first(rank) * of_all.columns(), {own(rank), of_all.columns()});
  }
  Tensor weight(int rank, bool integers) const {
    const Shape shape = transpose == Transpose::yes ? Shape{columns, inner} : Shape{inner, columns};
    const auto seed = static_cast<unsigned>(100 + rank);
    return integers ? integer_tensor(shape, dtype, seed) : random_tensor(shape, dtype, seed);
  }
  Tensor product(const Tensor& x, const Tensor& weight) const {
    Tensor y({x.rows(), columns}, dtype);
    kernels::gemm(x, Transpose::no, weight, transpose, y);
    return y;
  }
};

inline std::vector<Case> cases(int ranks) {
  std::vector<Case> result;
  std::mt19937 generator(static_cast<unsigned>(ranks));
  std::uniform_int_distribution<std::int64_t> some(0, 70);
  for (const DType dtype : types) {
    for (const Transpose transpose : {Transpose::yes, Transpose::no}) {
      for (int i = 0; i < 3; ++i) {
        Case each{{}, 1 + some(generator) / 3, 1 + some(generator) / 2, dtype, transpose};
        for (int rank = 0; rank < ranks; ++rank) each.rows.push_back(i == 0 ? 33 : i == 1 ? some(generator) : rank % 2);
        result.push_back(each);
      }
    }
  }
  result.push_back({std::vector<std::int64_t>(static_cast<std::size_t>(ranks), 0), 3, 4});
  return result;
}

template <class Body>
void for_each_case(Body body) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    run_threads(ranks, [&](const Communicator& world) {
      const Stream stream("tp");
      for (const Case& each : cases(ranks)) {
        for (const int chunks : {0, 1, 3}) body(each, chunks, world, stream);
      }
    });
  }
}

}  // namespace stretto
