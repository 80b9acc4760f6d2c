// DeMo: what ranks send of their momentum, what stays, the same weights on all of them.
#include "stretto/layers/demo.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>

#include "layers/optimizer/matrices/coefficient_exchange.hpp"
#include "own_gradient_checks.hpp"
#include "stretto/planning/training_memory.hpp"
#include "support/error.hpp"
#include "support/variables.hpp"

namespace stretto {
using kernels::cpu::ProductUse;

namespace {

constexpr double lr = 1e-2, gradient_scale = 0.5;  // of OwnGradientTraining::update()
constexpr std::int64_t model_elements = 10 * 40 + 9;

// Chunks of 5 x 8, 9 of 40 coefficients, and of 3.
constexpr DeMo::Options few{.compression_chunk = 8, .compression_topk = 9, .compression_decay = 0.9, .weight_decay = 0.1};
constexpr DeMo::Options everything{.compression_chunk = 8, .compression_topk = 1000, .compression_decay = 0.9};

// Bytes: 18 for each element, and the height's basis for the rows that have coefficients.
constexpr std::int64_t scratch_of_chunk(std::int64_t height, std::int64_t width) {
  return 18 * height * width + 4 * height * height;
}

OwnGradientLayout demo_on(int ranks, const DeMo::Options& options, ZeroStage stage = ZeroStage::none) {
  return {.mesh = {{Axis::data, ranks}}, .stage = stage, .optimizer = options};
}

Tensor momentum_of(OwnGradientTraining& training) {
  const std::vector<ErrorFeedback::Entry> entries = training.sharded().errors().entries();
  return entries.size() == 1 ? entries.front().values : Tensor();
}

// One parameter of N ranks in one process, whose coefficients are sorted.
class Simulation {
 public:
  Simulation(int ranks, const DeMo::Options& options, std::string name, std::int64_t rows, std::int64_t columns, bool decays)
      : options_(options),
        grid_(ChunkGrid::of(rows, columns, options.compression_chunk)),
        name_(std::move(name)),
        decays_(decays) {
    for (int rank = 0; rank < ranks; ++rank) momenta_.push_back(Tensor::zeros({rows, columns}, DType::f32));
    values = Tensor({rows, columns}, DType::f32);
  }

  void step(int number, const OwnGradient& gradient) {
    const auto size = static_cast<std::size_t>(values.size());
    std::vector<float> sums(size), sent(size), chunk(static_cast<std::size_t>(grid_.of_chunk()));
    std::vector<int> senders(size);
    const ChunkTransform transform = dct_.of(grid_);
    ChunkTransform::Scratch scratch(grid_);
    const Tensor g(values.shape(), DType::f32);
    for (std::size_t rank = 0; rank < momenta_.size(); ++rank) {
      for (std::int64_t i = 0; i < g.size(); ++i) g.set(i, gradient(static_cast<int>(rank), number, name_, i));
      kernels::scale(momenta_[rank], options_.compression_decay);
      kernels::scale(g, lr * gradient_scale);
      kernels::add(momenta_[rank], g, momenta_[rank]);
      std::ranges::fill(sent, 0.0F);
      for (std::int64_t number_of_chunk = 0; number_of_chunk < grid_.chunks(); ++number_of_chunk) {
        float* const begin = momenta_[rank].data<float>() + grid_.begin(number_of_chunk);
        transform.encode(begin, chunk.data(), scratch);
        std::vector<std::size_t> places(chunk.size());
        std::iota(places.begin(), places.end(), 0);
        std::ranges::stable_sort(places, std::greater<>(), [&](std::size_t at) { return std::abs(chunk[at]); });
        places.resize(std::min(places.size(), static_cast<std::size_t>(options_.compression_topk)));
        const std::size_t first = static_cast<std::size_t>(number_of_chunk) * chunk.size();
        for (const std::size_t at : places) {
          sent[first + at] = chunk[at];
          sums[first + at] += chunk[at];
          ++senders[first + at];
        }
        transform.decode(sent.data() + first, begin, ProductUse::subtract, scratch);
      }
      if (options_.compression_topk >= grid_.of_chunk()) momenta_[rank].zero();
    }
    for (std::size_t i = 0; i < size; ++i) {
      if (senders[i] > 1) sums[i] /= static_cast<float>(senders[i]);
    }
    for (std::int64_t number_of_chunk = 0; number_of_chunk < grid_.chunks(); ++number_of_chunk) {
      transform.decode(sums.data() + number_of_chunk * grid_.of_chunk(), g.data<float>() + grid_.begin(number_of_chunk),
                       ProductUse::assign, scratch);
    }
    for (std::int64_t i = 0; i < g.size(); ++i) g.set(i, (g.at(i) > 0) - (g.at(i) < 0));
    kernels::sgd({.lr = lr, .momentum = 0, .weight_decay = decays_ ? options_.weight_decay : 0}, g, values, {}, values);
  }

