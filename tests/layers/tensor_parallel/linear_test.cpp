// Tensor-parallel linear layers on integers, whose sums are exact in any order: the same bits as on one rank.
#include "stretto/layers/linear.hpp"

#include <gmock/gmock.h>

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "device/kernels/kernel_data.hpp"
#include "layers/allocated.hpp"
#include "layers/wholes.hpp"
#include "stretto/stretto.hpp"
#include "support/error.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

constexpr std::int64_t tokens = 6;
constexpr std::int64_t in = 10;  // neither 3 nor 4 ranks divide it evenly
constexpr std::int64_t middle = 14;
constexpr int projections = 3;

void set_integers(const Parameters& parameters) {
  for (const auto& parameter : parameters.all()) {
    for_each_run(parameter->global_shape, parameter->first, parameter->extents,
                 [&](std::int64_t here, std::int64_t there, std::int64_t count) {
                   for (std::int64_t i = 0; i < count; ++i) {
                     parameter->value.set(here + i, static_cast<double>((there + i) * 7 % 11 - 5));
                   }
                 });
  }
}

void sum_gradients(const Communicator& world, const Parameters& parameters) {
  for (const auto& parameter : parameters.all()) {
    if (!parameter->sum_gradient_over.contains(Axis::tensor)) continue;
    world.all_reduce(parameter->gradient, ReduceOp::sum, Stream::inline_()).wait();
  }
}

void enter_gradients(Wholes& wholes, const Parameters& parameters) {
  for (const auto& parameter : parameters.all()) {
    enter(wholes, parameter->global_name(), parameter->global_shape, parameter->first, parameter->gradient);
  }
}

struct How {
  bool divides_rows = false, keeps_gathered = false, in_halves = false;
  bool has_bias = true;
  AdapterSet adapters = {};
  int tiles = 1;
  TensorParallel of(const Communicator& world) const {
    return {.group = world,
            .stream = Stream("tp"),
            .divides_rows = divides_rows,
            .keeps_gathered = keeps_gathered,
            .tiles = tiles};
  }
};
std::ostream& operator<<(std::ostream& out, const How& how) {
  return out << (how.divides_rows ? ", own rows" : "") << (how.keeps_gathered ? ", kept" : "")
             << (how.in_halves ? ", in halves" : "") << (how.has_bias ? "" : ", no bias")
             << fmt::format(", {} adapters, {} tiles", how.adapters.by_record.size(), how.tiles);
}
const std::vector<How> ways = {{}, {false, false, true}, {true}, {true, true}, {true, false, true}, {true, true, true}};

// One column-parallel layer of several projections.
Wholes column_parallel(int ranks, const How& how = {}) {
  Wholes wholes;
  std::mutex mutex;
  run_threads(ranks, [&](const Communicator& world) {
    const TensorParallel tensor_parallel = how.of(world);
    Parameters parameters;
    const ColumnParallelLinear layer(parameters, "column", in, projections * middle, projections, {}, tensor_parallel,
                                     how.has_bias, how.adapters, {{".first", 0, 1}, {".others", 1, 2}});
    allocate(parameters, DType::f32);
    set_integers(parameters);
    ParameterUse use;
    WeightGradients later;
    Tensor x = tensor_parallel.own_rows(integer_tensor({tokens, in}, DType::f32, 2));
    const Tensor y = layer.forward(x, tokens, use, &x);
    const Share share = share_of(middle, world.size(), world.rank());

    // This rank takes its columns of each part of the whole dy.
    const Tensor whole_dy = integer_tensor({tokens, projections, middle}, DType::f32, 3);
    const Tensor dy({tokens, projections * share.count}, DType::f32);
    for_each_run(whole_dy.shape(), {0, 0, share.first}, {tokens, projections, share.count},
                 [&](std::int64_t here, std::int64_t there, std::int64_t count) {
                   dy.view(here, {count}).copy_from(whole_dy.view(there, {count}));
                 });
    const Tensor dx = layer.backward(x, dy, use, how.in_halves ? &later : nullptr);
    later.compute(use);

    sum_gradients(world, parameters);
    const std::lock_guard lock(mutex);
    enter(wholes, "y", {tokens, projections, middle}, {0, 0, share.first}, y.reshaped({tokens, projections, share.count}));
    enter(wholes, "dx", {tokens, in}, {tensor_parallel.own_rows(tokens).first, 0}, dx);
    enter_gradients(wholes, parameters);
  });
  return wholes;
}

