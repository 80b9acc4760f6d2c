// Traces: events of real operations, arrows between the right ranks, and a file that is complete or does not exist.
#include "stretto/overlap/trace.hpp"

#include <gmock/gmock.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "device/stream/kernel_scope.hpp"
#include "stretto/kernels.hpp"
#include "stretto/stretto.hpp"
#include "support/error.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

class Directory {
 public:
  Directory() {
    std::string name = (std::filesystem::temp_directory_path() / "trace-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  std::string operator/(const char* file) const { return path_ / file; }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) names.push_back(entry.path().filename());
    return names;
  }

 private:
  std::filesystem::path path_;
};

json parsed(const std::string& path) {
  std::ifstream file(path);
  return json::parse(file);
}

std::vector<json> events_of(const json& trace, const std::string& phase, const std::string& category = "") {
  std::vector<json> events;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") == phase && (category.empty() || event.at("cat") == category)) events.push_back(event);
  }
  return events;
}

TEST(Records, SayBetweenWhomBytesMove) {
  run_threads(3, [](const Communicator& world) {
    const Communicator turned = world.split(0, -world.rank(), "turned");
    EXPECT_THAT(turned.job_ranks(), ElementsAre(2, 1, 0));
    const std::uint64_t first = world.job().ledger().next_sequence();
    const Tensor data = Tensor::zeros({300}, DType::f32);
    const OperationOptions ring{.method = Algorithm::ring};
    world.all_reduce(data, ReduceOp::sum, Stream::inline_(), ring).wait();
    turned.all_reduce(data, ReduceOp::sum, Stream::inline_(), ring).wait();
    if (world.rank() == 0) world.send(data.raw(), 10, DType::f32, 2, Stream::inline_()).wait();
    if (world.rank() == 2) world.recv(data.raw(), 10, DType::f32, 0, Stream::inline_()).wait();
    const std::vector<Record> records = world.job().ledger().records(first);
    const int next = (world.rank() + 1) % 3;
    const int previous = (world.rank() + 2) % 3;
    EXPECT_THAT(records.at(0).partners->sends_to, ElementsAre(next));
    EXPECT_THAT(records.at(0).partners->receives_from, ElementsAre(previous));
    EXPECT_THAT(records.at(1).partners->members, ElementsAre(2, 1, 0));
    EXPECT_THAT(records.at(1).partners->sends_to, ElementsAre(previous));
    EXPECT_THAT(records.at(1).partners->receives_from, ElementsAre(next));
    EXPECT_NE(records.at(0).partners->group_id, records.at(1).partners->group_id);
    if (world.rank() == 0) {
      EXPECT_THAT(records.at(2).partners->sends_to, ElementsAre(2));
    }
    if (world.rank() == 2) {
      EXPECT_THAT(records.at(2).partners->receives_from, ElementsAre(0));
    }
  });
}

constexpr int steps = 3;

void some_steps(const Communicator& world, Trace& trace, const Stream& stream) {
  const Tensor data = Tensor::zeros({3000}, DType::f32);
  const Tensor other = Tensor::zeros({3000}, DType::f32);
  for (int step = 1; step <= steps; ++step) {
    const Trace::Span whole = trace.step(step);
    const Work sum = world.all_reduce(data, ReduceOp::sum, stream, {.method = Algorithm::ring, .tag = "a \"tag\""});
    const Trace::Span part = trace.part("beside it");
    kernels::add(other, other, other);
    const Tensor row = other.view(0, {1, 3000});
    kernels::gemm(row, kernels::Transpose::no, row, kernels::Transpose::yes, Tensor({1, 1}, DType::f32));
    sum.wait();
    world.broadcast(data, 1, Stream::inline_(), {.method = Algorithm::binomial}).wait();
  }
}

TEST(Trace, SaysWhatEveryRankDid) {
  const Directory directory;
  const std::string path = directory / "trace.json";
  std::array<std::uint64_t, 3> bytes{};
  run_threads(3, [&](const Communicator& world) {
    Trace trace(world);
    const Stream stream("dp");
    const std::uint64_t first = world.job().ledger().next_sequence();
    some_steps(world, trace, stream);
    bytes[world.rank()] = world.job().ledger().traffic(first).bytes_sent;
    trace.write(path);
  });
  EXPECT_THAT(directory.files(), ElementsAre("trace.json"));
  const json trace = parsed(path);
  std::array<std::uint64_t, 3> said{};
  for (const json& event : events_of(trace, "X", "communication")) {
    const bool on_stream = event["name"] == "all_reduce";
    EXPECT_EQ(event["tid"], on_stream ? 1 : 0);
    EXPECT_EQ(event["args"]["algorithm"], on_stream ? "ring" : "binomial");
    EXPECT_EQ(event["args"]["tag"], on_stream ? "a \"tag\"" : "");
    EXPECT_EQ(event["args"]["count"], 3000);
    said[event["pid"].get<int>()] += event["args"]["bytes"].get<std::uint64_t>();
  }
  EXPECT_EQ(said, bytes);
  EXPECT_EQ(events_of(trace, "X", "communication").size(), 3U * steps * 2);
  std::map<std::string, std::size_t> kernels;
  for (const json& event : events_of(trace, "X", "compute")) {
    ++kernels[event["name"]];
    EXPECT_EQ(event.value("args", json()), event["name"] == "gemm" ? json({{"gflop", 6e-6}}) : json());
  }
  EXPECT_EQ(kernels, (std::map<std::string, std::size_t>{{"add", 3U * steps}, {"gemm", 3U * steps}}));
  EXPECT_EQ(events_of(trace, "X", "step").size(), 3U * steps);
  EXPECT_EQ(events_of(trace, "X", "part").size(), 3U * steps);
  EXPECT_EQ(trace["otherData"]["lost_operations"], json({0, 0, 0}));

  // Each step has three arrows for the ring and two for the broadcast from rank 1.
  std::map<int, std::pair<int, double>> begun;
  for (const json& event : events_of(trace, "s")) begun[event["id"]] = {event["pid"], event["ts"]};
  std::multiset<std::pair<int, int>> arrows;
  for (const json& event : events_of(trace, "f")) {
    const auto& [from, at] = begun.at(event["id"]);
    arrows.emplace(from, event["pid"].get<int>());
    if (event["tid"] == 1) {
      EXPECT_LE(at, event["ts"].get<double>());
    }
  }
  const std::multiset<std::pair<int, int>> in_a_step{{0, 1}, {1, 2}, {2, 0}, {1, 2}, {1, 0}};
  std::multiset<std::pair<int, int>> expected;
  for (int step = 0; step < steps; ++step) expected.insert(in_a_step.begin(), in_a_step.end());
  EXPECT_EQ(arrows, expected);
  EXPECT_EQ(begun.size(), expected.size());
}

