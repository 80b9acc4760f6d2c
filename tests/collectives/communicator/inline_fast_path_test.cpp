#include "collectives/communicator/inline_fast_path.hpp"

#include <gtest/gtest.h>

#include "collectives/communicator/group.hpp"
#include "stretto/stretto.hpp"

namespace stretto {
namespace {

TEST(InlineFastPath, ServesACallWithATagAndTheLedgerHasIt) {
  run_threads(3, [](const Communicator& world) {
    double x = 1, y = 0;
    const Call call{Collective::all_reduce, &x, &y, 1, DType::f64};
    const OperationOptions norm{.tag = "norm"};
    InlineFastPath& fast_path = *Communicator::Group::of(world).fast_path(Stream::inline_());
    Work work;
    EXPECT_FALSE(fast_path.run(call, norm, {"norm.cpp", 1}, work)) << "nobody has planned such a call";
    world.start(call, Stream::inline_(), norm).wait();
    const std::uint64_t since = world.job().ledger().next_sequence();
    for (const char* tag : {"norm", "loss", static_cast<const char*>(nullptr)}) {  // the tag is no part of a call's shape
      EXPECT_TRUE(fast_path.run(call, {.tag = tag}, {"norm.cpp", 2}, work));
      EXPECT_EQ(y, 3);
    }
    world.prepare(call, norm).start(Stream::inline_()).wait();
    EXPECT_FALSE(fast_path.run(call, {.tag = "norm", .quantization = {.format = QuantizedFormat::int8}}, {}, work));
    const std::vector<Record> records = world.job().ledger().records(since);
    ASSERT_EQ(records.size(), 4U);
    EXPECT_EQ(records[0].tag, "norm");
    EXPECT_EQ(records[0].site.to_string(), "norm.cpp:2");
    EXPECT_EQ(records[1].tag, "loss");
    EXPECT_EQ(records[2].tag, "");
    EXPECT_EQ(records[3].tag, "norm");
  });
}

}  // namespace
}  // namespace stretto
