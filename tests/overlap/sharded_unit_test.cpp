// Tests the memory of a unit at each ZeRO stage, and the results of gathers and sums.
#include "stretto/overlap/sharded_unit.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "stretto/stretto.hpp"
#include "support/data.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using enum QuantizedFormat;

// Tensors of 1, 7, 15 and 75 elements: with 98 in all, the unit may end in the middle of a rank's share.
const std::vector<Shape> odd_shapes = {{1}, {7}, {3, 5}, {75}};

Tensor filled(const Shape& shape, DType dtype, int seed) {
  Tensor result(shape, dtype);
  for (std::int64_t i = 0; i < result.size(); ++i) result.set(i, std::sin(static_cast<double>(i * 7 + seed)));
  return result;
}
std::vector<Tensor> filled(const std::vector<Shape>& shapes, DType dtype, int seed = 1) {
  std::vector<Tensor> result;
  for (const Shape& shape : shapes) result.push_back(filled(shape, dtype, seed++));
  return result;
}

std::vector<Tensor> copies_of(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> result;
  for (const Tensor& tensor : tensors) result.push_back(tensor.clone());
  return result;
}

// Writes this rank's part of whole tensors into its share.
void adopt(ShardedUnit& unit, const std::vector<Tensor>& whole) {
  std::int64_t in_share = 0;
  for (const ElementRange& own : unit.owned()) {
    unit.share().view(in_share, {own.count}).copy_from(whole[own.tensor].view(own.first, {own.count}));
    in_share += own.count;
  }
  unit.share_changed();
}

std::vector<Tensor> gathered(ShardedUnit& unit, const Stream& stream) {
  unit.gather(stream).wait();
  std::vector<Tensor> result = copies_of(unit.values());
  unit.release();
  return result;
}

// Hybrid groups of `size` neighbouring ranks.
Communicator neighbours(const Communicator& world, int size) {
  return world.split(world.rank() / size, world.rank(), "hpz");
}

TEST(ShardedUnit, GathersWhatTheOwnersWroteWhateverTheShapes) {
  for (const int ranks : {1, 2, 6}) {
    run_threads(ranks, [&](const Communicator& world) {
      const Stream stream("zero");
      for (const ZeroStage stage : zero_stages) {
        for (const DType dtype : {DType::f32, DType::bf16}) {
          for (const std::vector<Shape>& shapes : {odd_shapes, {{1}}, {{13}}, {{6, 4}}}) {
            ShardedUnit unit(world, world, shapes, dtype, DType::f32, {.stage = stage});
            const std::vector<Tensor> whole = filled(shapes, dtype);
            adopt(unit, whole);
            EXPECT_TRUE(same_bits(gathered(unit, stream), whole));
            adopt(unit, filled(shapes, dtype, 9));
            EXPECT_FALSE(same_bits(gathered(unit, Stream::inline_()), whole)) << "the control: others were written";
          }
        }
      }
    });
  }
}

TEST(ShardedUnit, KeepsWhatItsStageSays) {
  run_threads(2, [](const Communicator& world) {
    for (const ZeroStage stage : zero_stages) {
      ShardedUnit unit(world, world, odd_shapes, DType::f32, DType::f32, {.stage = stage});
      EXPECT_EQ(unit.has_values(), stage < ZeroStage::values);
      EXPECT_EQ(unit.has_gradients(), stage < ZeroStage::gradients);
      unit.gather(Stream::inline_()).wait();
      EXPECT_TRUE(unit.has_values());
      unit.release();
      EXPECT_EQ(unit.has_values(), stage < ZeroStage::values);
      unit.gradients();
      EXPECT_TRUE(unit.has_gradients());
      unit.sum(Stream::inline_()).wait();
      EXPECT_EQ(unit.has_gradients(), stage < ZeroStage::gradients);
    }
    const Communicator alone = world.split(world.rank(), 0, "alone");
    EXPECT_EQ(ShardedUnit(alone, alone, odd_shapes, DType::f32, DType::f32, {.stage = ZeroStage::values}).stage(),
              ZeroStage::none);
  });
}

