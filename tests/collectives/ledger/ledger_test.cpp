#include "stretto/ledger.hpp"

#include <gtest/gtest.h>

#include "stretto/stretto.hpp"

namespace stretto {
namespace {

TEST(Ledger, RecordsEveryOperationWithTheBytesOfItsFormula) {
  for (const int size : {1, 2, 3, 4, 6, 8}) {
    run_threads(size, [&](const Communicator& world) {
      const std::int64_t count = 24L * size;
      const Tensor x = Tensor::zeros({count}, DType::f32);
      const std::uint64_t since = world.job().ledger().next_sequence();
      const Stream stream("comm");
      const Work work = world.all_reduce(x, ReduceOp::sum, stream, {.method = Algorithm::ring, .tag = "gradients"});
      work.wait();
      world
          .all_gather(x.raw(), Tensor({count * size}, DType::f32).raw(), count, DType::f32, Stream::inline_(),
                      {.method = Algorithm::recursive_halving_doubling})
          .wait();
      const auto records = world.job().ledger().records(since);
      ASSERT_EQ(records.size(), 2U);
      EXPECT_EQ(records[0].bytes_sent, 2U * (size - 1) * count * 4 / size);
      EXPECT_EQ(records[0].stream, "comm");
      EXPECT_EQ(records[0].tag, "gradients");
      EXPECT_EQ(records[0].method.algorithm, Algorithm::ring);
      EXPECT_EQ(records[0].group, "world");
      EXPECT_GT(records[0].times.done, 0);
      EXPECT_GE(records[0].times.started, records[0].times.enqueued);
      EXPECT_EQ(records[1].bytes_sent, 4U * (size - 1) * count);
      EXPECT_DOUBLE_EQ(records[1].times.waited, records[1].times.done - records[1].times.started);  // inline hides nothing
      const Traffic sum = world.job().ledger().traffic(since);
      EXPECT_EQ(sum.operations, 2U);
      EXPECT_EQ(sum.bytes_sent, records[0].bytes_sent + records[1].bytes_sent);
    });
  }
}

// A record is entered with the plan that this rank expects. When all ranks have called, they may decide on another.
TEST(Ledger, TakesThePlanThatAllRanksDecideOn) {
  Ledger ledger;
  const auto partners = std::make_shared<const Partners>();
  const std::uint64_t number = ledger.enter({.collective = Collective::all_reduce,
                                             .method = Algorithm::ring,
                                             .group = "dp",
                                             .count = 100,
                                             .bytes_sent = 400,
                                             .tag = "gradients"});
  ledger.settle(number, {.method = method_from_text("two_level(ring+pairwise)*2/2"),
                         .group = "another",
                         .dtype = DType::bf16,
                         .quantized = QuantizedFormat::int8,
                         .count = 1,
                         .bytes_sent = 120,
                         .bytes_between_nodes = 60,
                         .partners = partners});
  const Record record = ledger.records(number).at(0);
  EXPECT_NE(record.to_string().find(" by two_level(ring+pairwise)*2/2 "), std::string::npos) << record.to_string();
  EXPECT_EQ(record.dtype, DType::bf16);
  EXPECT_EQ(record.quantized, QuantizedFormat::int8);
  EXPECT_EQ(record.bytes_sent, 120U);
  EXPECT_EQ(record.bytes_between_nodes, 60U);
  EXPECT_EQ(record.partners, partners);
  EXPECT_EQ(record.group, "dp");
  EXPECT_EQ(record.count, 100);
  EXPECT_EQ(record.tag, "gradients");
  EXPECT_EQ(ledger.traffic().bytes_sent, 120U);
}

}  // namespace
}  // namespace stretto