  Tensor values;

 private:
  DeMo::Options options_;
  ChunkGrid grid_;
  std::string name_;
  bool decays_;
  std::vector<Tensor> momenta_;  // by rank
  ChunkedDCT dct_;
};

NumbersByElement simulated(int ranks, const DeMo::Options& options, int steps, const NumbersByElement& initial) {
  NumbersByElement result;
  Simulation divided(ranks, options, "divided", 10, 40, true), replicated(ranks, options, "replicated", 1, 9, false);
  for (const auto& [name, its] : {std::pair<std::string, Simulation*>{"divided", &divided}, {"replicated", &replicated}}) {
    for (std::int64_t i = 0; i < its->values.size(); ++i) its->values.set(i, initial.at(fmt::format("{}[{}]", name, i)));
    for (int step = 1; step <= steps; ++step) its->step(step, normal_gradient);
    for (std::int64_t i = 0; i < its->values.size(); ++i) result[fmt::format("{}[{}]", name, i)] = its->values.at(i);
  }
  return result;
}

// The controls: another decay, another number of coefficients, another chunk.
TEST(DeMo, IsItsSimulationInOneProcess) {
  const NumbersByElement initial = trained_values(demo_on(1, few), 0).front();
  DeMo::Options decay = few, topk = few, chunk = few;
  decay.compression_decay = 0.5;
  topk.compression_topk = 3;
  chunk.compression_chunk = 4;
  for (const int ranks : {1, 2, 3}) {
    const NumbersByElement expected = simulated(ranks, few, 5, initial);
    for (const ZeroStage stage : own_gradient_stages) {
      EXPECT_EQ(trained_values(demo_on(ranks, few, stage), 5).front(), expected) << ranks << " ranks";
    }
    for (const DeMo::Options& other : {decay, topk, chunk}) EXPECT_NE(simulated(ranks, other, 5, initial), expected);
  }
}

// Then nothing is left of the momentum. The control: few coefficients.
TEST(DeMo, WithAllCoefficientsItTakesTheSignOfTheMeanGradient) {
  for (const int ranks : {1, 2, 4}) {
    for (const bool sends_all : {true, false}) {
      run_threads(ranks, [&](const Communicator& world) {
        OwnGradientTraining training(world, demo_on(ranks, sends_all ? everything : few));
        int same = 0;
        for (int step = 1; step <= 3; ++step) {
          const NumbersByElement before = training.values();
          training.step(step);
          for (const auto& [element, value] : training.values()) {
            const std::string name = element.substr(0, element.find('['));
            double sum = 0;
            for (int rank = 0; rank < ranks; ++rank) {
              sum += normal_gradient(rank, step, name, std::stoll(element.substr(name.size() + 1)));
            }
            const double decayed = before.at(element) * (sends_all || name == "replicated" ? 1 : 1 - 0.1 * lr);
            same += std::abs(decayed - value - std::copysign(lr, sum)) < 1e-6 ? 1 : 0;
          }
        }
        EXPECT_EQ(same == 3 * model_elements, sends_all) << same;
        EXPECT_EQ(kernels::sum_of_squares(momentum_of(training)) == 0, sends_all);
      });
    }
  }
}

TEST(DeMo, AllRanksHaveEqualWeightsAfterEachStepAtEveryStage) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int ranks : {1, 2, 3, 5}) {
      OwnGradientLayout layout = demo_on(ranks, few);
      layout.dtype = dtype;
      expect_equal_weights_at_every_stage(layout, ranks, 6);
    }
  }
}

