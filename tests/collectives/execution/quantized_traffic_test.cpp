// Traffic of quantized collectives, as the ledger says it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "quantized_calls.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

using quantized_calls::calling_thread;
using quantized_calls::formats;
using quantized_calls::quantized_as;

std::int64_t sent(const Communicator& world, std::uint64_t since) {
  return static_cast<std::int64_t>(world.job().ledger().traffic(since).bytes_sent);
}

TEST(Quantized, TheLedgerSaysTheBytesOfTheFormula) {
  for (const int size : {1, 2, 3, 4, 7}) {
    run_threads(size, [&](const Communicator& world) {
      const Tensor big = Tensor::zeros({size * 3000L}, DType::bf16);
      const Tensor small = Tensor::zeros({3000}, DType::bf16);
      for (const QuantizedFormat format : formats) {
        const std::int64_t others = size - 1;
        std::uint64_t since = world.job().ledger().next_sequence();
        std::ignore = world.all_gather(small.raw(), big.raw(), 1000, DType::bf16, calling_thread(),
                                       quantized_as(format, Algorithm::direct));
        EXPECT_EQ(sent(world, since), others * packed_bytes(format, 1000)) << name(format);
        since = world.job().ledger().next_sequence();
        std::ignore = world.reduce_scatter(big.raw(), small.raw(), 1000, DType::bf16, ReduceOp::sum, calling_thread(),
                                           quantized_as(format, Algorithm::direct));
        EXPECT_EQ(sent(world, since), others * packed_bytes(format, 1000)) << name(format);
        since = world.job().ledger().next_sequence();
        OperationOptions options = quantized_as(format, Algorithm::two_shot);
        options.quantization.result = QuantizedFormat::int8;
        std::ignore =
            world.all_reduce(big.raw(), big.raw(), 1024L * size, DType::bf16, ReduceOp::sum, calling_thread(), options);
        EXPECT_EQ(sent(world, since), others * (packed_bytes(format, 1024) + packed_bytes(QuantizedFormat::int8, 1024)));
        const Record record = world.job().ledger().records(since).front();
        EXPECT_EQ(record.quantized, format);
        EXPECT_EQ(record.bytes_between_nodes, 0U);
        EXPECT_THAT(record.to_string(), testing::HasSubstr(name(format)));
      }
    });
  }
}

TEST(Quantized, TheLedgerSaysWhatGoesBetweenNodes) {
  const Variable variable("STRETTO_RANKS_PER_NODE", "2");
  constexpr std::int64_t ranks = 2;
  constexpr std::int64_t nodes = 3;
  const Method method(Algorithm::two_level);
  Method plain = method;
  plain.inside = plain.between = Algorithm::direct;
  run_threads(ranks * nodes, [&](const Communicator& world) {
    const Tensor big = Tensor::zeros({6 * 2048}, DType::f32);
    const Tensor small = Tensor::zeros({2048}, DType::f32);
    const auto expect = [&](std::uint64_t since, std::int64_t inside, std::int64_t between) {
      const Record record = world.job().ledger().records(since).front();
      EXPECT_EQ(record.bytes_sent, static_cast<std::uint64_t>(inside + between)) << record.to_string();
      EXPECT_EQ(record.bytes_between_nodes, static_cast<std::uint64_t>(between)) << record.to_string();
    };
    for (const QuantizedFormat format : formats) {
      const std::int64_t share = packed_bytes(format, 2048);
      std::uint64_t since = world.job().ledger().next_sequence();
      std::ignore =
          world.all_gather(small.raw(), big.raw(), 2048, DType::f32, calling_thread(), quantized_as(format, method));
      expect(since, (ranks - 1) * nodes * share, (nodes - 1) * share);
      since = world.job().ledger().next_sequence();
      std::ignore = world.reduce_scatter(big.raw(), small.raw(), 2048, DType::f32, ReduceOp::sum, calling_thread(),
                                         quantized_as(format, method));
      expect(since, (ranks - 1) * nodes * share, (nodes - 1) * share);
    }
    const std::uint64_t since = world.job().ledger().next_sequence();  // the same without quantization
    std::ignore = world.all_gather(small.raw(), big.raw(), 2048, DType::f32, calling_thread(), {.method = plain});
    expect(since, (ranks - 1) * nodes * 8192, (nodes - 1) * 8192);
  });
}

}  // namespace
}  // namespace stretto
