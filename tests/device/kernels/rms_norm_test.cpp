#include <gtest/gtest.h>

#include "device/kernels/kernel_data.hpp"
#include "stretto/error.hpp"
#include "stretto/kernels.hpp"

namespace stretto::kernels::tested {
namespace {

constexpr double epsilon = 1e-5;

std::vector<double> as_held(const std::vector<double>& numbers, DType dtype) { return values(tensor_of(numbers, dtype)); }

// One RMS norm of rows with all its tensors.
struct RmsOfRows {
  RmsOfRows(std::int64_t row_count, std::int64_t columns, DType dtype)
      : x(random_tensor({row_count, columns}, dtype, 1, 2)),
        gamma(random_tensor({columns}, dtype, 2)),
        dy(random_tensor({row_count, columns}, dtype, 4)),
        y(Shape{row_count, columns}, dtype),
        rstd(Shape{row_count}, accumulator(dtype)) {}
  void forward() const { rms_norm_forward(x, gamma, epsilon, y, rstd); }

  Tensor x, gamma, dy, y, rstd;
};

struct RmsReference {
  std::vector<double> y, rstd, dx, dgamma;
};

RmsReference rms_reference(const RmsOfRows& norm, bool rounds = true) {
  const std::int64_t columns = norm.x.columns();
  const auto n = static_cast<double>(columns);
  RmsReference result;
  result.dgamma.resize(static_cast<std::size_t>(columns));
  for (std::int64_t row = 0; row < norm.x.rows(); ++row) {
    const auto x = [&](std::int64_t c) { return norm.x.at(row * columns + c); };
    const auto dy = [&](std::int64_t c) { return norm.dy.at(row * columns + c); };
    double square = 0;
    for (std::int64_t c = 0; c < columns; ++c) square += x(c) * x(c) / n;
    const double rstd = 1 / std::sqrt(square + epsilon);
    std::vector<double> normal;
    double mean = 0;
    for (std::int64_t c = 0; c < columns; ++c) {
      normal.push_back(x(c) * rstd);
      mean += dy(c) * norm.gamma.at(c) * normal.back() / n;
      result.dgamma[static_cast<std::size_t>(c)] += dy(c) * normal.back();
    }
    const std::vector<double> held = rounds ? as_held(normal, norm.x.dtype()) : normal;
    for (std::int64_t c = 0; c < columns; ++c) {
      const auto i = static_cast<std::size_t>(c);
      result.y.push_back(held[i] * norm.gamma.at(c));
      result.dx.push_back(rstd * (dy(c) * norm.gamma.at(c) - normal[i] * mean));
    }
    result.rstd.push_back(rstd);
  }
  return result;
}

void expect_rms_formula(std::int64_t row_count, std::int64_t columns, DType dtype) {
  SCOPED_TRACE(testing::Message() << row_count << " rows of " << columns << " " << name(dtype));
  const RmsOfRows norm(row_count, columns, dtype);
  norm.forward();
  RmsReference expected = rms_reference(norm);
  expect_close(norm.rstd, expected.rstd, 0, 16);
  expect_close(norm.y, expected.y, 0.1, is_narrow(dtype) ? 3 : 16);
  const Tensor dx = random_tensor({row_count, columns}, dtype, 5);
  const Tensor dgamma = random_tensor({columns}, accumulator(dtype), 6);
  for (std::int64_t i = 0; i < dx.size(); ++i) expected.dx[static_cast<std::size_t>(i)] += dx.at(i);
  for (std::int64_t c = 0; c < columns; ++c) expected.dgamma[static_cast<std::size_t>(c)] += dgamma.at(c);
  rms_norm_backward(norm.x, norm.gamma, norm.rstd, norm.dy, dx, dgamma);
  expect_close(dx, expected.dx, 1, 16);
  expect_close(dgamma, expected.dgamma, 1, 16);
}

TEST(RmsNorm, EqualsItsFormula) {
  for (const DType dtype : compute_types) {
    for (const std::int64_t columns : {1, 3, 7, 16, 17, 63, 65, 128, 576, 1000, 1501, 4999, 9000}) {
      if (few_cases() && dtype == DType::f16 && columns > 1000) continue;  // takes the packs of bf16
      expect_rms_formula(21, columns, dtype);
    }
    expect_rms_formula(1, 64, dtype);
  }
}

TEST(RmsNorm, RoundsBeforeItMultipliesByTheWeight) {
  const RmsOfRows norm(20, 100, DType::bf16);
  norm.forward();
  const auto differing = [&](bool rounds) {
    const std::vector<double> expected = as_held(rms_reference(norm, rounds).y, DType::bf16);
    const std::vector<double> found = values(norm.y);
    int count = 0;
    for (std::size_t i = 0; i < found.size(); ++i) count += found[i] != expected[i];
    return count;
  };
  EXPECT_LE(differing(true), 10);
  EXPECT_GT(differing(false), 200) << "the control: rounded once, at the end";
}

TEST(RmsNorm, IsAccurateWithEveryInstructionSet) {
  on_each_instruction_set([&] {
    for (const DType dtype : compute_types) expect_rms_formula(5, 83, dtype);
  });
}

TEST(RmsNorm, GradientsIn16BitsAreRoundedOnce) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const RmsOfRows norm(21, 77, dtype);
    norm.forward();
    const auto backward = [&](DType gradient_type) {
      const Tensor dgamma({77}, gradient_type);
      convert(random_tensor({77}, dtype, 6), dgamma);
      rms_norm_backward(norm.x, norm.gamma, norm.rstd, norm.dy, Tensor::zeros(norm.x.shape(), dtype), dgamma);
      return values(dgamma);
    };
    EXPECT_EQ(backward(dtype), as_held(backward(DType::f32), dtype));
  }
}