TEST(Trace, GoesOnBehindAFile) {
  const Directory directory;
  run_threads(2, [&](const Communicator& world) {
    Trace trace(world);
    const Stream stream("dp");
    some_steps(world, trace, stream);
    trace.write(directory / "first.json");
    some_steps(world, trace, stream);
    trace.write(directory / "second.json");
  });
  const auto operations = [&](const char* file) { return events_of(parsed(directory / file), "X", "communication").size(); };
  EXPECT_EQ(operations("first.json"), 2U * steps * 2);
  EXPECT_EQ(operations("second.json"), 2U * steps * 4) << "without what the first one sent";
}

// The trace's own communicator, whose operations are left out, has the same name.
TEST(Trace, HoldsThoseOfACommunicatorNamedTrace) {
  const Directory directory;
  run_threads(2, [&](const Communicator& world) {
    const Communicator named = world.duplicate("trace");
    Trace trace(world);
    const Stream stream("dp");
    some_steps(named, trace, stream);
    trace.write(directory / "trace.json");
  });
  EXPECT_EQ(events_of(parsed(directory / "trace.json"), "X", "communication").size(), 2U * steps * 2);
}

TEST(Trace, LeavesArrowsOutWhereOperationsWereLost) {
  const Directory directory;
  for (const bool harvested : {false, true}) {
    const Variable variable("STRETTO_LEDGER", "8");
    run_threads(2, [&](const Communicator& world) {
      const Tensor data = Tensor::zeros({3}, DType::f32);
      Trace trace(world);
      for (int i = 0; i < 20; ++i) {
        if (harvested) const Trace::Span span = trace.step(i);
        world.all_reduce(data, ReduceOp::sum, Stream::inline_(), {.method = Algorithm::ring}).wait();
      }
      trace.write(directory / "trace.json");
    });
    const json trace = parsed(directory / "trace.json");
    EXPECT_EQ(trace["otherData"]["lost_operations"], harvested ? json({0, 0}) : json({12, 12}));
    EXPECT_EQ(trace["otherData"].contains("arrows_left_out"), !harvested);
    EXPECT_EQ(events_of(trace, "s").size(), harvested ? 2U * 20 : 0U);
  }
}

TEST(Trace, IsWholeOrNotThere) {
  const Directory directory;
  std::filesystem::create_symlink("/dev/full", directory / "full.json");
  std::filesystem::create_directory(directory / "folder");
  run_threads(2, [&](const Communicator& world) {
    Trace trace(world);
    const Stream stream("dp");
    some_steps(world, trace, stream);
    for (const char* file : {"nowhere/trace.json", "full.json", "folder"}) {
      if (world.rank() != 0) {
        trace.write(directory / file);
        continue;
      }
      EXPECT_THAT(sentence_of(ErrorCode::io, [&] { trace.write(directory / file); }),
                  HasSubstr(std::string(file) + " cannot be written: "));
    }
    trace.write(directory / "trace.json");
  });
  EXPECT_THAT(directory.files(), testing::UnorderedElementsAre("folder", "full.json", "trace.json"));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
  EXPECT_THROW(Trace::check_writable(directory / "nowhere/trace.json"), Error);
  EXPECT_THROW(Trace::check_writable(directory / "folder"), Error);
  Trace::check_writable(directory / "trace.json");
  Trace::check_writable(directory / "other.json");
  EXPECT_THAT(directory.files(), testing::UnorderedElementsAre("folder", "full.json", "trace.json"));
}

TEST(Trace, IsOneAThread) {
  run_threads(1, [](const Communicator& world) {
    {
      const Trace trace(world);
      EXPECT_NE(kernel_notes, nullptr);
      EXPECT_THROW(const Trace second(world), Error);
    }
    EXPECT_EQ(kernel_notes, nullptr);
    const Trace again(world);
  });
}

}  // namespace
}  // namespace stretto
