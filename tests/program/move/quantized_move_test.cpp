// Moves whose messages are quantized.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <bit>
#include <cmath>
#include <map>
#include <mutex>
#include <numeric>
#include <random>

#include "program/move/box.hpp"
#include "stretto/launch.hpp"
#include "stretto/layers/parameter.hpp"
#include "stretto/ledger.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

constexpr QuantizedFormat all_formats[] = {QuantizedFormat::int8, QuantizedFormat::int4, QuantizedFormat::fp8,
                                           QuantizedFormat::onebit};

std::vector<int> ranks_from(int first, int count) {
  std::vector<int> result(static_cast<std::size_t>(count));
  std::iota(result.begin(), result.end(), first);
  return result;
}

// Calls f(place in the rank's memory, number of the element in the tensor) for the elements of a rank.
template <class F>
void for_each_element(const MovedTensor& tensor, const Division& division, int rank, F f) {
  std::int64_t next = 0;
  for (std::size_t i = 0; i < division.ranks.size(); ++i) {
    if (division.ranks[i] != rank) continue;
    for (const Box& box : division.boxes[i]) {
      for (const Run& run : runs(whole(tensor.shape), box)) {
        for (std::int64_t e = 0; e < run.count; ++e) f(next++, run.offset + e);
      }
    }
  }
}

using Element = double (*)(std::int64_t number);

// What all ranks have of a tensor behind its move, by rank and element.
using Arrived = std::vector<std::map<std::int64_t, double>>;

Arrived moved(const MovedTensor& tensor, Element element, const std::vector<int>& nodes, int ranks, std::int64_t most = 0) {
  Arrived arrived(static_cast<std::size_t>(ranks));
  run_threads(ranks, [&](const Communicator& world) {
    const int rank = world.rank();
    const auto part = [&](const Division& division) {
      const std::int64_t count = division.elements(rank);
      return count > 0 ? Tensor::zeros({count}, tensor.dtype) : Tensor();
    };
    const Tensor input = part(tensor.from), output = part(tensor.to);
    for_each_element(tensor, tensor.from, rank,
                     [&](std::int64_t at, std::int64_t number) { input.set(at, element(number)); });
    const Move move(world, plan_move({tensor}, ranks, nodes, most));
    EXPECT_EQ(verify(move.plan()).value_or(""), "");
    const std::uint64_t before = world.job().ledger().traffic().bytes_sent;
    move.start({input}, {output}, Stream::inline_()).wait();
    EXPECT_EQ(world.job().ledger().traffic().bytes_sent - before, move.plan().bytes_out_of(rank));
    for_each_element(tensor, tensor.to, rank, [&](std::int64_t at, std::int64_t number) {
      arrived[static_cast<std::size_t>(rank)][number] = output.at(at);
    });
  });
  return arrived;
}

std::vector<MovedTensor> some_moves(DType dtype, QuantizedFormat format) {
  const Shape shape{96, 160};
  std::vector<MovedTensor> result;
  for (const Division& from :
       {Division::along(0, shape, {0, 1}), Division::along(1, shape, {1, 2, 3}), Division::replicated(shape, {0, 2})}) {
    for (const Division& to : {Division::along(1, shape, {2, 3}), Division::replicated(shape, {1, 2, 3}),
                               Division::along(0, shape, {3, 2, 1, 0})}) {
      result.push_back({dtype, shape, from, to, format});
    }
  }
  return result;
}

// Elements whose groups have one magnitude come back exactly from each format.
double sign(std::int64_t number) { return random_uniform(5, "signs", static_cast<std::uint64_t>(number)) < 0.5 ? -1 : 1; }

TEST(QuantizedMove, BringsEachElementToItsPlace) {
  for (const QuantizedFormat format : all_formats) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (const MovedTensor& tensor : some_moves(dtype, format)) {
        for (const std::vector<int>& nodes : {std::vector<int>{}, std::vector<int>{0, 0, 1, 1}}) {
          const Element scaled = format == QuantizedFormat::int8   ? +[](std::int64_t number) { return 127 * sign(number); }
                                 : format == QuantizedFormat::int4 ? +[](std::int64_t number) { return 7 * sign(number); }
                                 : format == QuantizedFormat::fp8  ? +[](std::int64_t number) { return 448 * sign(number); }
                                                                   : +[](std::int64_t number) { return sign(number); };
          for (const auto& of_rank : moved(tensor, scaled, nodes, 4)) {
            for (const auto& [number, value] : of_rank) ASSERT_EQ(value, scaled(number)) << name(format) << " " << number;
          }
        }
      }
    }
  }
}