TEST(RmsNorm, BackwardIsTheSlope) {
  const RmsOfRows norm(4, 33, DType::f64);
  norm.forward();
  const Tensor dx = Tensor::zeros(norm.x.shape(), DType::f64), dgamma = Tensor::zeros({33}, DType::f64);
  rms_norm_backward(norm.x, norm.gamma, norm.rstd, norm.dy, dx, dgamma);
  const auto loss = [&] {
    norm.forward();
    double sum = 0;
    for (std::int64_t i = 0; i < norm.y.size(); ++i) sum += norm.y.at(i) * norm.dy.at(i);
    return sum;
  };
  const auto slope = [&](const Tensor& tensor, std::int64_t i) {
    const double h = 1e-6, value = tensor.at(i);
    tensor.set(i, value + h);
    const double high = loss();
    tensor.set(i, value - h);
    const double low = loss();
    tensor.set(i, value);
    return (high - low) / (2 * h);
  };
  for (std::int64_t i = 0; i < dx.size(); ++i) EXPECT_NEAR(dx.at(i), slope(norm.x, i), 1e-7);
  for (std::int64_t c = 0; c < 33; ++c) EXPECT_NEAR(dgamma.at(c), slope(norm.gamma, c), 1e-7);
}

// Heads in parts among other columns, as packed queries and keys lie.
struct Strided {
  std::int64_t tokens, heads, size;
  TokenHeads at;

  static Strided random(std::int64_t tokens, std::int64_t heads, std::int64_t size, std::int64_t parts, DType dtype,
                        unsigned seed, std::int64_t margin = 8) {
    const std::int64_t step = heads / parts * size + margin;
    return {tokens, heads, size, {random_tensor({tokens, margin + parts * step}, dtype, seed), margin, parts, step}};
  }
  Tensor gathered() const {
    Tensor result({tokens * heads, size}, at.tensor.dtype());
    for_each([&](std::int64_t row, std::int64_t c, std::int64_t i) { result.set(row * size + c, at.tensor.at(i)); });
    return result;
  }
  // The elements that belong to no head.
  std::vector<double> others() const {
    Tensor copy = at.tensor.clone();
    for_each([&](std::int64_t, std::int64_t, std::int64_t i) { copy.set(i, 0); });
    return values(copy);
  }
  template <class Visit>
  void for_each(Visit visit) const {
    for (std::int64_t token = 0; token < tokens; ++token) {
      for (std::int64_t head = 0; head < heads; ++head) {
        for (std::int64_t c = 0; c < size; ++c)
          visit(token * heads + head, c, token * at.tensor.columns() + at.column(head, size) + c);
      }
    }
  }
};