Wholes row_parallel(int ranks, const How& how = {}) {
  Wholes wholes;
  std::mutex mutex;
  run_threads(ranks, [&](const Communicator& world) {
    const TensorParallel tensor_parallel = how.of(world);
    Parameters parameters;
    const RowParallelLinear layer(parameters, "row", in, middle, {}, tensor_parallel, how.has_bias, how.adapters);
    allocate(parameters, DType::f32);
    set_integers(parameters);
    const Share share = share_of(in, world.size(), world.rank());
    const Tensor whole_x = integer_tensor({tokens, in}, DType::f32, 2);
    const Tensor x({tokens, share.count}, DType::f32);
    for_each_run(whole_x.shape(), {0, share.first}, x.shape(),
                 [&](std::int64_t here, std::int64_t there, std::int64_t count) {
                   x.view(here, {count}).copy_from(whole_x.view(there, {count}));
                 });
    ParameterUse use;
    WeightGradients later;
    const Tensor y = layer.forward(x, tensor_parallel.own_rows(integer_tensor({tokens, middle}, DType::f32, 4)), use);
    const Tensor dy = tensor_parallel.own_rows(integer_tensor({tokens, middle}, DType::f32, 3));
    const Tensor dx = layer.backward(x, dy, use, how.in_halves ? &later : nullptr);
    later.compute(use);

    sum_gradients(world, parameters);
    const std::lock_guard lock(mutex);
    enter(wholes, "y", {tokens, middle}, {tensor_parallel.own_rows(tokens).first, 0}, y);
    enter(wholes, "dx", {tokens, in}, {0, share.first}, dx);
    enter_gradients(wholes, parameters);
  });
  return wholes;
}

TEST(ColumnParallelLinear, GivesTheBitsOfOneRank) {
  const Wholes expected = column_parallel(1);
  EXPECT_EQ(expected.size(), 4U);
  for (const int ranks : {2, 3, 4, 8}) {  // with own rows, 2 of 8 ranks have none
    for (const How& how : ways) EXPECT_EQ(column_parallel(ranks, how), expected) << ranks << how;
  }
}

TEST(ColumnParallelLinear, ComputesWithItsOneRankWhatLinearMeans) {
  Wholes whole = column_parallel(1);
  const auto weight = [](std::int64_t i) { return static_cast<double>(i * 7 % 11 - 5); };
  const std::vector<double> x = values(integer_tensor({tokens, in}, DType::f32, 2));
  for (std::int64_t row = 0; row < tokens; ++row) {
    for (std::int64_t column = 0; column < projections * middle; ++column) {
      double y = weight(column);
      for (std::int64_t k = 0; k < in; ++k) y += x[static_cast<std::size_t>(row * in + k)] * weight(column * in + k);
      EXPECT_EQ(whole["y"][static_cast<std::size_t>(row * projections * middle + column)], y);
    }
  }
}

TEST(RowParallelLinear, GivesTheBitsOfOneRank) {
  const Wholes expected = row_parallel(1);
  EXPECT_EQ(expected.size(), 4U);
  for (const int ranks : {2, 3, 4, 8}) {  // with own rows, 2 of 8 ranks have none
    for (const How& how : ways) EXPECT_EQ(row_parallel(ranks, how), expected) << ranks << how;
  }
}

TEST(LinearLayers, WithAdaptersGiveTheBitsOfOneRank) {
  using Layer = Wholes (*)(int, const How&);
  const std::vector<std::pair<Layer, AdapterSet>> layers = {
      {column_parallel, {{{"column", {2, 2}}}}},
      {column_parallel, {{{"column.first", {2, 0.5}}, {"column.others", {3, 4}}}}},
      {column_parallel, {{{"column.others", {1, 1}}}}},
      {row_parallel, {{{"row", {3, 0.5}}}}}};
  for (const auto& [layer, adapters] : layers) {
    const Wholes plain = layer(1, {});
    const Wholes expected = layer(1, {.adapters = adapters});
    EXPECT_EQ(expected.size(), 4 + 2 * adapters.by_record.size());
    EXPECT_NE(expected.at("y"), plain.at("y"));
    EXPECT_NE(expected.at("dx"), plain.at("dx"));
    for (const int ranks : {2, 3, 4, 8}) {
      for (How how : ways) {
        how.adapters = adapters;
        EXPECT_EQ(layer(ranks, how), expected) << ranks << how;
      }
    }
  }
}

// A tile has outputs of each part; the sum over tiles is exact.
TEST(LinearLayers, InTilesGiveTheBitsOfTheWholeWeight) {
  using Layer = Wholes (*)(int, const How&);
  const std::vector<std::pair<Layer, AdapterSet>> layers = {{column_parallel, {}},
                                                            {column_parallel, {{{"column.others", {3, 4}}}}},
                                                            {row_parallel, {}},
                                                            {row_parallel, {{{"row", {3, 0.5}}}}}};
  for (const auto& [layer, adapters] : layers) {
    for (const bool has_bias : {true, false}) {
      const Wholes expected = layer(1, {.has_bias = has_bias, .adapters = adapters});
      for (const auto& [ranks, tiles] : std::vector<std::pair<int, int>>{{1, 2}, {1, 7}, {1, 14}, {2, 7}, {7, 2}}) {
        for (const bool in_halves : {false, true}) {
          const How how{.in_halves = in_halves, .has_bias = has_bias, .adapters = adapters, .tiles = tiles};
          EXPECT_EQ(layer(ranks, how), expected) << ranks << how;
        }
      }
    }
  }
}