// Every element belongs to one rank, and the ranks' elements follow each other.
TEST(ShardedUnit, EveryElementHasOneOwner) {
  for (const int ranks : {1, 2, 3, 7}) {
    std::vector<std::vector<ElementRange>> owned(static_cast<std::size_t>(ranks));
    run_threads(ranks, [&](const Communicator& world) {
      for (const ZeroStage stage : zero_stages) {
        const ShardedUnit unit(world, world, odd_shapes, DType::f32, DType::f32, {.stage = stage});
        std::vector<ElementRange>& own = owned[static_cast<std::size_t>(world.rank())];
        if (stage == ZeroStage::none) own = unit.owned();
        EXPECT_EQ(unit.owned(), own) << "at every stage";
      }
    });
    std::vector<std::int64_t> next(odd_shapes.size(), 0);
    for (const auto& of_rank : owned) {
      for (const ElementRange& range : of_rank) {
        EXPECT_GT(range.count, 0);
        EXPECT_EQ(range.first, next[range.tensor]);
        next[range.tensor] += range.count;
      }
    }
    EXPECT_EQ(next, (std::vector<std::int64_t>{1, 7, 15, 75})) << ranks;
  }
}

// Fills the gradients with integers that tell the rank and the microbatch. Returns the number of elements.
std::int64_t fill_gradients(ShardedUnit& unit, int rank, int microbatch) {
  std::int64_t number = 0;
  for (const Tensor& gradient : unit.gradients()) {
    for (std::int64_t i = 0; i < gradient.size(); ++i) {
      gradient.set(i, gradient.at(i) + static_cast<double>(number++ * (rank + 1) + microbatch));
    }
  }
  return number;
}

// From ZeroStage::gradients on, each microbatch is summed by itself.
TEST(ShardedUnit, SumsGradientsIntoSharesOverRanksAndMicrobatches) {
  constexpr int microbatches = 3;
  run_threads(4, [](const Communicator& world) {
    for (const ZeroStage stage : zero_stages) {
      ShardedUnit unit(world, world, odd_shapes, DType::bf16, DType::f32, {.stage = stage});
      for (int step = 0; step < 2; ++step) {
        unit.zero_gradients();
        std::int64_t elements = 0;
        for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
          elements = fill_gradients(unit, world.rank(), microbatch);
          if (stage >= ZeroStage::gradients || microbatch + 1 == microbatches) unit.sum(Stream::inline_()).wait();
        }
        const std::int64_t begin = world.rank() * unit.share().size();
        for (std::int64_t i = 0; i < unit.share().size(); ++i) {
          const std::int64_t element = begin + i;
          const double expected = element < elements ? static_cast<double>(element * 10 * microbatches + 4 * 3) : 0;
          EXPECT_EQ(unit.gradient_share().at(i), expected) << static_cast<int>(stage) << ", element " << element;
        }
        if (stage != ZeroStage::none) continue;
        unit.gather_gradients(Stream::inline_()).wait();
        std::int64_t number = 0;
        for (const Tensor& gradient : unit.gradients()) {
          for (std::int64_t i = 0; i < gradient.size(); ++i) {
            EXPECT_EQ(gradient.at(i), static_cast<double>(number++ * 10 * microbatches + 4 * 3));
          }
        }
      }
    }
  });
}

