#include "stretto/move.hpp"

#include <gmock/gmock.h>

#include <barrier>
#include <future>
#include <numeric>
#include <random>

#include "core/parts.hpp"
#include "program/move/box.hpp"
#include "stretto/launch.hpp"
#include "stretto/ledger.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using testing::HasSubstr;

// Fills a rank's part of a division: each element is its number in the tensor, times `factor`.
Tensor filled(const MovedTensor& tensor, const Division& division, int rank, double factor) {
  const std::int64_t count = division.elements(rank);
  if (count == 0) return {};
  Tensor result({count}, tensor.dtype);
  std::int64_t next = 0;
  for (std::size_t i = 0; i < division.ranks.size(); ++i) {
    if (division.ranks[i] != rank) continue;
    for (const Box& box : division.boxes[i]) {
      for (const Run& run : runs(whole(tensor.shape), box)) {
        for (std::int64_t e = 0; e < run.count; ++e) result.set(next++, factor * static_cast<double>(run.offset + e));
      }
    }
  }
  return result;
}

void expect_moves(const Communicator& world, const std::vector<MovedTensor>& tensors, std::int64_t most = 0) {
  std::vector<Tensor> inputs, outputs, expected;
  for (const MovedTensor& tensor : tensors) {
    inputs.push_back(filled(tensor, tensor.from, world.rank(), 1));
    expected.push_back(filled(tensor, tensor.to, world.rank(), 1));
    outputs.push_back(filled(tensor, tensor.to, world.rank(), 0));
  }
  const Move move(world, plan_move(tensors, world.size(), world.nodes(), most));
  const std::uint64_t before = world.job().ledger().traffic().bytes_sent;
  move.start(inputs, outputs, Stream::inline_()).wait();
  EXPECT_EQ(world.job().ledger().traffic().bytes_sent - before, move.plan().bytes_out_of(world.rank()));
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    for (std::int64_t e = 0; expected[t] && e < expected[t].size(); ++e) {
      ASSERT_EQ(outputs[t].at(e), expected[t].at(e))
          << "rank " << world.rank() << ", tensor " << t << ", element " << e << "\n"
          << move.plan().to_string();
    }
  }
}

std::vector<int> some_ranks(std::mt19937& draw, int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::shuffle(ranks.begin(), ranks.end(), draw);
  ranks.resize(1 + draw() % static_cast<unsigned>(size));
  return ranks;
}

// Divides a tensor as a parameter is divided over tensor-parallel x ZeRO ranks: each rank has a flat share of a slice.
Division shares_of_slices(const Shape& shape, const std::vector<int>& ranks, int slices) {
  Division result{ranks, {}};
  const int shares = static_cast<int>(ranks.size()) / slices;
  for (int i = 0; i < static_cast<int>(ranks.size()); ++i) {
    std::vector<Box>& boxes = result.boxes.emplace_back();
    if (i >= shares * slices) continue;
    const Box slice =
        Division::along(shape.size() - 1, shape, std::vector<int>(static_cast<std::size_t>(slices))).boxes[i % slices][0];
    boxes = flat_range(slice, part_begin(slice.elements(), shares, i / slices),
                       part_begin(slice.elements(), shares, i / slices + 1));
  }
  return result;
}

Division random_division(std::mt19937& draw, const Shape& shape, int size) {
  std::vector<int> ranks = some_ranks(draw, size);
  switch (draw() % 3) {
    case 0: return Division::replicated(shape, ranks);
    case 1: return Division::along(draw() % shape.size(), shape, ranks);
    default: return shares_of_slices(shape, ranks, 1 + static_cast<int>(draw() % ranks.size()));
  }
}

TEST(Move, RandomMovesAreThoseOfAnOracle) {
  for (int size = 1; size <= 4; ++size) {
    run_threads(size, [](const Communicator& world) {
      std::mt19937 draw(11);  // the same on all ranks
      for (int i = 0; i < 60; ++i) {
        std::vector<MovedTensor> tensors;
        for (unsigned t = 0; t <= draw() % 3; ++t) {
          Shape shape;
          for (unsigned d = 0; d <= draw() % 3; ++d) shape.push_back(1 + static_cast<std::int64_t>(draw() % 9));
          const DType dtype = std::vector{DType::f32, DType::f64, DType::i64}[draw() % 3];
          Division from = random_division(draw, shape, world.size()), to = random_division(draw, shape, world.size());
          tensors.push_back({dtype, shape, std::move(from), std::move(to)});
        }
        expect_moves(world, tensors);
      }
    });
  }
}

TEST(Move, LongTensorsInBoundedBuffers) {
  run_threads(4, [](const Communicator& world) {
    const Shape shape{301, 403};
    const std::vector<MovedTensor> tensors = {
        {DType::f32, shape, shares_of_slices(shape, {0, 1, 2, 3}, 2), Division::along(0, shape, {3, 1})},
        {DType::i32, shape, Division::along(0, shape, {0, 1}), Division::replicated(shape, {1, 2, 3})}};
    expect_moves(world, tensors);
    expect_moves(world, tensors, 64 << 10);
  });
}

