// Linear layers in tiles: what is gathered at a time, and backward. More of their results: linear_test.cpp,
// parity/tiles_test.cpp.
#include "layers/tensor_parallel/weight_tiles.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "device/kernels/kernel_data.hpp"
#include "layers/allocated.hpp"
#include "stretto/kernels.hpp"
#include "stretto/layers/linear.hpp"
#include "stretto/layers/sharded_parameters.hpp"
#include "stretto/stretto.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

constexpr std::int64_t batch = 4, inputs = 48, outputs = 64;
constexpr std::int64_t weight_bytes = inputs * outputs * 4;

// The most bytes that both ranks have gathered when a use in forward begins.
class GatheredBytes : public ParameterUse {
 public:
  GatheredBytes(ShardedParameters& sharded, const Communicator& world) : sharded_(sharded), world_(world) {}
  void begin(const UsedParameters& used, Pass pass) override {
    sharded_.begin(used, pass);
    if (pass != Pass::forward) return;
    const auto together = [&] { world_.barrier(Stream::inline_()).wait(); };
    together();
    most_ = std::max(most_, static_cast<std::int64_t>(memory_use(MemoryKind::buffers).bytes));
    together();
  }
  void end(const UsedParameters& used, Pass pass) override { sharded_.end(used, pass); }
  std::int64_t most() const { return most_; }

 private:
  ShardedParameters& sharded_;
  const Communicator& world_;
  std::int64_t most_ = 0;
};

// Gathered by a rank at a time, in the second step of a column-parallel layer.
std::int64_t gathered(int tiles, int prefetch, StoredFormat stored = StoredFormat::plain) {
  std::int64_t most = 0;
  run_threads(2, [&](const Communicator& world) {
    const Mesh mesh(world, {{Axis::data, 2}});
    Parameters parameters;
    const ColumnParallelLinear layer(parameters, "fc", inputs, outputs, 2, {0, 1}, {.tiles = tiles}, false);
    for (const auto& each : parameters.all()) {
      each->trainable = stored == StoredFormat::plain;
      each->stored = stored;
    }
    ShardedParameters::Options options;
    options.zero = stored == StoredFormat::plain ? ZeroStage::values : ZeroStage::optimizer;
    options.prefetch = prefetch;
    ShardedParameters sharded(parameters, mesh, options);
    sharded.initialise(1);
    sharded.store();
    EXPECT_EQ(sharded.unit_count(), static_cast<std::size_t>(tiles));
    const Tensor x = integer_tensor({batch, inputs}, DType::f32, 2), dy = integer_tensor({batch, outputs}, DType::f32, 3);
    const std::int64_t before = static_cast<std::int64_t>(memory_use(MemoryKind::buffers).bytes);
    world.barrier(Stream::inline_()).wait();
    for (int step = 0; step < 2; ++step) {
      GatheredBytes use(sharded, world);
      sharded.begin_step();
      const Tensor y = layer.forward(x, batch, use);
      const Tensor dx = layer.backward(x, dy, use);
      sharded.end_microbatch();
      sharded.finish_sums();
      if (world.rank() == 0) most = (use.most() - before) / 2;
      world.barrier(Stream::inline_()).wait();
    }
  });
  return most;
}

TEST(WeightTiles, AreGatheredOneAtATime) {
  for (const int tiles : {1, 2, 4, 8}) {
    for (const int prefetch : {0, 1, 2}) {
      EXPECT_EQ(gathered(tiles, prefetch), std::min(tiles, 1 + prefetch) * weight_bytes / tiles)
          << tiles << " tiles, " << prefetch << " ahead";
    }
  }
}

TEST(WeightTiles, AreRestoredOneAtATime) {
  for (const StoredFormat format : {StoredFormat::nf4, StoredFormat::int8}) {
    for (const int tiles : {1, 4}) EXPECT_EQ(gathered(tiles, 0, format), weight_bytes / tiles) << tiles << " tiles";
  }
}