double normal(std::int64_t number) { return random_normal(5, "values", static_cast<std::uint64_t>(number)); }

// The largest error of elements that a rank lacked; those that it had must be exact, and all that arrived of one element
// the same bits.
double largest_error(const MovedTensor& tensor, const std::vector<int>& nodes, std::int64_t most = 0) {
  const Arrived arrived = moved(tensor, normal, nodes, 4, most);
  double largest = 0;
  std::map<std::int64_t, double> copies;
  for (int rank = 0; rank < 4; ++rank) {
    std::map<std::int64_t, bool> had;
    for_each_element(tensor, tensor.from, rank, [&](std::int64_t, std::int64_t number) { had[number] = true; });
    for (const auto& [number, value] : arrived[static_cast<std::size_t>(rank)]) {
      const Tensor exactly({1}, tensor.dtype);
      exactly.set(0, normal(number));
      const double exact = exactly.at(0);
      if (had.contains(number)) {
        EXPECT_EQ(value, exact) << "rank " << rank << " had " << number;
        continue;
      }
      largest = std::max(largest, std::abs(value - exact));
      const auto [copy, is_first] = copies.try_emplace(number, value);
      EXPECT_EQ(std::bit_cast<std::uint64_t>(copy->second), std::bit_cast<std::uint64_t>(value))
          << "rank " << rank << ", element " << number;
    }
  }
  return largest;
}

TEST(QuantizedMove, CopiesHaveEqualBitsAndErrorsOfTheFormat) {
  for (const std::vector<int>& nodes : {std::vector<int>{}, std::vector<int>{0, 0, 1, 1}}) {
    for (const std::int64_t most : {std::int64_t{0}, std::int64_t{64} << 10}) {
      for (const MovedTensor& tensor : some_moves(DType::f32, QuantizedFormat::int8)) {
        MovedTensor in_int4 = tensor, as_it_is = tensor;
        in_int4.format = QuantizedFormat::int4;
        as_it_is.format = QuantizedFormat::none;
        // Of normal values no group has one above 6, so that half a step is below 6 / 127 / 2.
        const double of_int8 = largest_error(tensor, nodes, most);
        EXPECT_GT(of_int8, 0);
        EXPECT_LT(of_int8, 6.0 / 127 / 2);
        EXPECT_GT(largest_error(in_int4, nodes, most), of_int8) << "the control: fewer bits";
        EXPECT_EQ(largest_error(as_it_is, nodes, most), 0) << "the control: all bits";
      }
    }
  }
}

TEST(QuantizedMove, CopiesHaveEqualBitsInAllFormatsAndTypes) {
  // Of normal values up to 6, rounded to a type in which they err by 6 / 256 at most.
  const std::map<QuantizedFormat, double> most = {{QuantizedFormat::int8, 6.0 / 127 / 2},
                                                  {QuantizedFormat::int4, 6.0 / 7 / 2},
                                                  {QuantizedFormat::fp8, 6.0 / 16},
                                                  {QuantizedFormat::onebit, 6}};
  for (const QuantizedFormat format : all_formats) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (const std::vector<int>& nodes : {std::vector<int>{}, std::vector<int>{0, 0, 1, 1}}) {
        for (const MovedTensor& tensor : some_moves(dtype, format)) {
          if (tensor.to.boxes[0] != tensor.to.boxes[1]) continue;  // without copies
          SCOPED_TRACE(fmt::format("{} of {}", name(format), name(dtype)));
          const double error = largest_error(tensor, nodes);
          EXPECT_GT(error, 0);
          EXPECT_LT(error, most.at(format) + 6.0 / 256);
        }
      }
    }
  }
}

TEST(QuantizedMove, KeepsTheRecordsThatItPassesOn) {
  const Shape shape{64, 64};
  const MovedTensor tensor{DType::f32, shape, Division::replicated(shape, {0}), Division::replicated(shape, {1, 2}),
                           QuantizedFormat::int8};
  const std::int64_t half = packed_bytes(QuantizedFormat::int8, 32 * 64);
  const MovePlan plan = plan_move({tensor}, 3);
  EXPECT_EQ(plan.buffer_bytes(0), 2 * half);
  EXPECT_EQ(plan.buffer_bytes(1), 3 * half) << "a half out, a half in, and the records of the first one";
}