// Without a bias, a layer has no record of one, and adds none.
TEST(LinearLayers, HaveNoBiasUnlessTheyAreAskedFor) {
  using Layer = Wholes (*)(int, const How&);
  for (const Layer layer : {Layer(column_parallel), Layer(row_parallel)}) {
    const Wholes with = layer(1, {});
    const Wholes expected = layer(1, {.has_bias = false});
    EXPECT_EQ(expected.size(), 3U);
    EXPECT_EQ(expected.at("dx"), with.at("dx"));
    const double bias = with.at("y").front() - expected.at("y").front();
    EXPECT_EQ(bias, -5) << "the bias that the layer would have";
    for (const int ranks : {2, 3}) {
      for (How how : ways) {
        how.has_bias = false;
        EXPECT_EQ(layer(ranks, how), expected) << ranks << how;
      }
    }
  }
}

// Three heads divide neither over two ranks nor the ranks over them; nor can an adapter of shared heads be divided.
TEST(ColumnParallelLinear, RefusesHeadsThatDoNotDivide) {
  const auto refused = [](int ranks, std::int64_t heads, const AdapterSet& adapters) {
    Parameters parameters;
    return sentence_of([&] {
      const ColumnParallelLinear layer(parameters, "qkv", 4, std::int64_t{4} * 12, 4, {}, {.planned_ranks = ranks}, false,
                                       adapters, {{".q", 0, 2}, {".k", 2, 1}, {".v", 3, 1}}, {.count = 2, .heads = heads});
    });
  };
  EXPECT_EQ(refused(6, 3, {}), "");
  EXPECT_THAT(refused(2, 3, {}), testing::HasSubstr("the last 2 of 3 heads each, does not divide over 2 ranks"));
  EXPECT_THAT(refused(9, 3, {}), testing::HasSubstr("the last 2 of 3 heads each, does not divide over 9 ranks"));
  EXPECT_THAT(refused(2, 0, {}), testing::HasSubstr("the last 2 of 0 heads each"));
  EXPECT_EQ(refused(3, 3, {.by_record = {{"qkv.q", {2, 1}}}}), "");
  EXPECT_THAT(refused(6, 3, {.by_record = {{"qkv.q", {2, 1}}}}), testing::HasSubstr("qkv.q has an adapter, which cannot"));
}

// On slow links, the stream sums some rows while others are computed. Without overlap the chunks and the bits are the same.
TEST(RowParallelLinear, SumsRowsWhileItComputesOthers) {
  const Variable links("STRETTO_LINKS", "intra=1GB/s,5us");
  run_threads(2, [](const Communicator& world) {
    constexpr std::int64_t width = 256;
    const auto forward = [&](const Stream& stream, std::int64_t rows) {
      Parameters parameters;
      const RowParallelLinear layer(parameters, "row", 2 * width, width, {}, {world, stream});
      allocate(parameters, DType::f32);
      for (const auto& parameter : parameters.all())
        parameter->value.copy_from(random_tensor(parameter->extents, DType::f32));
      ParameterUse use;
      return layer.forward(random_tensor({rows, width}, DType::f32, static_cast<unsigned>(world.rank())),
                           random_tensor({rows, width}, DType::f32, 7), use);
    };
    const auto on = [&](const std::string& stream, std::uint64_t since) {
      return std::ranges::count_if(world.job().ledger().records(since),
                                   [&](const Record& record) { return record.stream == stream; });
    };
    std::uint64_t since = world.job().ledger().next_sequence();
    const Tensor overlapped = forward(Stream("tp"), 2048);
    EXPECT_GE(on("tp", since), 1);
    EXPECT_EQ(on("inline", since), 1);  // the last chunk has no computation beside it
    const auto chunks = on("tp", since) + 1;
    since = world.job().ledger().next_sequence();
    const Tensor plain = forward(Stream::inline_(), 2048);
    EXPECT_EQ(on("inline", since), chunks);
    EXPECT_EQ(values(overlapped), values(plain));
    since = world.job().ledger().next_sequence();
    forward(Stream("tp"), 16);
    EXPECT_EQ(on("tp", since), 0);  // too few rows to be cut
  });
}

}  // namespace
}  // namespace stretto