// Numbers that are rounded together end with a tile of whole records.
TEST(WeightTiles, AreRoundedAsTheWholeWeight) {
  constexpr std::int64_t columns = 128, rows = 256;
  const auto restored = [](int tiles, StoredFormat format) {
    std::vector<double> whole(static_cast<std::size_t>(rows * columns));
    run_threads(1, [&](const Communicator& world) {
      const Mesh mesh(world, {});
      Parameters parameters;
      const RowParallelLinear layer(parameters, "proj", columns, rows, {0, 1}, {.tiles = tiles}, false);
      for (const auto& each : parameters.all()) {
        each->trainable = false;
        each->stored = format;
      }
      ShardedParameters sharded(parameters, mesh);
      sharded.initialise(1);
      sharded.store();
      sharded.restore();
      const std::vector<Tensor> values = sharded.whole_values();
      for (const auto& each : parameters.all()) {
        for_each_run(*each, 0, each->elements(), [&](std::int64_t here, std::int64_t there, std::int64_t count) {
          for (std::int64_t i = 0; i < count; ++i) {
            whole[static_cast<std::size_t>(there + i)] = values[each->index].at(here + i);
          }
        });
      }
    });
    return whole;
  };
  for (const StoredFormat format : {StoredFormat::nf4, StoredFormat::int8}) {
    EXPECT_EQ(restored(2, format), restored(1, format)) << name(format);
    EXPECT_NE(restored(1, format), restored(1, StoredFormat::plain)) << "the control";
  }
}

// Two ranks hold 2 x 3 rows each, and a tile has a row of each part of them.
TEST(WeightTiles, HaveRowsOfEachPartOfARank) {
  Parameters parameters;
  const Parameter weight =
      Parameter::divided("w", {2, 6, 5}, 1, 2, 1, {.initial = {1, 2}, .matrices = {12}, .overwrites_gradient = true});
  const WeightTiles tiles(parameters, weight, 1, 3);
  ASSERT_EQ(tiles.records().size(), 3U);
  for (std::int64_t i = 0; i < 3; ++i) {
    const Parameter& tile = *tiles.records()[static_cast<std::size_t>(i)];
    EXPECT_EQ(tile.name, "w.tile" + std::to_string(i));
    EXPECT_EQ(tile.global_name(), "w");
    EXPECT_EQ(tile.first, (Shape{0, 3 + i, 0}));
    EXPECT_EQ(tile.extents, (Shape{2, 1, 5}));
    EXPECT_EQ(tile.global_elements(), 20);
    EXPECT_EQ(tile.initial.deviation, 2);
  }
  EXPECT_EQ(parameters.global_elements(), 60);
}

// What a weight of [parts x outputs, inputs] gives back for integers: all sums are exact in the accumulator.
struct Gradients {
  Tensor input, weight;
  bool operator==(const Gradients& other) const { return same_bits(input, other.input) && same_bits(weight, other.weight); }
};
struct Numbers {
  Numbers(DType dtype, std::int64_t parts)
      : weight(integer_tensor({parts * outputs, inputs}, dtype, 2)),
        x(integer_tensor({batch, inputs}, dtype, 3)),
        dy(integer_tensor({batch, parts * outputs}, dtype, 4)) {}
  Tensor weight, x, dy;
};

// Of two times backward, whose gradients of the weight add up.
Gradients of_whole_weight(const Numbers& of) {
  using kernels::Transpose;
  Gradients found{Tensor({batch, inputs}, of.x.dtype()), Tensor(of.weight.shape(), kernels::accumulator(of.x.dtype()))};
  kernels::gemm(of.dy, Transpose::no, of.weight, Transpose::no, found.input);
  for (const bool again : {false, true}) {
    kernels::gemm(of.dy, Transpose::yes, of.x, Transpose::no, found.weight, again);
  }
  return found;
}