TEST(HeadNorm, IsTheNormOfEachHeadWhereverItLies) {
  for (const DType dtype : compute_types) {
    for (const std::int64_t size : {5, 64, 80, 128}) {
      for (const std::int64_t margin : {0, 3, 8}) {
        SCOPED_TRACE(testing::Message() << "heads of " << size << " " << name(dtype) << ", " << margin
                                        << " columns between");
        const Strided x = Strided::random(7, 6, size, 3, dtype, 1, margin), y = Strided::random(7, 6, size, 1, dtype, 2);
        const std::vector<double> others = y.others();
        const Tensor gamma = random_tensor({size}, dtype, 3), rstd({7, 6}, accumulator(dtype));
        head_norm_forward(x.at, 6, gamma, epsilon, y.at, rstd);
        const Tensor rows = x.gathered(), expected(rows.shape(), dtype), its_rstd({42}, accumulator(dtype));
        rms_norm_forward(rows, gamma, epsilon, expected, its_rstd);
        expect_close(rstd, values(its_rstd));  // on a GPU, sums of packs are other sums
        expect_close(y.gathered(), values(expected), 0.1, 2);
        EXPECT_EQ(y.others(), others);

        const Strided dy = Strided::random(7, 6, size, 2, dtype, 4, margin), dx = Strided::random(7, 6, size, 1, dtype, 5);
        const Tensor dgamma = Tensor::zeros({size}, accumulator(dtype));
        head_norm_backward(x.at, 6, gamma, rstd, dy.at, dx.at, dgamma);
        const Tensor its_dx = Tensor::zeros(rows.shape(), dtype), its_dgamma = Tensor::zeros({size}, accumulator(dtype));
        rms_norm_backward(rows, gamma, its_rstd, dy.gathered(), its_dx, its_dgamma);
        expect_close(dx.gathered(), values(its_dx), 1);
        expect_close(dgamma, values(its_dgamma), 1, 4);
      }
    }
  }
}

TEST(HeadNorm, WorksInPlace) {
  for (const DType dtype : compute_types) {
    const Strided x = Strided::random(9, 4, 64, 2, dtype, 1), y = Strided::random(9, 4, 64, 2, dtype, 2);
    const Tensor gamma = random_tensor({64}, dtype, 3), rstd({36}, accumulator(dtype));
    head_norm_forward(x.at, 4, gamma, epsilon, y.at, rstd);
    const Strided dy = Strided::random(9, 4, 64, 2, dtype, 4), dx = Strided::random(9, 4, 64, 2, dtype, 5);
    const Tensor dgamma = Tensor::zeros({64}, accumulator(dtype));
    head_norm_backward(x.at, 4, gamma, rstd, dy.at, dx.at, dgamma);
    head_norm_backward(x.at, 4, gamma, rstd, dy.at, dy.at, dgamma);
    EXPECT_EQ(values(dy.gathered()), values(dx.gathered()));
    head_norm_forward(x.at, 4, gamma, epsilon, x.at, rstd);
    EXPECT_EQ(values(x.gathered()), values(y.gathered()));
  }
}

TEST(HeadNorm, ArgumentsMustFit) {
  const Strided x = Strided::random(2, 4, 8, 2, DType::bf16, 1);
  const Tensor gamma = random_tensor({8}, DType::bf16), rstd({8}, DType::f32), sums = Tensor::zeros({8}, DType::f32);
  EXPECT_NO_THROW(head_norm_forward(x.at, 4, gamma, epsilon, x.at, rstd));
  EXPECT_THROW(head_norm_forward(x.at, 5, gamma, epsilon, x.at, rstd), Error);
  EXPECT_THROW(head_norm_forward(x.at, 4, random_tensor({16}, DType::bf16), epsilon, x.at, rstd), Error);
  EXPECT_THROW(head_norm_forward(x.at, 4, random_tensor({8}, DType::f32), epsilon, x.at, rstd), Error);
  EXPECT_THROW(head_norm_forward(x.at, 4, gamma, epsilon, x.at, Tensor({8}, DType::bf16)), Error);
  EXPECT_THROW(head_norm_backward(x.at, 4, gamma, rstd, x.at, {x.at.tensor, 50, 2, 24}, sums), Error);
  EXPECT_THROW(rms_norm_forward(x.at.tensor, gamma, epsilon, x.at.tensor, rstd), Error);
}

TEST(RmsNorm, NoRowsAreNoWork) {
  const Tensor none({0, 16}, DType::f32), row = random_tensor({16}, DType::f32), statistics({0}, DType::f32);
  EXPECT_NO_THROW(rms_norm_forward(none, row, epsilon, none, statistics));
  EXPECT_NO_THROW(rms_norm_backward(none, row, statistics, none, none, Tensor::zeros({16}, DType::f32)));
}

}  // namespace
}  // namespace stretto::kernels::tested