TEST(DeMo, KeepsCopiesOfTensorParallelRanksEqual) { expect_equal_copies_at_every_stage(demo_on(1, few), 6); }

TEST(DeMo, AStepLeftOutLeavesNothingBehind) { expect_nothing_of_a_step_left_out(demo_on(3, few), 3, 5); }

TEST(DeMo, TakesMicrobatches) { expect_microbatches_to_change_nothing(demo_on(2, few), 4); }

// In 16 bits: up to the last of a chunk of 256 x 256. Each rank sends another coefficient, which only it has.
TEST(CoefficientExchange, BringsEachCoefficientToItsPlace) {
  constexpr std::int64_t side = CoefficientVector::largest_chunk;
  const std::vector<std::int64_t> places{0, 255, 4095, 4096, side * side - 1};
  const auto ranks = static_cast<int>(places.size());
  run_threads(ranks, [&](const Communicator& world) {
    const Mesh mesh(world, {{Axis::data, ranks}});
    Parameters parameters;
    parameters.add(Parameter::whole("square", {side, side}, token_axes, {}));
    ShardedParameters sharded(parameters, mesh, {.zero = ZeroStage::none});
    sharded.keep_gradients_local(true);
    CoefficientExchange exchange(sharded, {.chunk = side, .kept = 1}, 0);
    ChunkedDCT dct;
    const ChunkGrid grid = ChunkGrid::of(side, side, side);
    const ChunkTransform transform = dct.of(grid);
    ChunkTransform::Scratch scratch(grid);
    const Tensor one = Tensor::zeros({side, side}, DType::f32), expected = one.clone();
    const Tensor vector = sharded.local_gradients().front().vector.reshaped({side, side});
    one.set(places[static_cast<std::size_t>(world.rank())], world.rank() + 1);
    transform.decode(one.data<float>(), vector.data<float>(), ProductUse::assign, scratch);
    const Tensor own = vector.clone();
    for (int rank = 0; rank < ranks; ++rank) one.set(places[static_cast<std::size_t>(rank)], rank + 1);
    transform.decode(one.data<float>(), expected.data<float>(), ProductUse::assign, scratch);
    exchange.run(1);
    const auto same = [&](const Tensor& numbers) {
      std::int64_t result = 0;
      for (std::int64_t i = 0; i < vector.size(); ++i) result += vector.at(i) * numbers.at(i) > -1e-5 ? 1 : 0;
      return result;
    };
    EXPECT_EQ(same(expected), side * side);
    EXPECT_LT(same(own), side * side) << "the control: this rank's coefficient alone";
    EXPECT_LT(kernels::sum_of_squares(sharded.errors().entries().front().values), 1e-6);
  });
}

// Momentum and signs of two steps have the same bits. Coefficients of equal magnitude are among them, as of chunks of zeros.
// The control: one coefficient less.
TEST(CoefficientExchange, DoesNotDependOnTheNumberOfThreads) {
  const auto after = [](int threads, std::int64_t kept) {
    std::vector<Tensor> result;
    run_threads(2, [&](const Communicator& world) {
      const Mesh mesh(world, {{Axis::data, 2}});
      Parameters parameters;
      parameters.add(Parameter::whole("matrix", {48, 80}, token_axes, {}));
      parameters.add(Parameter::whole("vector", {10}, token_axes, {}));
      ShardedParameters sharded(parameters, mesh, {.zero = ZeroStage::none});
      sharded.keep_gradients_local(true);
      CoefficientExchange exchange(sharded, {.chunk = 16, .kept = kept}, 0.5, threads);
      const Tensor vector = sharded.local_gradients().front().vector;
      for (int step = 1; step <= 2; ++step) {
        vector.zero();
        for (std::int64_t i = 0; i < vector.size(); ++i) {
          if (i / 500 % 3 > 0) vector.set(i, i / 500 % 3 == 1 ? 1 : normal_gradient(world.rank(), step, "x", i));
        }
        exchange.run(0.1);
      }
      if (world.rank() == 1) result = {vector.clone(), sharded.errors().entries().front().values.clone()};
    });
    return result;
  };
  const auto same = [](const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
    return std::ranges::equal(
        a, b, [](const Tensor& one, const Tensor& other) { return std::memcmp(one.raw(), other.raw(), one.bytes()) == 0; });
  };
  const std::vector<Tensor> expected = after(1, 7);
  for (const int threads : {2, 3, 50}) EXPECT_TRUE(same(after(threads, 7), expected)) << threads << " threads";
  EXPECT_FALSE(same(after(1, 6), expected));
}