// The same by tiles, `spoiled` of which has values of 0. in_halves: gradients of the weight are left for later.
Gradients by_tiles(const Numbers& of, int count, bool in_halves, std::optional<std::size_t> spoiled = {}) {
  const std::int64_t parts = of.weight.rows() / outputs;
  Parameters parameters;
  const Parameter weight = Parameter::whole("w", {parts, outputs, inputs}, token_axes, {});
  const WeightTiles tiles(parameters, weight, 1, count);
  allocate(parameters, of.x.dtype());
  const auto each_run = [&](const Parameter& tile, const auto& run) { for_each_run(tile, 0, tile.elements(), run); };
  for (const Parameter* const tile : tiles.records()) {
    each_run(*tile, [&](std::int64_t here, std::int64_t there, std::int64_t length) {
      tile->value.view(here, {length}).copy_from(of.weight.view(there, {length}));
    });
  }
  if (spoiled) tiles.records()[*spoiled]->value.zero();
  Gradients found{Tensor({batch, inputs}, of.x.dtype()), Tensor(of.weight.shape(), kernels::accumulator(of.x.dtype()))};
  ParameterUse use;
  WeightGradients later;
  for (int time = 0; time < 2; ++time) {
    tiles.multiply_back(of.x, of.dy, found.input, use, in_halves ? &later : nullptr);
  }
  later.compute(use);
  for (const Parameter* const tile : tiles.records()) {
    each_run(*tile, [&](std::int64_t here, std::int64_t there, std::int64_t length) {
      found.weight.view(there, {length}).copy_from(tile->gradient.view(here, {length}));
    });
  }
  return found;
}

// In bf16 the gradient of the input is rounded once, as that of the whole weight. The control: a tile without values.
TEST(WeightTiles, HaveTheGradientsOfTheWholeWeightBitForBit) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const std::int64_t parts : {1, 3}) {
      const Numbers numbers(dtype, parts);
      const Gradients expected = of_whole_weight(numbers);
      for (const int count : {1, 2, 8, 64}) {
        for (const bool in_halves : {false, true}) {
          EXPECT_TRUE(by_tiles(numbers, count, in_halves) == expected)
              << name(dtype) << ", " << parts << " parts, " << count << " tiles" << (in_halves ? ", in halves" : "");
        }
      }
      for (const std::size_t spoiled : {0U, 7U}) {
        const Gradients found = by_tiles(numbers, 8, false, spoiled);
        EXPECT_FALSE(same_bits(found.input, expected.input)) << "the control, tile " << spoiled;
        EXPECT_TRUE(same_bits(found.weight, expected.weight)) << "which has no part in this";
      }
    }
  }
}

// What a caller starts then, such as a sum over ranks, runs behind the last tile's gradient.
TEST(WeightTiles, CallTheCallerWhenTheGradientOfTheInputIsComplete) {
  const Numbers numbers(DType::f32, 1);
  Parameters parameters;
  const WeightTiles tiles(parameters, Parameter::whole("w", {1, outputs, inputs}, token_axes, {}), 1, 4);
  allocate(parameters, DType::f32);
  initialise(parameters, 1);
  const Tensor dx({batch, inputs}, DType::f32);
  ParameterUse use;
  Tensor seen;
  std::vector<bool> has_gradient;
  tiles.multiply_back(numbers.x, numbers.dy, dx, use, nullptr, [&] {
    seen = dx.clone();
    for (const Parameter* const tile : tiles.records()) has_gradient.push_back(kernels::sum_of_squares(tile->gradient) > 0);
  });
  EXPECT_EQ(has_gradient, (std::vector<bool>{false, true, true, true}));
  EXPECT_TRUE(same_bits(seen, dx));
}