TEST(QuantizedMove, PartsFillTheirBuffers) {
  const Shape shape{1 << 20};
  const std::int64_t most = 64 << 10;
  for (const QuantizedFormat format : all_formats) {
    const MovePlan plan = plan_move(
        {{DType::f32, shape, Division::replicated(shape, {0}), Division::replicated(shape, {1}), format}}, 2, {}, most);
    EXPECT_EQ(verify(plan).value_or(""), "");
    EXPECT_LE(plan.buffer_bytes(1), most);
    const std::int64_t bytes = packed_bytes(format, 1 << 20), room = most - record_bytes(format);
    EXPECT_EQ(static_cast<std::int64_t>(plan.phases.size()), (bytes + room - 1) / room) << name(format);
  }
}

TEST(QuantizedMove, SendsRecordsAlone) {
  const Shape shape{1024, 1024};
  for (const QuantizedFormat format : all_formats) {
    const MovedTensor tensor{DType::f32, shape, Division::along(0, shape, ranks_from(0, 4)),
                             Division::along(1, shape, ranks_from(4, 4)), format};
    const MovePlan plan = plan_move({tensor}, 8);
    EXPECT_EQ(verify(plan).value_or(""), "");
    for (int rank = 4; rank < 8; ++rank) EXPECT_EQ(plan.bytes_into(rank), 4 * packed_bytes(format, 256 * 256));
    EXPECT_THAT(plan.to_string(), testing::HasSubstr(std::string(" in ") + name(format)));
  }
  const Shape small{3};  // fewer bytes than a record
  const MovePlan plan = plan_move(
      {{DType::f32, small, Division::replicated(small, {0}), Division::replicated(small, {1}), QuantizedFormat::int8}}, 2);
  EXPECT_EQ(plan.bytes_into(1), 12);
  EXPECT_THAT(plan.to_string(), testing::Not(testing::HasSubstr("int8")));
}

TEST(QuantizedMove, IsProvedForSixtyFourRanks) {
  const Shape shape{640, 1000};
  std::vector<int> nodes(64);
  for (int rank = 0; rank < 64; ++rank) nodes[static_cast<std::size_t>(rank)] = rank / 8;
  for (const std::int64_t most : {std::int64_t{0}, std::int64_t{64} << 10}) {
    const MovePlan plan = plan_move({{DType::bf16, shape, Division::replicated(shape, ranks_from(0, 20)),
                                      Division::replicated(shape, ranks_from(50, 14)), QuantizedFormat::int4}},
                                    64, nodes, most);
    EXPECT_EQ(verify(plan).value_or(""), "");
  }
}

TEST(QuantizedMove, ProofRefusesOtherBlocksOnTheWay) {
  const Shape shape{64, 64};
  const MovedTensor tensor{DType::f32, shape, Division::replicated(shape, {0}), Division::replicated(shape, {1, 2}),
                           QuantizedFormat::int8};
  MovePlan plan = plan_move({tensor}, 3);
  ASSERT_EQ(verify(plan).value_or(""), "");
  MoveBlock& passed_on = plan.phases.back().front();
  ASSERT_TRUE(passed_on.from_target);
  MoveBlock rest = passed_on;
  rest.box.begin[0] = passed_on.box.end[0] = passed_on.box.begin[0] + 1;
  plan.phases.back().push_back(rest);
  EXPECT_THAT(verify(plan).value_or(""), testing::HasSubstr("its records in int8 would be others"));
  plan.tensors.front().format = QuantizedFormat::none;
  EXPECT_EQ(verify(plan).value_or(""), "") << "the control: elements are the same in any blocks";
}

TEST(QuantizedMove, RefusesTypesWithoutFormats) {
  const Shape shape{4};
  EXPECT_THAT(sentence_of([&] {
                plan_move({{DType::i32, shape, Division::replicated(shape, {0}), Division::replicated(shape, {1}),
                            QuantizedFormat::int8}},
                          2);
              }),
              testing::HasSubstr("is of i32, which does not travel in int8"));
}

}  // namespace
}  // namespace stretto