// One all-gather a step of 6 bytes a coefficient, and no sums. The control: more coefficients.
TEST(DeMo, SendsTheBytesOfItsFormula) {
  const Variable ring("STRETTO_ALGO", "all_reduce:ring;reduce_scatter:ring;all_gather:ring");
  for (const int ranks : {2, 4}) {
    for (const ZeroStage stage : own_gradient_stages) {
      for (const bool sends_all : {false, true}) {
        const std::int64_t coefficients = sends_all ? model_elements : 10 * 9 + 9;
        run_threads(ranks, [&](const Communicator& world) {
          OwnGradientTraining training(world, demo_on(ranks, sends_all ? everything : few, stage));
          training.step(1);
          training.sharded().wait_for_values();
          world.barrier(Stream::inline_()).wait();
          const std::uint64_t since = world.job().ledger().next_sequence();
          training.step(2);
          training.sharded().wait_for_values();
          std::map<std::string, std::vector<std::int64_t>> found;  // by tag: operations, bytes
          for (const Record& record : world.job().ledger().records(since)) {
            auto& its = found[record.tag];
            its.resize(2);
            ++its[0];
            its[1] += static_cast<std::int64_t>(record.bytes_sent);
          }
          EXPECT_FALSE(found.contains("gradients"));
          EXPECT_EQ(found["demo"].at(0), 1);
          EXPECT_EQ(found["demo"].at(1), (ranks - 1) * ((6 * coefficients + 3) / 4 * 4));
          const ShardedParameters& sharded = training.sharded();
          const auto planned =
              momentum_traffic(sharded.parameters(), sharded.mesh().shape(), sharded.options(), training.optimizer().kind());
          const std::int64_t sent = found["demo"].at(1) + (stage == ZeroStage::none ? 0 : found["parameters"].at(1));
          EXPECT_NEAR(static_cast<double>(sent), static_cast<double>(planned.at("dp")), ranks == 2 ? 0 : 4 * 2 * 2);
        });
      }
    }
  }
}

// The control: SGD, which sums gradients.
TEST(DeMo, TakesTheMemoryOfItsFormula) {
  for (const ZeroStage stage : {ZeroStage::none, ZeroStage::gradients}) {
    run_threads(2, [&](const Communicator& world) {
      const std::int64_t before[] = {bytes_of_both(world, MemoryKind::optimizer), bytes_of_both(world, MemoryKind::buffers)};
      OwnGradientTraining training(world, demo_on(2, few, stage));
      const ShardedParameters& sharded = training.sharded();
      EXPECT_EQ(bytes_of_both(world, MemoryKind::optimizer) - before[0], 2 * 4 * model_elements);
      EXPECT_EQ(bytes_of_both(world, MemoryKind::buffers) - before[1], 2 * 4 * model_elements) << "the momentum";
      const auto planned = [&](const OptimizerKind& kind) {
        return state_memory(sharded.parameters(), sharded.mesh().shape(), sharded.options(), kind);
      };
      const TrainingMemory with = planned(few.kind()), without = planned(SGD::Options{.momentum = 0}.kind());
      EXPECT_EQ(with.optimizer - without.optimizer, 4 * model_elements);
      const std::int64_t message = 6 * (10 * 9 + 9) + 2, bases = 2 * (5 * 5 + 8 * 8 + 3 * 3 + 1);
      const std::int64_t scratch = std::min(kernels::cpu::compute_threads(), 10) * scratch_of_chunk(5, 8);
      EXPECT_EQ(with.buffers - without.buffers, 4 * model_elements + 2 * message + 4 * bases + scratch);
    });
  }
}

