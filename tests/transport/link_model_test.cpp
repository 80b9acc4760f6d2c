// STRETTO_LINKS: its syntax and its errors; and messages that take at least the modelled time, unchanged and in order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "core/fail.hpp"
#include "stretto/stretto.hpp"
#include "support/error.hpp"
#include "support/variables.hpp"
#include "transport/modelled_link.hpp"
#include "transport/wait.hpp"

namespace stretto {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(LinkSetting, IsReadInAnyUnitAndOrder) {
  const LinkSetting both = link_setting_from_text("intra=50GB/s,1us;inter=1Gb/s,20us");
  EXPECT_DOUBLE_EQ(both.intra->bytes_per_second, 50e9);
  EXPECT_DOUBLE_EQ(both.intra->latency, 1e-6);
  EXPECT_DOUBLE_EQ(both.inter->bytes_per_second, 125e6);
  EXPECT_DOUBLE_EQ(both.inter->latency, 20e-6);
  const LinkSetting one = link_setting_from_text("inter=2.5MB/s,0.5ms");
  EXPECT_FALSE(one.intra);
  EXPECT_DOUBLE_EQ(one.inter->bytes_per_second, 2.5e6);
  EXPECT_DOUBLE_EQ(one.inter->latency, 0.5e-3);
  EXPECT_DOUBLE_EQ(link_setting_from_text("intra=8Mb/s,0us").intra->bytes_per_second, 1e6);
  EXPECT_DOUBLE_EQ(link_setting_from_text("inter=1Gb/s,1us;intra=1GB/s,1us").intra->bytes_per_second, 1e9);
  EXPECT_DOUBLE_EQ(network_speed_from_text("25Gb/s,5us").bytes_per_second, 3.125e9);
  EXPECT_THROW(network_speed_from_text("25Gb/s"), Error);
  EXPECT_TRUE(link_setting_from_text("").empty());
}

TEST(LinkSetting, SaysWhatIsWrong) {
  const std::vector<std::array<std::string, 2>> wrong{
      {"outer=1Gb/s,1us", "'outer=1Gb/s,1us'"},
      {"inter", "'inter'"},
      {"inter=1Gb/s", "needs a bandwidth and a latency"},
      {"inter=1gb/s,1us", "'1gb/s'"},
      {"inter=1 Gb/s,1us", "'1 Gb/s'"},
      {"inter= 1Gb/s,1us", "' 1Gb/s'"},
      {"inter=0Gb/s,1us", "'0Gb/s'"},
      {"inter=-1Gb/s,1us", "'-1Gb/s'"},
      {"inter=infGb/s,1us", "'infGb/s'"},
      {"inter=1e3Gb/s,1us", "'1e3Gb/s'"},
      {"inter=,1us", "''"},
      {"inter=1Gb/s,1", "'1'"},
      {"inter=1Gb/s,1s", "'1s'"},
      {"inter=1Gb/s,-1us", "'-1us'"},
      {"inter=1Gb/s,1us,2us", "'1us,2us'"},
      {"inter=1Gb/s,1us;inter=1Gb/s,1us", "twice"},
      {"inter=1Gb/s,1us;", "ends with ';'"},
      {";inter=1Gb/s,1us", "''"},
  };
  for (const auto& [text, part] : wrong) {
    EXPECT_THAT(sentence_of([&, &text = text] { link_setting_from_text(text); }),
                AllOf(HasSubstr("STRETTO_LINKS"), HasSubstr(part)))
        << text;
  }
}

TEST(Port, IsOccupiedByOneAfterTheOtherAndSavesNothingUp) {
  Port port{};
  EXPECT_EQ(port.occupy(100, 10), 100);
  EXPECT_EQ(port.occupy(100, 10), 110);
  EXPECT_EQ(port.occupy(105, 10), 120);    // the port is occupied until then
  EXPECT_EQ(port.occupy(130, 5), 130);     // the port is just free
  EXPECT_EQ(port.occupy(1000, 10), 1000);  // idle time is not saved up
  EXPECT_EQ(port.occupy(500, 10), 1010);
}

TEST(Port, GivesNoTimeToTwo) {
  Port port{};
  constexpr int each = 20000;
  std::vector<std::vector<std::int64_t>> begins(3);
  std::vector<std::thread> threads;
  for (auto& mine : begins) {
    threads.emplace_back([&] {
      for (int i = 0; i < each; ++i) mine.push_back(port.occupy(0, 7));
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::int64_t> all;
  for (const auto& mine : begins) all.insert(all.end(), mine.begin(), mine.end());
  std::sort(all.begin(), all.end());
  for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], static_cast<std::int64_t>(7 * i));
}

// Records the bytes that the link passes on, with the time by the links' clock.
class Recorder : public Link {
 public:
  bool progress(Transfer& transfer) override {
    if (room == 0) return false;
    const std::size_t bytes = std::min(transfer.bytes - transfer.moved, room);
    room -= bytes;
    transfer.moved += bytes;
    passed.emplace_back(steady_nanoseconds(), transfer.moved);
    return true;
  }
  void cancel(Transfer&) override {}
  std::size_t room = SIZE_MAX;
  std::vector<std::pair<std::int64_t, std::size_t>> passed;
};

struct Wire {
  Wire(std::size_t bytes, const LinkSpeed& speed) : data(bytes) {
    auto recorder = std::make_unique<Recorder>();
    passed = recorder.get();
    link = std::make_unique<ModelledLink>(std::move(recorder), speed, std::shared_ptr<Port>(ports, &ports->out),
                                          std::shared_ptr<Port>(ports, &ports->in));
    transfer.source = data.data();
    transfer.bytes = data.size();
  }
  std::shared_ptr<Ports::Pair> ports = std::make_shared<Ports::Pair>();
  std::vector<std::byte> data;
  Transfer transfer;
  Recorder* passed = nullptr;
  std::unique_ptr<ModelledLink> link;
};

constexpr LinkSpeed slow{20e6, 1e-3};  // 50 ns a byte

TEST(ModelledLink, PassesNoByteOnBeforeItsTime) {
  Wire wire(200000, slow);
  const std::int64_t begin = steady_nanoseconds();
  wire.link->progress(wire.transfer);
  EXPECT_LT(wire.transfer.started, wire.transfer.bytes / 4);  // messages go in pieces, so that several share a port
  while (!wire.transfer.complete()) wire.link->progress(wire.transfer);
  for (const auto& [when, bytes] : wire.passed->passed) {
    EXPECT_GE(when - begin, static_cast<std::int64_t>(50 * bytes + 1000000)) << bytes;
  }
}

TEST(ModelledLink, LosesNoTimeWhenItsRankLooksLate) {
  Wire wire(100000, slow);
  wire.link->progress(wire.transfer);
  std::this_thread::sleep_for(std::chrono::milliseconds(7));  // 5 for the bytes, 1 for the latency
  while (wire.link->progress(wire.transfer)) {
  }
  EXPECT_TRUE(wire.transfer.complete());
}

TEST(ModelledLink, MakesNothingUpForAReceiverThatTakesNothing) {
  constexpr std::size_t bytes = std::size_t{64} << 20;
  constexpr std::size_t sockets = std::size_t{10} << 20;  // a generous bound on the bytes that wait in sockets
  Wire wire(bytes, {8e9, 1e-6});                          // 8 ms
  wire.passed->room = 0;
  const std::int64_t begin = steady_nanoseconds();
  while (steady_nanoseconds() < begin + 20000000) wire.link->progress(wire.transfer);
  EXPECT_GT(wire.transfer.started, 0U);
  EXPECT_LT(wire.transfer.started, sockets);
  const std::int64_t resumed = steady_nanoseconds();
  wire.passed->room = SIZE_MAX;
  while (!wire.transfer.complete()) wire.link->progress(wire.transfer);
  EXPECT_GE(steady_nanoseconds() - resumed, static_cast<std::int64_t>((bytes - sockets) / 8));
}

// Sends all messages at the same time and checks their contents. Returns the seconds from the first begin to the last end,
// the same on all ranks.
struct Message {
  int from, to;
};
double seconds_for(const Communicator& world, const std::vector<Message>& messages, std::int64_t count) {
  const auto value = [](int from, std::int64_t i) { return static_cast<float>((i * 7 + from) % 1001); };
  world.barrier(Stream::inline_()).wait();
  std::vector<Tensor> buffers;
  const auto begin = static_cast<double>(steady_nanoseconds());
  OperationGroup together;
  for (const Message& message : messages) {
    if (message.from == world.rank()) {
      buffers.emplace_back(Shape{count}, DType::f32);
      for (std::int64_t i = 0; i < count; ++i) buffers.back().set(i, value(world.rank(), i));
      std::ignore = world.send(buffers.back().raw(), count, DType::f32, message.to, Stream::inline_());
    }
    if (message.to == world.rank()) {
      buffers.push_back(Tensor::zeros({count}, DType::f32));
      std::ignore = world.recv(buffers.back().raw(), count, DType::f32, message.from, Stream::inline_());
    }
  }
  std::ignore = together.end();
  const auto end = static_cast<double>(steady_nanoseconds());
  std::size_t next = 0;
  for (const Message& message : messages) {
    if (message.from != world.rank() && message.to != world.rank()) continue;
    const Tensor& buffer = buffers.at(next++);
    for (std::int64_t i = 0; i < count; ++i) {
      if (buffer.at(i) != value(message.from, i)) fail(ErrorCode::internal, "element {} is wrong", i);
    }
  }
  std::vector<double> mine{begin, end};
  std::vector<double> all(2 * world.size());
  world.all_gather(mine.data(), all.data(), 2, DType::f64, Stream::inline_()).wait();
  double first = all[0];
  double last = all[1];
  for (int rank = 0; rank < world.size(); ++rank) {
    first = std::min(first, all[2 * rank]);
    last = std::max(last, all[2 * rank + 1]);
  }
  return (last - first) * 1e-9;
}

constexpr std::int64_t floats = 25000;  // 100 kB: 5 ms at 20 MB/s
constexpr double one = 0.005, latency = 0.001;

class ModelledLinks : public testing::Test {
 protected:
  Variable links_{"STRETTO_LINKS", "inter=20MB/s,1ms"};
  Variable nodes_{"STRETTO_RANKS_PER_NODE", "2"};
};

TEST_F(ModelledLinks, HoldMessagesBackBetweenNodes) {
  run_threads(4, [](const Communicator& world) { EXPECT_GE(seconds_for(world, {{0, 2}}, floats), one + latency); });
}

TEST_F(ModelledLinks, RanksOfANodeShareItsPorts) {
  run_threads(6, [](const Communicator& world) {
    EXPECT_GE(seconds_for(world, {{0, 2}, {1, 4}}, floats), 2 * one + latency) << "of the senders";
    EXPECT_GE(seconds_for(world, {{0, 4}, {2, 5}}, floats), 2 * one + latency) << "of the receivers";
    EXPECT_GE(seconds_for(world, {{0, 2}, {0, 3}, {1, 2}, {1, 3}}, floats), 4 * one + latency) << "of both";
  });
}

TEST_F(ModelledLinks, ProcessesOfANodeShareItsPorts) {
  const auto body = [](const Communicator& world) {
    const double seconds = seconds_for(world, {{0, 2}, {1, 4}, {3, 0}, {5, 1}}, floats);
    if (seconds < 2 * one + latency) fail(ErrorCode::internal, "only {} s", seconds);
  };
  EXPECT_EQ(launch(6, body), 0);
  EXPECT_NE(launch(4, [](const Communicator&) { fail(ErrorCode::internal, "this is the control"); }), 0);
}

TEST_F(ModelledLinks, ARestIsNoCredit) {
  run_threads(4, [](const Communicator& world) {
    for (int i = 0; i < 2; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      EXPECT_GE(seconds_for(world, {{0, 2}}, floats), one + latency);
    }
  });
}

TEST_F(ModelledLinks, EveryRankHasPortsOfItsOwnInsideANode) {
  const Variable links("STRETTO_LINKS", "intra=20MB/s,1ms");
  run_threads(4, [](const Communicator& world) {
    EXPECT_GE(seconds_for(world, {{0, 1}}, floats), one + latency);
    EXPECT_GE(seconds_for(world, {{2, 3}, {3, 2}}, floats), one + latency);
  });
}

TEST_F(ModelledLinks, LanesShareThePort) {
  const Variable nodes("STRETTO_RANKS_PER_NODE", "1");
  run_threads(2, [](const Communicator& world) {
    const Tensor data = Tensor::zeros({floats}, DType::f32);
    world.barrier(Stream::inline_()).wait();
    const std::int64_t begin = steady_nanoseconds();
    OperationOptions options;
    options.method = method_from_text("ring*4");
    world.all_reduce(data.raw(), data.raw(), floats, DType::f32, ReduceOp::sum, Stream::inline_(), options).wait();
    EXPECT_GE(static_cast<double>(steady_nanoseconds() - begin) * 1e-9, one);  // the ring sends half of the data twice
  });
}

TEST_F(ModelledLinks, CarryCollectives) {
  for (const char* setting : {"inter=1GB/s,10us", "intra=1GB/s,1us", "intra=2GB/s,1us;inter=1GB/s,10us"}) {
    const Variable links("STRETTO_LINKS", setting);
    run_threads(6, [&](const Communicator& world) {
      const int size = world.size();
      for (const std::int64_t count : {1, 999, 70001}) {
        const auto value = [](int rank, std::int64_t i) { return static_cast<double>((i + 3 * rank) % 7); };
        const auto sum = [&](std::int64_t i) {
          double all = 0;
          for (int rank = 0; rank < size; ++rank) all += value(rank, i);
          return all;
        };
        const Tensor data({count}, DType::f32);
        for (std::int64_t i = 0; i < count; ++i) data.set(i, value(world.rank(), i));
        world.all_reduce(data, ReduceOp::sum, Stream::inline_()).wait();
        std::int64_t wrong = 0;
        for (std::int64_t i = 0; i < count; ++i) wrong += data.at(i) != sum(i);
        const Tensor shares({size * count}, DType::f32);
        world.all_gather(data.raw(), shares.raw(), count, DType::f32, Stream::inline_()).wait();
        for (std::int64_t i = 0; i < size * count; ++i) wrong += shares.at(i) != sum(i % count);
        const Tensor blocks({size * count}, DType::f32);
        world.all_to_all(shares.raw(), blocks.raw(), count, DType::f32, Stream::inline_()).wait();
        for (std::int64_t i = 0; i < size * count; ++i) wrong += blocks.at(i) != sum(i % count);
        world.broadcast(data, size - 1, Stream::inline_()).wait();
        EXPECT_EQ(wrong, 0) << setting << ", " << count;
      }
      world.barrier(Stream::inline_()).wait();
    });
  }
}

// Collectives over mapped memory would go around the links.
TEST_F(ModelledLinks, AreNotGoneAround) {
  const auto sum = [](const Communicator& group, const Method& method) {
    const std::uint64_t before = group.job().ledger().next_sequence();
    const Tensor data = Tensor::zeros({16}, DType::f32);
    OperationOptions options;
    options.method = method;
    group.all_reduce(data, ReduceOp::sum, Stream::inline_(), options).wait();
    return group.job().ledger().records(before).back().method.algorithm;
  };
  const auto is_refused = [&](const Communicator& group) {
    return sentence_of([&] { sum(group, Algorithm::staged); }).find("do not all reach each other's memory") !=
           std::string::npos;
  };
  run_threads(4, [&](const Communicator& world) {
    EXPECT_FALSE(shares_memory(sum(world, {})));
    EXPECT_TRUE(is_refused(world));
    EXPECT_TRUE(is_refused(world.split(world.rank() % 2, 0, "across")));
    EXPECT_TRUE(shares_memory(sum(world.node(), {})));  // links inside nodes are not modelled
    EXPECT_FALSE(is_refused(world.node()));
  });
  const Variable links("STRETTO_LINKS", "intra=1GB/s,1us");
  run_threads(4, [&](const Communicator& world) {
    EXPECT_TRUE(is_refused(world));
    EXPECT_FALSE(shares_memory(sum(world.node(), {})));
    EXPECT_TRUE(is_refused(world.node()));
    EXPECT_FALSE(is_refused(world.split(world.rank() % 2, 0, "across")));
    // Ranks 2 and 3 have a modelled link between them, rank 0 has none: all three must choose alike.
    const Communicator mixed = world.split(world.rank() == 1 ? -1 : 0, 0, "mixed");
    EXPECT_TRUE(world.rank() == 1 || is_refused(mixed));
  });
}

TEST_F(ModelledLinks, AreNotSetInVain) {
  const auto sentence = [](int ranks) { return sentence_of([&] { run_threads(ranks, [](const Communicator&) {}); }); };
  EXPECT_EQ(sentence(4), "");
  {
    const Variable nodes("STRETTO_RANKS_PER_NODE", "0");
    EXPECT_THAT(sentence(4), HasSubstr("all 4 ranks are on one; set STRETTO_RANKS_PER_NODE"));
    EXPECT_EQ(sentence(1), "");
    const Variable both("STRETTO_LINKS", "intra=50GB/s,1us;inter=1Gb/s,20us");
    EXPECT_THAT(sentence(4), HasSubstr("all 4 ranks are on one; set STRETTO_RANKS_PER_NODE"));
  }
  {
    const Variable nodes("STRETTO_RANKS_PER_NODE", "1");
    const Variable inside("STRETTO_LINKS", "intra=1Mb/s,20ms");
    EXPECT_THAT(sentence(4), HasSubstr("each of the 4 ranks is on a node of its own"));
  }
  const Variable transport("STRETTO_TRANSPORT", "ucx");
  EXPECT_THAT(sentence(4), HasSubstr("STRETTO_TRANSPORT=ucx asks for others"));
}

}  // namespace
}  // namespace stretto