// Instead of zeros a gradient that is overwritten holds anything, until it is overwritten or summed. The control: it does
// hold what was there before.
TEST(ShardedUnit, UnsetGradientsAreOverwrittenOrBecomeZeros) {
  for (const int ranks : {1, 3}) {
    run_threads(ranks, [&](const Communicator& world) {
      for (const ZeroStage stage : zero_stages) {
        ShardedUnit unit(world, world, odd_shapes, DType::f32, DType::f32,
                         {.stage = stage, .overwritten = {false, true, false, true}});
        bool& second = *unit.unset(1);
        bool& last = *unit.unset(3);
        const auto fill = [](const Tensor& tensor, double value) {
          for (std::int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, value);
        };
        for (const Tensor& gradient : unit.gradients()) fill(gradient, NAN);
        EXPECT_EQ(second, unit.stage() >= ZeroStage::gradients) << "they begin as zeros where they are always there";
        second = last = false;
        unit.zero_gradients();
        if (unit.stage() >= ZeroStage::gradients) unit.discard_gradients();
        const std::vector<Tensor> gradients = unit.gradients();
        EXPECT_TRUE(second && last);
        EXPECT_EQ(gradients[0].at(0), 0);
        EXPECT_TRUE(unit.stage() >= ZeroStage::gradients || std::isnan(gradients[1].at(0))) << "the control";
        fill(gradients[3], NAN);
        fill(gradients[1], 2);
        second = false;
        unit.sum(Stream::inline_()).wait();
        EXPECT_FALSE(second || last);
        const std::int64_t begin = world.rank() * unit.share().size();
        for (std::int64_t i = 0; i < unit.share().size(); ++i) {
          const bool is_of_second = begin + i >= 1 && begin + i < 8;
          EXPECT_EQ(unit.gradient_share().at(i), is_of_second ? 2 * ranks : 0) << "element " << begin + i;
        }
      }
    });
  }
  run_threads(1, [](const Communicator& world) {
    EXPECT_NE(sentence_of([&] {
                ShardedUnit(world, world, odd_shapes, DType::f32, DType::f32, {.overwritten = {true}});
              }).find("1 flags say which of 4 tensors"),
              std::string::npos);
  });
}

// The records of shares at ZeRO stage 3, of whole vectors at others.
std::vector<Tensor> rounded(const ShardedUnit& unit, const std::vector<Tensor>& whole, StoredFormat format, int shares) {
  std::int64_t first = 0;
  Tensor flat = Tensor::zeros({unit.padded_elements()}, whole[0].dtype());
  for (const Tensor& each : whole) {
    flat.view(first, {each.size()}).copy_from(each.view(0, {each.size()}));
    first += each.size();
  }
  const std::int64_t elements = flat.size() / shares;
  const Tensor records({stored_bytes(format, elements)}, DType::u8);
  for (int i = 0; i < shares; ++i) {
    const Tensor share = flat.view(i * elements, {elements});
    kernels::store_values(format, share, records);
    kernels::restore_values(format, records, share);
  }
  return unit.views_of(flat);
}

TEST(ShardedUnit, StoredValuesComeBackRoundedWhenTheyAreGathered) {
  const std::vector<Shape> shapes = {{1}, {300, 50}, {75}, {20000}};
  for (const int ranks : {1, 3}) {
    run_threads(ranks, [&](const Communicator& world) {
      const Stream stream("zero");
      for (const ZeroStage stage : zero_stages) {
        for (const StoredFormat format : {StoredFormat::nf4, StoredFormat::int8}) {
          ShardedUnit unit(world, world, shapes, DType::f32, DType::f32,
                           {.stage = stage, .trainable = false, .stored = format});
          const std::vector<Tensor> whole = filled(shapes, DType::f32);
          adopt(unit, whole);
          if (stage != ZeroStage::values) unit.gather(stream).wait();
          EXPECT_TRUE(same_bits(gathered(unit, stream), whole)) << "the control: not stored yet";
          const bool divided = ranks > 1 && stage == ZeroStage::values;
          const std::vector<Tensor> expected = rounded(unit, whole, format, divided ? ranks : 1);
          unit.store();
          EXPECT_FALSE(unit.has_values() || unit.share());
          EXPECT_EQ(unit.stage(), ZeroStage::values);
          EXPECT_EQ(unit.gathers_alone(), !divided);
          const std::uint64_t since = world.job().ledger().next_sequence();
          EXPECT_TRUE(same_bits(gathered(unit, stream), expected));
          const std::int64_t share = unit.padded_elements() / ranks;
          EXPECT_EQ(static_cast<std::int64_t>(world.job().ledger().traffic(since).bytes_sent),
                    divided ? (ranks - 1) * stored_bytes(format, share) : 0);
          EXPECT_FALSE(unit.has_values());
          unit.restore();
          EXPECT_TRUE(same_bits(gathered(unit, stream), expected));
          EXPECT_TRUE(bool(unit.share()));
          unit.store();  // in the same records: rounding again could give others
          EXPECT_TRUE(same_bits(gathered(unit, stream), expected));
        }
      }
    });
  }
}