// Enqueued exchanges share one buffer.
TEST(Move, HoldsItsBoundOnAStream) {
  constexpr std::int64_t most = 64 << 10;
  const auto held = [] { return static_cast<std::int64_t>(memory_use(MemoryKind::activations).bytes); };
  const std::int64_t before = held();
  std::barrier both(2);
  run_threads(2, [&](const Communicator& world) {
    const Shape shape{1024, 256};
    const MovedTensor tensor{DType::f32, shape, Division::along(0, shape, {0}), Division::along(1, shape, {1, 0})};
    const Move move(world, plan_move({tensor}, 2, {}, most));
    EXPECT_GE(move.plan().phases.size(), 8U);
    const Tensor input = filled(tensor, tensor.from, world.rank(), 1), output = filled(tensor, tensor.to, world.rank(), 0);
    const Stream stream("moves");
    std::promise<void> may_begin;
    stream.enqueue([begins = may_begin.get_future().share()] { begins.wait(); });
    const MemoryScope scope(MemoryKind::activations);
    const Work work = move.start({input}, {output}, stream);
    both.arrive_and_wait();
    EXPECT_GT(held(), before);
    EXPECT_LE(held(), before + 2 * most);
    both.arrive_and_wait();
    may_begin.set_value();
    work.wait();
    const Tensor expected = filled(tensor, tensor.to, world.rank(), 1);
    for (std::int64_t e = 0; e < output.size(); ++e) ASSERT_EQ(output.at(e), expected.at(e));
  });
}

// A move is planned once, and run as often as wanted, on a stream of its own.
TEST(Move, RunsAgain) {
  run_threads(3, [](const Communicator& world) {
    const Shape shape{12, 8};
    const MovedTensor tensor{DType::f32, shape, Division::along(0, shape, {0, 1}), Division::along(1, shape, {1, 2})};
    const Move move(world, plan_move({tensor}, 3));
    const Stream stream("moves");
    const Tensor output = filled(tensor, tensor.to, world.rank(), 0);
    for (int i = 1; i <= 5; ++i) {
      move.start({filled(tensor, tensor.from, world.rank(), i)}, {output}, stream).wait();
      const Tensor expected = filled(tensor, tensor.to, world.rank(), i);
      for (std::int64_t e = 0; output && e < output.size(); ++e) EXPECT_EQ(output.at(e), expected.at(e));
    }
  });
}

TEST(Move, RefusesOtherTensorsAndOtherPlans) {
  run_threads(2, [](const Communicator& world) {
    const Shape shape{4};
    const MovedTensor tensor{DType::f32, shape, Division::replicated(shape, {0}), Division::replicated(shape, {1})};
    const Move move(world, plan_move({tensor}, 2));
    const Tensor four({4}, DType::f32), three({3}, DType::f32);
    const bool is_source = world.rank() == 0;
    EXPECT_THAT(
        sentence_of([&] { move.start({is_source ? three : Tensor()}, {is_source ? Tensor() : three}, Stream::inline_()); }),
        HasSubstr("of a move has 3 elements of f32"));
    EXPECT_THAT(sentence_of([&] { move.start({}, {}, Stream::inline_()); }), HasSubstr("A move of 1 tensors got 0 inputs"));
    MovedTensor other = tensor;
    if (is_source) other.shape = {5}, other.from = other.to = Division::replicated({5}, {0});
    EXPECT_THAT(sentence_of([&] { const Move refused(world, plan_move({other}, 2)); }),
                is_source ? HasSubstr("the plan of a move") : HasSubstr("rank 0"));
    MovedTensor of_other_type = tensor, of_other_format = tensor, in_other_places = tensor;
    of_other_type.dtype = is_source ? DType::f16 : DType::bf16;
    if (is_source) of_other_format.format = QuantizedFormat::int8;  // a message of four elements travels as it is
    in_other_places.from.boxes = {flat_range(whole(shape), 0, 4)};
    if (is_source) in_other_places.from.boxes[0] = {flat_range(whole(shape), 2, 4)[0], flat_range(whole(shape), 0, 2)[0]};
    const auto refusal = [&](const MovedTensor& given) {
      return sentence_of([&] { const Move refused(world, plan_move({given}, 2)); });
    };
    if (is_source) {
      EXPECT_THAT(refusal(of_other_type),
                  HasSubstr("tensor 0 of a move is 'f16 in [0..4], none in messages' on rank 0, 'bf16"));
      EXPECT_THAT(refusal(of_other_format), HasSubstr("'f32 in [0..4], int8 in messages' on rank 0"));
      EXPECT_THAT(refusal(in_other_places), HasSubstr("the plan of a move is"));
    } else {
      for (const MovedTensor& given : {of_other_type, of_other_format, in_other_places}) EXPECT_NE(refusal(given), "");
    }
    move.start({is_source ? four : Tensor()}, {is_source ? Tensor() : four}, Stream::inline_()).wait();
  });
}

}  // namespace
}  // namespace stretto