// Of 15 chunks, each thread that has one transforms one at a time.
TEST(CoefficientExchange, HoldsItsMessagesAndAChunkForEachThread) {
  for (const int threads : {1, 3, 50}) {
    run_threads(1, [&](const Communicator& world) {
      const Mesh mesh(world, {});
      Parameters parameters;
      parameters.add(Parameter::whole("matrix", {48, 80}, token_axes, {}));
      parameters.add(Parameter::whole("vector", {10}, token_axes, {}));
      ShardedParameters sharded(parameters, mesh, {.zero = ZeroStage::none});
      sharded.keep_gradients_local(true);
      const CoefficientChoice how{.chunk = 16, .kept = 7};
      CoefficientExchange exchange(sharded, how, 0.5, threads);
      exchange.run(0.1);  // makes the bases, which stay
      const auto use = [] { return memory_use(MemoryKind::buffers); };
      const std::size_t held = use().bytes;
      {
        // The peak never falls: ballast raises the memory in use to it, so that the memory of the call shows.
        const MemoryScope buffers(MemoryKind::buffers);
        const Tensor ballast({static_cast<std::int64_t>(use().peak_bytes - held)}, DType::u8);
        const std::size_t before = use().peak_bytes;
        exchange.run(0.1);
        const std::int64_t message = 6 * (15 * 7 + 7), scratch = std::min(threads, 15) * scratch_of_chunk(16, 16);
        EXPECT_EQ(static_cast<std::int64_t>(use().peak_bytes - before), message + scratch) << threads << " threads";
        const CoefficientVector as = coefficients_of(sharded.local_gradients().front().pieces, parameters, how);
        EXPECT_EQ(as.bytes(), message);
        EXPECT_EQ(as.scratch_bytes(threads), scratch);
      }
      EXPECT_EQ(use().bytes, held);
    });
  }
}

TEST(DeMo, RefusesWhatCannotBe) {
  using testing::HasSubstr;
  const auto refusal = [](const DeMo::Options& options, const ShardedParameters::Options& sharding = {}) {
    return sentence_of([&] { options.check(sharding); });
  };
  EXPECT_EQ(refusal(few), "");
  EXPECT_THAT(refusal({.compression_chunk = 257}), HasSubstr("sides of 257"));
  EXPECT_THAT(refusal({.compression_chunk = 0}), HasSubstr("sides of 0"));
  EXPECT_THAT(refusal({.compression_topk = 0}), HasSubstr("0 coefficients"));
  EXPECT_THAT(refusal({.compression_decay = 1}), HasSubstr("decay of 1"));
  EXPECT_THAT(refusal({.compression_decay = -0.5}), HasSubstr("decay of -0.5"));
  EXPECT_THAT(refusal(few, {.zero = ZeroStage::values}), HasSubstr("ZeRO stage 3"));
  EXPECT_THAT(refusal(few, {.dtype = DType::f64}), HasSubstr("give a type of 32 or 16 bits"));
  EXPECT_THAT(refusal(few, {.powersgd = {.rank = 2}}), HasSubstr("PowerSGD of rank 2"));
  EXPECT_THAT(refusal(few, {.zero = ZeroStage::gradients, .offload = {.gradients = {"/scratch"}}}), HasSubstr("/scratch"));
}

TEST(DeMo, RefusesOptionsThatDifferBetweenRanks) {
  run_threads(2, [](const Communicator& world) {
    const DeMo::Options own{.compression_chunk = world.rank() == 0 ? 8 : 4, .compression_topk = 9};
    const std::string sentence = sentence_of([&] { const OwnGradientTraining training(world, demo_on(2, own)); });
    EXPECT_THAT(sentence,
                testing::HasSubstr(world.rank() == 0 ? "The chunk of DeMo is '8' on rank 0, '4' on rank 1" : "rank 0"));
  });
}

}  // namespace
}  // namespace stretto