TEST(ShardedUnit, AWholeTensorOfAllShares) {
  run_threads(3, [](const Communicator& world) {
    ShardedUnit unit(world, world, odd_shapes, DType::f32, DType::f32, {.stage = ZeroStage::values});
    const std::vector<Tensor> whole = filled(odd_shapes, DType::f32);
    adopt(unit, whole);
    EXPECT_TRUE(same_bits(unit.views_of(unit.whole(unit.share())), whole));
    EXPECT_FALSE(unit.has_values());
    EXPECT_NE(sentence_of([&] { unit.whole(Tensor({7}, DType::f32)); }).find("7 elements"), std::string::npos);
  });
}

// hpZ gathers the same bits as plain ZeRO-3, after the first gather from the copy. The control: the copy is what was
// gathered, not the shares, until they are said to have changed.
TEST(ShardedUnit, TheSecondCopyIsWhatWasGathered) {
  for (const QuantizedFormat weights : {none, int8}) {
    for (const int neighbouring : {1, 2, 4}) {
      run_threads(4, [&](const Communicator& world) {
        const Stream stream("zero");
        const auto unit_of = [&](const Communicator& secondary) {
          return ShardedUnit(world, world, odd_shapes, DType::bf16, DType::f32,
                             {.stage = ZeroStage::values, .secondary = secondary, .weights = weights});
        };
        ShardedUnit plain = unit_of({});
        ShardedUnit both = unit_of(neighbours(world, neighbouring));
        adopt(plain, filled(odd_shapes, DType::bf16));
        adopt(both, filled(odd_shapes, DType::bf16));
        const std::vector<Tensor> first = gathered(plain, stream);
        EXPECT_EQ(same_bits(first, filled(odd_shapes, DType::bf16)), weights == none);
        const std::uint64_t since = world.job().ledger().next_sequence();
        for (int gather = 0; gather < 3; ++gather) EXPECT_TRUE(same_bits(gathered(both, stream), first));
        const auto records = world.job().ledger().records(since);
        EXPECT_EQ(std::ranges::count(records, "parameters", &Record::tag), 1);
        EXPECT_EQ(std::ranges::count(records, "parameters in node", &Record::tag), 2);
        both.share().zero();
        EXPECT_TRUE(same_bits(gathered(both, stream), first));
        both.share_changed();
        EXPECT_FALSE(same_bits(gathered(both, stream), first));
      });
    }
  }
}

// With stochastic rounding or error feedback, the mean of many quantized sums comes near the exact sum. The
// control: rounding to nearest keeps its error.
TEST(ShardedUnit, QuantizedSumsKeepNoErrorForGood) {
  run_threads(2, [](const Communicator& world) {
    const auto error_of = [&](ShardedUnit::Options options) {
      options.stage = ZeroStage::values;
      options.gradients = int4;
      ShardedUnit unit(world, world, {{64}}, DType::f32, DType::f32, options);
      constexpr int steps = 200;
      std::vector<double> sums(32);
      for (int step = 0; step < steps; ++step) {
        unit.zero_gradients();
        unit.gradients()[0].copy_from(filled(Shape{64}, DType::f32, 3));
        unit.sum(Stream::inline_()).wait();
        for (std::int64_t i = 0; i < 32; ++i) sums[static_cast<std::size_t>(i)] += unit.gradient_share().at(i) / steps;
      }
      double worst = 0;
      for (std::int64_t i = 0; i < 32; ++i) {
        const double exact = 2 * std::sin(static_cast<double>((world.rank() * 32 + i) * 7 + 3));
        worst = std::max(worst, std::abs(sums[static_cast<std::size_t>(i)] - exact));
      }
      return worst;
    };
    ErrorFeedback errors;
    const double nearest = error_of({});
    EXPECT_GT(nearest, 0.05);
    EXPECT_LT(error_of({.gradient_rounding = Rounding::stochastic, .seed = 5}), 0.5 * nearest);
    EXPECT_LT(error_of({.errors = &errors, .name = "w"}), 0.1 * nearest);
  });
}

