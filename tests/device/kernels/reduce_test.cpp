#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "device/kernels/elements.hpp"
#include "device/kernels/kernel_data.hpp"
#include "support/error.hpp"

namespace stretto::kernels::tested {
namespace {

template <class T>
void reduce_into(ReduceOp op, const std::vector<Elements<T>>& sources, void* out, std::int64_t divisor) {
  std::vector<const void*> raw;
  for (const Elements<T>& source : sources) raw.push_back(source.raw());
  reduce_all(op, dtype_of<T>, raw.data(), static_cast<int>(raw.size()), out, sources[0].count(), divisor);
}

TEST(Reduce, EqualsScalarArithmeticAtEverySizeAndAddress) {
  for_each_type([]<class T>(T) {
    for (const std::int64_t size : kernel_sizes) {
      for (const std::size_t misalignment : {0, 1, 3}) {
        const std::vector<Elements<T>> sources{random_elements<T>(size, 1, misalignment), random_elements<T>(size, 2, 1)};
        for (const ReduceOp op : all_ops) {
          SCOPED_TRACE(std::string(name(op)) + " of " + std::to_string(size));
          Elements<T> out(size, 2 * misalignment);
          reduce(op, dtype_of<T>, sources[0].raw(), sources[1].raw(), out.raw(), size);
          expect_same(out, reduced(op, sources));
          out.expect_guards();
          Elements<T> in_place = sources[1];
          reduce(op, dtype_of<T>, sources[0].raw(), in_place.raw(), in_place.raw(), size);
          expect_same(in_place, out);
          in_place.expect_guards();
        }
      }
    }
  });
}

TEST(Reduce, NanOnEitherSideGivesNanAndZerosHaveAnOrder) {
  for_each_type([]<class T>(T) {
    if constexpr (is_float<T>) {
      const float nan = std::numeric_limits<float>::quiet_NaN();
      const float infinity = std::numeric_limits<float>::infinity();
      Elements<T> a(49);
      Elements<T> b(49);
      std::int64_t i = 0;
      for (const float left : {nan, -nan, 1.0F, -infinity, infinity, 0.0F, -0.0F}) {
        for (const float right : {nan, -nan, 2.0F, -infinity, infinity, 0.0F, -0.0F}) {
          a.set(i, T(left));
          b.set(i++, T(right));
        }
      }
      for (const ReduceOp op : all_ops) {
        SCOPED_TRACE(name(op));
        Elements<T> out(a.count());
        reduce(op, dtype_of<T>, a.raw(), b.raw(), out.raw(), a.count());
        expect_same(out, reduced(op, std::vector{a, b}));
        // Two ranks that exchange their vectors each combine their own first.
        Elements<T> swapped(a.count());
        reduce(op, dtype_of<T>, b.raw(), a.raw(), swapped.raw(), a.count());
        expect_same(swapped, out);
      }
    }
  });
}

TEST(ReduceAll, EqualsScalarArithmeticInTheOrderOfTheSources) {
  for_each_type([]<class T>(T) {
    for (const int source_count : {1, 2, 3, 9, 40}) {
      if (few_cases() && (source_count == 1 || source_count == 9)) continue;
      for (const std::int64_t size : {0, 1, 17, 65, 257}) {
        if (calls_are_slow() && (size == 1 || size == 65)) continue;
        std::vector<Elements<T>> sources;
        for (int s = 0; s < source_count; ++s) {
          sources.push_back(random_elements<T>(size, static_cast<unsigned>(s) + 1, s % 2 == 0 ? 1 : 4));
        }
        for (const ReduceOp op : all_ops) {
          for (const std::int64_t divisor : {1, 3, 8}) {
            if (few_cases() && divisor == 8) continue;
            SCOPED_TRACE(std::string(name(op)) + " of " + std::to_string(source_count) + " x " + std::to_string(size));
            const Elements<T> expected = reduced(op, sources, divisor);
            Elements<T> out(size, 3);
            reduce_into(op, sources, out.raw(), divisor);
            expect_same(out, expected);
            out.expect_guards();
            for (std::size_t s = 0; s < sources.size(); s += calls_are_slow() ? 13 : 2) {
              std::vector<Elements<T>> copies = sources;
              reduce_into(op, copies, copies[s].raw(), divisor);
              expect_same(copies[s], expected);
            }
          }
        }
      }
    }
  });
}

TEST(ReduceAll, TakesManyElementsAndSources) {
  for_each_type([]<class T>(T) {
    for (const unsigned source_count : {3U, 17U, 70U}) {
      std::vector<Elements<T>> sources;
      for (unsigned s = 0; s < source_count; ++s) sources.push_back(random_elements<T>(10001, s + 1, s));
      const Elements<T> expected = reduced(ReduceOp::avg, sources, 3);
      Elements<T> out(10001, 1);
      reduce_into(ReduceOp::avg, sources, out.raw(), 3);
      expect_same(out, expected);
      out.expect_guards();
      reduce_into(ReduceOp::avg, sources, sources[1].raw(), 3);
      expect_same(sources[1], expected);
    }
  });
}

// 2^(mantissa bits + 1) + 1 is a midpoint and rounds back, so that a sum that is rounded at every step does not grow.
TEST(ReduceAll, RoundsNarrowFloatsOnce) {
  for_each_type([]<class T>(T) {
    if constexpr (is_narrow(dtype_of<T>)) {
      const float large = std::is_same_v<T, bf16> ? 256 : std::is_same_v<T, f16> ? 2048 : std::is_same_v<T, f8e4m3> ? 16 : 8;
      std::vector<Elements<T>> sources(3, Elements<T>(70));
      for (std::int64_t i = 0; i < 70; ++i) {
        for (std::size_t s = 0; s < 3; ++s) sources[s].set(i, T(s == 0 ? large : 1.0F));
      }
      Elements<T> once(70);
      reduce_into(ReduceOp::sum, sources, once.raw(), 1);
      Elements<T> twice = sources[0];
      for (std::size_t s = 1; s < 3; ++s) {
        reduce(ReduceOp::sum, dtype_of<T>, twice.raw(), sources[s].raw(), twice.raw(), 70);
      }
      for (std::int64_t i = 0; i < 70; ++i) {
        EXPECT_EQ(static_cast<float>(once[i]), large + 2);
        EXPECT_EQ(static_cast<float>(twice[i]), large);
      }
    }
  });
}

TEST(ReduceAll, AveragesNumbersWhoseSumIsTooLarge) {
  for_each_type([]<class T>(T) {
    if constexpr (is_narrow(dtype_of<T>) && !std::is_same_v<T, bf16>) {  // a sum of bf16 overflows f32, too
      const float largest = std::is_same_v<T, f16> ? 65504 : std::is_same_v<T, f8e4m3> ? 448 : 57344;
      std::vector<Elements<T>> sources(4, Elements<T>(1));
      for (Elements<T>& source : sources) source.set(0, T(largest));
      Elements<T> out(1);
      reduce_into(ReduceOp::avg, sources, out.raw(), 4);
      EXPECT_EQ(static_cast<float>(out[0]), largest);
    }
  });
}

// Every out gets the same result, streamed or not, and nothing else is written; one out is also a source.
template <class T>
void expect_same_at_all_outs(ReduceOp op, const std::vector<Elements<T>>& sources,
                             const std::vector<std::size_t>& alignments, std::int64_t divisor, bool streaming) {
  const std::int64_t count = sources[0].count();
  Elements<T> expected(count);
  reduce_into(op, sources, expected.raw(), divisor);
  std::vector<Elements<T>> inputs = sources;
  std::vector<Elements<T>> outs;
  for (const std::size_t misalignment : alignments) outs.emplace_back(count, misalignment);
  std::vector<const void*> from;
  for (const Elements<T>& source : inputs) from.push_back(source.raw());
  std::vector<void*> to;
  for (Elements<T>& out : outs) to.push_back(out.raw());
  to.push_back(inputs.back().raw());
  reduce_all(op, dtype_of<T>, from.data(), static_cast<int>(from.size()), to.data(), static_cast<int>(to.size()), count,
             divisor, streaming);
  for (const Elements<T>& out : outs) {
    expect_same(out, expected);
    out.expect_guards();
  }
  expect_same(inputs.back(), expected);
  inputs.back().expect_guards();
}

TEST(ReduceAll, WritesTheSameToAllOuts) {
  HOST_ONLY("a GPU writes one result");
  for_each_type([]<class T>(T) {
    for (const std::int64_t size : {0, 1, 5, 16, 65, 257, 3001}) {
      std::vector<Elements<T>> sources;
      for (unsigned s = 0; s < 3; ++s) sources.push_back(random_elements<T>(size, s + 1, s * sizeof(T)));
      for (const ReduceOp op : all_ops) {
        for (const std::int64_t divisor : {1, 3}) {
          for (const bool streaming : {false, true}) {
            SCOPED_TRACE(std::string(name(op)) + " of " + std::to_string(size) + " by " + std::to_string(divisor) +
                         (streaming ? " streaming" : ""));
            // All outs aligned alike, aligned differently, and not even aligned to elements.
            for (const auto& alignments : {std::vector<std::size_t>{}, {0, 64, 0}, {8, 8, 24, 32}, {1, 0, 3}}) {
              expect_same_at_all_outs(op, sources, alignments, divisor, streaming);
            }
          }
        }
      }
    }
  });
}

TEST(Copy, CopiesEveryByteAndNoOther) {
  HOST_ONLY("copies on a GPU are CUDA's");
  for (const bool streaming : {false, true}) {
    for (const std::int64_t size : {0, 1, 63, 64, 127, 128, 129, 1000, 70001}) {
      for (const std::size_t from : {0, 1, 32}) {
        for (const std::size_t to : {0, 7, 16, 63}) {
          SCOPED_TRACE(std::to_string(size) + " bytes");
          const auto source = random_elements<std::uint8_t>(size, 1, from);
          Elements<std::uint8_t> target(size, to);
          copy(source.raw(), target.raw(), static_cast<std::size_t>(size), streaming);
          expect_same(target, source);
          target.expect_guards();
        }
      }
    }
  }
}

// Results have the same bits on every processor.
TEST(Reduce, AllInstructionSetsEqualScalarArithmetic) {
  on_each_instruction_set([&] {
    for_each_type([]<class T>(T) {
      std::vector<Elements<T>> sources;
      for (const unsigned seed : {1, 2, 3}) sources.push_back(random_elements<T>(3001, seed, seed));
      for (const ReduceOp op : all_ops) {
        SCOPED_TRACE(name(op));
        Elements<T> out(3001, 1);
        reduce_into(op, sources, out.raw(), 3);
        expect_same(out, reduced(op, sources, 3));
        for (const bool streaming : {false, true}) expect_same_at_all_outs(op, sources, {0, 64, 3, 8}, 3, streaming);
        divide(dtype_of<T>, out.raw(), 3001, 5);
        expect_same(out, reduced(ReduceOp::sum, std::vector{reduced(op, sources, 3)}, 5));
      }
      Elements<T> out(3001, 1);
      multiply(dtype_of<T>, sources[0].raw(), out.raw(), 3001, 2);
      Elements<T> expected(3001);
      for (std::int64_t i = 0; i < 3001; ++i) {
        expected.set(i, static_cast<T>(combined<T>(ReduceOp::prod, static_cast<Computed<T>>(sources[0][i]), 2)));
      }
      expect_same(out, expected);
    });
  });
}

TEST(Reduce, WhatDoesNotFitIsRefusedInASentence) {
  float x[4] = {};
  const void* const sources[] = {x};
  const auto no_type = static_cast<DType>(12);
  const auto no_op = static_cast<ReduceOp>(6);
  expect_refusal([&] { reduce(ReduceOp::sum, no_type, x, x, x, 4); }, "12");
  expect_refusal([&] { reduce(no_op, DType::f32, x, x, x, 4); }, "6");
  expect_refusal([&] { reduce(no_op, DType::i32, x, x, x, 4); }, "6");
  expect_refusal([&] { reduce_all(no_op, DType::f16, sources, 1, x, 4); }, "6");
  expect_refusal([&] { reduce_all(ReduceOp::sum, no_type, sources, 1, x, 4); }, "12");
  expect_refusal([&] { reduce_all(ReduceOp::sum, DType::f32, sources, 0, x, 4); }, "0 sources");
  expect_refusal([&] { reduce_all(ReduceOp::sum, DType::f32, sources, 1, x, 4, 0); }, "divided by 0");
  void* const outs[] = {x};
  expect_refusal([&] { reduce_all(ReduceOp::sum, DType::f32, sources, 1, outs, 0, 4, 1, false); }, "0 outs");
  expect_refusal([&] { reduce_all(ReduceOp::sum, DType::f32, sources, 0, outs, 1, 4, 1, true); }, "0 sources");
  expect_refusal([&] { reduce_all(ReduceOp::sum, DType::f32, sources, 1, outs, 1, 4, 0, true); }, "divided by 0");
  expect_refusal([&] { reduce_all(no_op, DType::f32, sources, 1, outs, 1, 4, 1, true); }, "6");
  expect_refusal([&] { divide(DType::f32, x, 4, -1); }, "divided by -1");
  expect_refusal([&] { divide(no_type, x, 4, 1); }, "12");
  expect_refusal([&] { multiply(no_type, x, x, 4, 1); }, "12");
  expect_refusal([&] { convert(no_type, x, DType::f32, x, 4); }, "12");
  expect_refusal([&] { convert(DType::f32, x, no_type, x, 4); }, "12");
}

}  // namespace
}  // namespace stretto::kernels::tested
