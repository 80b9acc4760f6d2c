// What 1-bit Adam's exchange loses, keeps, sends and holds.
#include "layers/optimizer/momentum_exchange.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <numbers>
#include <numeric>

#include "own_gradients.hpp"
#include "stretto/kernels.hpp"
#include "stretto/planning/training_memory.hpp"

namespace stretto {
namespace {

// Sum over rounds of the results = sum of all inputs - what the errors hold at the end, in exact arithmetic. The control:
// the results alone, without what the errors hold.
TEST(MomentumExchange, LosesNothingButWhatTheErrorsHold) {
  for (int ranks = 2; ranks <= 8; ++ranks) {
    for (const std::int64_t count : {1, 13, 3001}) {
      for (const char* const kind : {"normal", "zeros", "one-hot"}) {
        std::vector<double> sum(static_cast<std::size_t>(count)), inputs(sum), held(sum);
        double magnitude = 0;
        run_threads(ranks, [&](const Communicator& world) {
          ErrorFeedback errors;
          OperationOptions options;
          options.quantization = {.format = QuantizedFormat::onebit, .errors = &errors, .tensor = "x"};
          const Tensor x({count}, DType::f32);
          const auto in_turn = [&](const auto& action) {
            for (int rank = 0; rank < ranks; ++rank) {
              if (rank == world.rank()) action();
              world.barrier(Stream::inline_()).wait();
            }
          };
          for (std::uint64_t round = 0; round < 6; ++round) {
            for (std::int64_t i = 0; i < count; ++i) {
              const auto at = static_cast<std::uint64_t>(i + 5000 * world.rank()) + 100000 * round;
              const bool hot = i == count / 2 && world.rank() == 0;
              x.set(i, kind == std::string("normal") ? random_normal(1, "x", at) : kind[0] == 'o' && hot ? 1 : 0);
            }
            in_turn([&] {
              for (std::int64_t i = 0; i < count; ++i) {
                inputs[static_cast<std::size_t>(i)] += x.at(i);
                magnitude += std::abs(x.at(i));
              }
            });
            world.all_reduce(x, ReduceOp::sum, Stream::inline_(), options).wait();
            if (world.rank() == 0) {
              for (std::int64_t i = 0; i < count; ++i) sum[static_cast<std::size_t>(i)] += x.at(i);
            }
          }
          in_turn([&] {
            std::int64_t own = 0;  // where this rank's part begins
            for (int rank = 0; rank < world.rank(); ++rank) own += count / ranks + (rank < count % ranks ? 1 : 0);
            for (const ErrorFeedback::Entry& entry : errors.entries()) {
              const std::int64_t begin = entry.hop == Hop::result ? own : 0;
              for (std::int64_t i = 0; i < entry.values.size(); ++i)
                held[static_cast<std::size_t>(begin + i)] += entry.values.at(i);
            }
          });
        });
        double largest = 0, without = 0;
        for (std::size_t i = 0; i < sum.size(); ++i) {
          largest = std::max(largest, std::abs(inputs[i] - held[i] - sum[i]));
          without = std::max(without, std::abs(inputs[i] - sum[i]));
        }
        EXPECT_LE(largest, 1e-5 * magnitude) << kind << " " << count << " on " << ranks;
        if (kind == std::string("normal") && count > 1) {
          EXPECT_GT(without, 100 * largest);
        }
      }
    }
  }
}

std::vector<float> input_of_kind(int kind, std::int64_t count) {
  std::vector<float> x;
  for (std::int64_t i = 0; i < count; ++i) {
    const double normal = random_normal(2, "input", static_cast<std::uint64_t>(i));
    const double of_kind[] = {normal,
                              i == 7 ? 1.0 : 0.0,                                     // one-hot
                              i < 3 ? -1.0 : 0.0,                                     // few
                              1.0,                                                    // constant
                              i % 2 == 0 ? 1.0 : -1.0,                                // alternating
                              normal * normal * normal,                               // heavy tail
                              std::tan(0.49 * std::numbers::pi * std::tanh(normal)),  // heavier
                              std::exp(3 * normal),                                   // log-normal
                              static_cast<double>(i),                                 // a ramp
                              i % 64 == 0 ? 100.0 : 0.01};                            // two magnitudes
    x.push_back(static_cast<float>(of_kind[kind]));
  }
  return x;
}

double euclidean_norm(const std::vector<float>& x) {
  return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
}

// DeepSpeed's scale: |x|_2 / sqrt(d).
void quantize_by_l2(const std::vector<float>& x, std::vector<float>& error) {
  std::vector<float> sum(x);
  for (std::size_t i = 0; i < x.size(); ++i) sum[i] += error[i];
  const auto scale = static_cast<float>(euclidean_norm(sum) / std::sqrt(static_cast<double>(x.size())));
  for (std::size_t i = 0; i < x.size(); ++i) error[i] = sum[i] - (std::signbit(sum[i]) ? -scale : scale);
}

// By the mean magnitude, what a quantization loses is less than its input, always, and so errors stay bounded. The control:
// by the root of the mean square it is more for an input of few elements.
TEST(MomentumExchange, ErrorsStayBounded) {
  constexpr std::int64_t count = 1024;
  constexpr int kinds = 10, rounds = 10000;
  std::vector<std::uint8_t> record(static_cast<std::size_t>(packed_bytes(QuantizedFormat::onebit, count)));
  double largest_ratio = 0;
  for (int kind = 0; kind < kinds; ++kind) {
    const std::vector<float> x = input_of_kind(kind, count);
    std::vector<float> error(x.size());
    double largest = 0;
    for (int round = 0; round < rounds; ++round) {
      kernels::quantize(QuantizedFormat::onebit, DType::f32, x.data(), record.data(), count, {.residual = error.data()});
      largest = std::max(largest, euclidean_norm(error));
      if (round == 0) {
        EXPECT_LT(euclidean_norm(error), euclidean_norm(x));
      }
    }
    std::printf("kind %d: the error is at most %.3g times the input\n", kind, largest / euclidean_norm(x));
    largest_ratio = std::max(largest_ratio, largest / euclidean_norm(x));
  }
  EXPECT_LE(largest_ratio, 2 * count);
  const std::vector<float> hot = input_of_kind(1, count);
  std::vector<float> error(hot.size());
  quantize_by_l2(hot, error);
  std::printf("by the L2 scale, one-hot: one round loses %.3g times the input\n",
              euclidean_norm(error) / euclidean_norm(hot));
  EXPECT_GT(euclidean_norm(error), 1.3 * euclidean_norm(hot));
}

// One call for all units. The control: a step before the freeze.
TEST(MomentumExchange, SendsTheBytesOfItsFormula) {
  for (const int ranks : {2, 3, 4}) {
    for (const ZeroStage stage : {ZeroStage::none, ZeroStage::optimizer, ZeroStage::gradients}) {
      run_threads(ranks, [&](const Communicator& world) {
        OwnGradientTraining training(world, {.mesh = {{Axis::data, ranks}}, .stage = stage, .columns = 700});
        const ShardedParameters& sharded = training.sharded();
        const auto sent = [&](int first, int last) {
          training.sharded().wait_for_values();
          world.barrier(Stream::inline_()).wait();
          const std::uint64_t since = world.job().ledger().next_sequence();
          training.steps(first, last);
          training.sharded().wait_for_values();
          std::map<std::string, std::pair<std::int64_t, std::int64_t>> sums;  // by tag: operations, bytes
          for (const Record& record : world.job().ledger().records(since)) {
            ++sums[record.tag].first;
            sums[record.tag].second += static_cast<std::int64_t>(record.bytes_sent);
            if (record.tag == "momentum") {
              EXPECT_EQ(record.method.algorithm, Algorithm::two_shot) << "2 (N-1) messages";
            }
          }
          return sums;
        };
        EXPECT_GT(sent(1, 3)["gradients"].second, 0);
        sent(4, 4);  // this one has brought m to all ranks
        auto found = sent(5, 5);
        const auto planned =
            momentum_traffic(sharded.parameters(), sharded.mesh().shape(), sharded.options(), training.optimizer().kind());
        EXPECT_EQ(found["gradients"].second, 0);
        EXPECT_EQ(found["momentum"].first, 1);
        EXPECT_EQ(found.contains("parameters"), stage != ZeroStage::none);
        const std::int64_t elements = 10 * 700 + 9;
        if (world.rank() == 0) {
          EXPECT_EQ(found["momentum"].second + found["parameters"].second, planned.at("dp"));
        }
        EXPECT_NEAR(static_cast<double>(found["momentum"].second), 2.0 * (ranks - 1) / ranks * elements * 132 / 1024,
                    2 * ranks * 132);
      });
    }
  }
}

// The control: AdamW, whose state is smaller.
TEST(MomentumExchange, TakesTheMemoryOfItsFormula) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const ZeroStage stage : {ZeroStage::none, ZeroStage::gradients}) {
      const OneBitAdam::Options options{.freeze_step = 1};
      run_threads(2, [&](const Communicator& world) {
        OwnGradientTraining training(world, {{{Axis::data, 2}}, stage, options, dtype});
        const std::int64_t buffers = bytes_of_both(world, MemoryKind::buffers);
        training.steps(1, 3);
        training.values();
        const std::int64_t elements = 10 * 40 + 9;
        EXPECT_EQ(bytes_of_both(world, MemoryKind::buffers) - buffers, 4 * (2 * elements + elements)) << "errors";
        const std::int64_t found = bytes_of_both(world, MemoryKind::optimizer);
        const ShardedParameters& sharded = training.sharded();
        const auto planned = [&](const OptimizerKind& kind) {
          return 2 * state_memory(sharded.parameters(), sharded.mesh().shape(), sharded.options(), kind).optimizer;
        };
        const auto units = static_cast<std::int64_t>(sharded.unit_count());
        EXPECT_LE(found, planned(options.kind()));
        EXPECT_GE(found, planned(options.kind()) - (units + 2) * options.kind().state_bytes(dtype));
        EXPECT_GT(found, planned(AdamW::Options{}.kind()));
      });
    }
  }
}

}  // namespace
}  // namespace stretto