TEST(ShardedUnit, WhatCannotBeGatheredIsRefusedBeforeThereIsMemory) {
  run_threads(2, [](const Communicator& world) {
    const auto unit_of = [&](DType dtype, DType gradients, ShardedUnit::Options options) {
      options.stage = ZeroStage::values;
      return sentence_of([&] { ShardedUnit(world, world, {{std::int64_t{1} << 50}}, dtype, gradients, options); });
    };
    using testing::HasSubstr;
    EXPECT_THAT(unit_of(DType::f64, DType::f32, {.weights = int8}), HasSubstr("all_gather of f64 cannot be quantized"));
    EXPECT_THAT(unit_of(DType::f32, DType::f64, {.gradients = int4}), HasSubstr("reduce_scatter of f64 cannot be"));
    EXPECT_THAT(unit_of(DType::f32, DType::f32, {.weights = static_cast<QuantizedFormat>(9)}), HasSubstr("number 9"));
    EXPECT_THAT(unit_of(static_cast<DType>(99), DType::f32, {}), HasSubstr("number 99"));
    EXPECT_THAT(unit_of(DType::f32, DType::f32, {.gather_by = Algorithm::pairwise}), HasSubstr("all_gather cannot be done"));
    EXPECT_THAT(unit_of(DType::f32, DType::f32, {.sum_by = Algorithm::bruck}), HasSubstr("reduce_scatter cannot be"));
    EXPECT_THAT(unit_of(DType::f32, DType::f32, {.weights = int8, .gather_by = Algorithm::ring}), HasSubstr("ring"));
    ShardedUnit(world, world, odd_shapes, DType::f64, DType::f64, {});  // the control: f64 is valid without quantization
  });
}

TEST(ShardedUnit, WhatDoesNotFitIsRefusedInASentence) {
  run_threads(3, [](const Communicator& world) {
    ShardedUnit unit(world, world, odd_shapes, DType::f32, DType::f32, {.stage = ZeroStage::values});
    const auto with = [&](const ShardedUnit::Options& options) {
      return sentence_of([&] { ShardedUnit(world, world, odd_shapes, DType::f32, DType::f32, options); });
    };
    using testing::HasSubstr;
    unit.gather(Stream::inline_()).wait();
    EXPECT_THAT(sentence_of([&] { unit.gather(Stream::inline_()).wait(); }), HasSubstr("release it first"));
    EXPECT_THAT(sentence_of([&] { unit.gather_gradients(Stream::inline_()).wait(); }), HasSubstr("stage 0"));
    EXPECT_THAT(sentence_of([&] { ShardedUnit(world, world, {}, DType::f32, DType::f32, {}); }), HasSubstr("0 tensors"));
    EXPECT_THAT(with({.stage = ZeroStage::gradients, .weights = int8}), HasSubstr("always there"));
    EXPECT_THAT(with({.stored = StoredFormat::nf4}), HasSubstr("Values in nf4 cannot be updated"));
    const Communicator pair = world.split(world.rank() / 2, world.rank(), "pair");
    if (pair.size() == 2) {
      EXPECT_THAT(with({.stage = ZeroStage::values, .secondary = pair}), HasSubstr("divisor"));
    }
    const Communicator turned = world.split(0, -world.rank(), "turned");
    EXPECT_THAT(sentence_of([&] { ShardedUnit(world, turned, odd_shapes, DType::f32, DType::f32, {}); }),
                world.rank() == 1 ? HasSubstr("") : HasSubstr("same ranks"));
  });
}

}  // namespace
}  // namespace stretto