// The tiles of a parameter cover it together: one that has rows of another is refused, as one too few is.
TEST(WeightTiles, CoverTheirParameter) {
  run_threads(2, [](const Communicator& world) {
    const Mesh mesh(world, {{Axis::tensor, 2}});
    const auto refusal = [&](const std::function<void(Parameter&)>& change, int count) {
      Parameters parameters;
      const Parameter weight = Parameter::divided("w", {8, 3}, 0, 2, mesh.rank(Axis::tensor), {});
      Parameters others;
      const WeightTiles tiles(others, weight, 0, 2);
      for (int i = 0; i < count; ++i) {
        Parameter record = *tiles.records()[static_cast<std::size_t>(i)];
        if (i == 1) change(record);
        parameters.add(record);
      }
      return sentence_of([&] { ShardedParameters(parameters, mesh, {.zero = ZeroStage::values}); });
    };
    EXPECT_EQ(refusal([](Parameter&) {}, 2), "");
    EXPECT_THAT(refusal([](Parameter& tile) { tile.first[0] -= 2; }, 2), testing::HasSubstr("overlap"));
    EXPECT_THAT(refusal([](Parameter&) {}, 1), testing::HasSubstr("has 12 elements on the 2 ranks"));
  });
}

// Tells when the second use begins.
class SecondUse : public ParameterUse {
 public:
  void begin(const UsedParameters& used, Pass pass) override {
    ParameterUse::begin(used, pass);
    if (++begun_ == 2) begins_.set_value();
  }
  std::future<void> begins() { return begins_.get_future(); }

 private:
  int begun_ = 0;
  std::promise<void> begins_;
};

// Forward comes to the second tile although the sum of the first one does not get ahead.
TEST(WeightTiles, AreMultipliedWhileTheSumOfTheOneBeforeTravels) {
  run_threads(2, [](const Communicator& world) {
    constexpr int tiles = 4;
    const TensorParallel parallel{.group = world, .stream = Stream("tp"), .tiles = tiles};
    Parameters parameters;
    const RowParallelLinear layer(parameters, "proj", inputs, outputs, {0, 1}, parallel, false);
    allocate(parameters, DType::f32);
    initialise(parameters, 1);
    SecondUse use;
    bool began = false;
    const Work hold = parallel.stream.enqueue([&began, second = std::make_shared<std::future<void>>(use.begins())] {
      began = second->wait_for(std::chrono::seconds(10)) == std::future_status::ready;
    });
    const std::uint64_t since = world.job().ledger().next_sequence();
    layer.forward(integer_tensor({batch, inputs / 2}, DType::f32, 2), Tensor::zeros({batch, outputs}, DType::f32), use);
    hold.wait();
    EXPECT_TRUE(began);
    std::vector<std::int64_t> sums;  // elements
    for (const Record& record : world.job().ledger().records(since)) sums.push_back(record.count);
    EXPECT_EQ(sums, std::vector<std::int64_t>(tiles, batch * outputs / tiles));
  });
}

TEST(WeightTiles, RefuseWhatDoesNotDivide) {
  const auto refusal = [](const TensorParallel& parallel, const CopiedParts& copied = {}) {
    Parameters parameters;
    return sentence_of(
        [&] { const ColumnParallelLinear layer(parameters, "qkv", 4, 36, 3, {}, parallel, true, {}, {}, copied); });
  };
  EXPECT_EQ(refusal({.tiles = 3}), "");
  EXPECT_THAT(refusal({.tiles = 5}),
              testing::HasSubstr("The 12 outputs of each part of qkv.weight on a rank do not divide"));
  EXPECT_THAT(refusal({.planned_ranks = 3, .tiles = 3}), testing::HasSubstr("The 4 outputs"));
  EXPECT_THAT(refusal({.tiles = 0}), testing::HasSubstr("cannot be cut into 0 tiles"));
  EXPECT_THAT(refusal({.planned_ranks = 2, .divides_rows = true, .tiles = 2}), testing::HasSubstr("sequence parallelism"));
  EXPECT_THAT(refusal({.planned_ranks = 4, .tiles = 3}, {.count = 2, .heads = 2}),
              testing::HasSubstr("which do not divide its 2 heads"));
}

}  // namespace
}  // namespace stretto
