// The overlap classes over stand-in GPUs: each gives the host's bits on integers, at two and four ranks, over copies and
// over NCCL. The control: streams that ignore waits give other bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "device/gpu.hpp"
#include "device/kernels/kernel_data.hpp"
#include "device/stream/kernel_scope.hpp"
#include "stand_in/job_on_gpus.hpp"
#include "stretto/overlap/all_to_all.hpp"
#include "stretto/overlap/chunked_gemm.hpp"
#include "stretto/overlap/ring_pass.hpp"
#include "stretto/overlap/sharded_unit.hpp"
#include "stretto/overlap/trace.hpp"
#include "stretto/overlap/unit_traffic.hpp"
#include "stretto/stretto.hpp"
#include "support/temporary_directory.hpp"

namespace stretto {
namespace {

using kernels::Transpose;

// Small integers, whose sums are exact in any order, on this thread's device.
Tensor integers(const Shape& shape, DType dtype, int seed) {
  const Tensor host = [&] {
    const OnDevice here(Device::cpu);
    return integer_tensor(shape, dtype, static_cast<unsigned>(seed));
  }();
  return host.on(current_device());
}

void append(std::vector<double>& to, const Tensor& tensor) {
  const Tensor here = tensor.on(Device::cpu);
  for (std::int64_t i = 0; i < here.size(); ++i) to.push_back(here.at(i));
}

// Layers whose parameters and gradients lie as a ZeRO stage says: used in forward and backward, summed and updated.
std::vector<double> sharded(const Communicator& world, ZeroStage stage, bool second_copy = false) {
  constexpr std::int64_t width = 12;
  const Communicator gathers = world.duplicate("parameters");
  ShardedUnit::Options options{.stage = stage};
  if (second_copy) options.secondary = gathers.node();
  std::vector<std::unique_ptr<ShardedUnit>> units;
  std::vector<UnitStore*> pointers;
  for (int i = 0; i < 3; ++i) {
    units.push_back(std::make_unique<ShardedUnit>(gathers, world, std::vector<Shape>{{width, width}, {5}}, DType::f32,
                                                  DType::f32, options));
    ShardedUnit& unit = *units.back();
    unit.share().copy_from(integers(unit.share().shape(), DType::f32, 10 * i + world.rank()));
    unit.share_changed();
    if (unit.has_values()) unit.gather(computation()).wait();
    pointers.push_back(&unit);
  }
  UnitTraffic traffic(pointers, Stream("parameters", Priority::urgent), Stream("gradients", Priority::background), {});
  std::vector<double> results;
  for (int step = 0; step < 3; ++step) {
    const Tensor x = integers({2, width}, DType::f32, 50 + world.rank());
    const Tensor y({2, width}, DType::f32);
    traffic.begin_step();
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      for (std::size_t i = 0; i < 3; ++i) {
        traffic.begin_use(i, Pass::forward);
        kernels::gemm(x, Transpose::no, units[i]->values()[0], Transpose::no, y);
        append(results, y);
        traffic.end_use(i);
      }
      for (std::size_t i = 3; i-- > 0;) {
        traffic.begin_use(i, Pass::backward);
        const Tensor scaled = units[i]->values()[0].clone();
        kernels::scale(scaled, world.rank() + 1);
        kernels::add(scaled, units[i]->gradients()[0], units[i]->gradients()[0]);
        traffic.end_use(i);
      }
      traffic.end_microbatch();
    }
    traffic.finish_sums();
    for (const std::size_t i : traffic.forward_order()) {
      append(results, units[i]->gradient_share());
      if (traffic.is_whole(i)) {
        for (std::size_t t = 0; t < 2; ++t)
          kernels::add(units[i]->values()[t], units[i]->gradients()[t], units[i]->values()[t]);
      } else {
        kernels::add(units[i]->share(), units[i]->gradient_share(), units[i]->share());
      }
      traffic.updated(i);
    }
  }
  return results;
}

std::vector<double> chunked(const Communicator& world, DType dtype) {
  const Stream stream("tp");
  constexpr std::int64_t inner = 9;
  constexpr std::int64_t columns = 14;
  const int rank = world.rank();
  std::vector<std::int64_t> rows;
  for (int each = 0; each < world.size(); ++each) rows.push_back(30 + 17 * each);
  const std::int64_t all = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  const Tensor weight = integers({columns, inner}, dtype, 7 + rank);
  std::vector<double> results;
  for (const int chunks : {0, 1, 3}) {
    const ChunkedGemmOptions options{.chunks = chunks};
    const Tensor own = integers({rows[static_cast<std::size_t>(rank)], inner}, dtype, rank);
    const Tensor y({all, columns}, dtype);
    const Tensor gathered({all, inner}, dtype);
    all_gather_gemm(own, rows, {weight, Transpose::yes}, y, gathered, world, stream, options);
    const Tensor x = integers({all, inner}, dtype, 20 + rank);
    const Tensor share({rows[static_cast<std::size_t>(rank)], columns}, DType::f32);
    gemm_reduce_scatter(x, rows, {weight, Transpose::yes}, share, world, stream, options);
    const Tensor sum({all, columns}, DType::f32);
    gemm_all_reduce(x, {weight, Transpose::yes}, sum, world, stream, options);
    const Tensor later({all, columns}, DType::f32);
    const Work work = start_gemm_all_reduce(x, {weight, Transpose::yes}, later, world, stream, options);
    kernels::scale(sum, 2);
    computation().wait(work);
    kernels::add(later, sum, sum);
    for (const Tensor& tensor : {y, gathered, share, sum}) append(results, tensor);
  }
  return results;
}

// A product with blocks that go round the ring, and a sum that follows them.
std::vector<double> round_the_ring(const Communicator& world) {
  const Communicator behind = world.duplicate("sums");
  const Stream there("kv");
  const Stream back("dkv");
  const Tensor q = integers({5, 8}, DType::f64, world.rank());
  const Tensor k = integers({6, 8}, DType::f64, 10 + world.rank());
  const Tensor out = Tensor::zeros({5, 8}, DType::f64);
  const Tensor scores({5, 6}, DType::f64);
  RingPass blocks({k, integers({3}, DType::i32, world.rank())}, world, there);
  RingSum sums({k}, behind, back);
  const auto attend = [&](const Tensor& block, const Tensor& sum) {
    kernels::gemm(q, Transpose::no, block, Transpose::yes, scores);
    kernels::gemm(scores, Transpose::no, block, Transpose::no, out, true);
    kernels::gemm(scores, Transpose::yes, q, Transpose::no, sum);
  };
  attend(blocks.current()[0], sums.own()[0]);
  std::vector<double> results;
  while (blocks.rotate()) {
    attend(blocks.current()[0], sums.contribution()[0]);
    sums.pass();
    append(results, blocks.current()[1]);
  }
  append(results, sums.finish()[0]);
  append(results, out);
  return results;
}

std::vector<double> to_all_and_back(const Communicator& world) {
  const Stream stream("ep");
  constexpr std::int64_t columns = 6;
  std::vector<std::int64_t> sends;
  std::vector<std::int64_t> receives;
  for (int peer = 0; peer < world.size(); ++peer) {
    sends.push_back((3 * world.rank() + 5 * peer) % 13);
    receives.push_back((3 * peer + 5 * world.rank()) % 13);
  }
  const auto sum = [](const std::vector<std::int64_t>& rows) {
    return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  };
  const auto doubled = [](const BlockRows& part) { kernels::scale(part.rows, 2); };
  std::vector<double> results;
  for (const int chunks : {0, 2}) {
    const Tensor input = integers({sum(sends), columns}, DType::f32, world.rank());
    const Tensor there({sum(receives), columns}, DType::f32);
    const Tensor back({sum(sends), columns}, DType::f32);
    all_to_all_then(input, sends, there, receives, doubled, world, stream, {.chunks = chunks});
    compute_then_all_to_all(doubled, there, receives, back, sends, world, stream, {.chunks = chunks});
    append(results, there);
    append(results, back);
  }
  return results;
}

struct Subject {
  const char* name;
  std::function<std::vector<double>(const Communicator&)> run;
};
class OverlapOnGpus : public testing::TestWithParam<Subject> {};
INSTANTIATE_TEST_SUITE_P(
    All, OverlapOnGpus,
    testing::Values(Subject{"Zero0", [](const Communicator& world) { return sharded(world, ZeroStage::none); }},
                    Subject{"Zero1", [](const Communicator& world) { return sharded(world, ZeroStage::optimizer); }},
                    Subject{"Zero2", [](const Communicator& world) { return sharded(world, ZeroStage::gradients); }},
                    Subject{"Zero3", [](const Communicator& world) { return sharded(world, ZeroStage::values); }},
                    Subject{"Zero3WithASecondCopy",
                            [](const Communicator& world) { return sharded(world, ZeroStage::values, true); }},
                    Subject{"ChunkedGemmOfF32", [](const Communicator& world) { return chunked(world, DType::f32); }},
                    Subject{"ChunkedGemmOfBf16", [](const Communicator& world) { return chunked(world, DType::bf16); }},
                    Subject{"Ring", round_the_ring}, Subject{"AllToAll", to_all_and_back}),
    [](const auto& subject) { return subject.param.name; });

using Results = std::vector<std::vector<double>>;  // by rank
template <class Job>
Results results_of(int ranks, const Subject& subject, const Job& job) {
  Results results(static_cast<std::size_t>(ranks));
  job(ranks, [&](const Communicator& world) { results[static_cast<std::size_t>(world.rank())] = subject.run(world); });
  return results;
}

TEST_P(OverlapOnGpus, GivesTheHostsBits) {
  for (const int ranks : {2, 4}) {
    const Results expected = results_of(ranks, GetParam(), run_threads);
    for (const bool one_gpu_each : {false, true}) {
      const auto job = [&](int size, const RankBody& body) {
        JobOnGpus(one_gpu_each ? Route::nccl : Route::copies).run(size, body);
      };
      EXPECT_TRUE(results_of(ranks, GetParam(), job) == expected) << ranks << " ranks, a GPU each: " << one_gpu_each;
    }
  }
}

TEST_P(OverlapOnGpus, NeedsTheWaitsOfStreams) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "this control is the race that it would find";
#endif
  const Results expected = results_of(2, GetParam(), run_threads);
  bool same = true;
  for (std::uint64_t seed = 1; same && seed < 20; ++seed) {  // with few waits, data may arrive in time by chance
    const JobOnGpus careless(Route::copies, {.longest_delay_us = 300, .seed = seed, .ignores_waits = true});
    const auto job = [&](int size, const RankBody& body) { careless.run(size, body); };
    same = results_of(2, GetParam(), job) == expected;
  }
  EXPECT_FALSE(same);
}

class OneGpu : public testing::Test {
 protected:
  HostGpu gpu;
  GpuInUse in_use{gpu};
  void TearDown() override { EXPECT_THAT(gpu.violations(), testing::IsEmpty()); }
};

// An operation's exposed time is the time for which computation stood still.
TEST_F(OneGpu, WorksKnowForHowLongComputationWaitedForThem) {
  const OnDevice on(Device::cuda);
  const Stream communication("communication");
  const auto put = [&](const Stream& stream, const std::shared_future<void>& until) {
    return stream.enqueue([&, until] { gpu.put(gpu_stream(), [until] { until.wait(); }); });
  };
  std::promise<void> arrives;
  const Work awaited = put(communication, arrives.get_future().share());
  Event before;
  computation().record(before);
  computation().wait(awaited);
  before.wait();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  arrives.set_value();
  computation().synchronize();
  EXPECT_GT(awaited.times().waited, 0);

  std::promise<void> sooner;
  std::promise<void> computed;
  const Work hidden = put(communication, sooner.get_future().share());
  put(computation(), computed.get_future().share());
  computation().wait(hidden);
  sooner.set_value();
  while (!hidden.done()) std::this_thread::yield();
  computed.set_value();
  computation().synchronize();
  EXPECT_EQ(hidden.times().waited, 0);
}

// A kernel's slice in a trace has the GPU's times, not those of the call.
TEST_F(OneGpu, TracesHaveItsTimes) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/trace.json";
  constexpr auto long_time = std::chrono::milliseconds(30);
  run_threads(1, [&](const Communicator& world) {
    const OnDevice on(Device::cuda);
    Trace trace(world);
    {
      const Trace::Span span = trace.step(1);
      as_kernel("slow", [&] { gpu.put(gpu_stream(), [long_time] { std::this_thread::sleep_for(long_time); }); });
      kernels::scale(Tensor::zeros({10}, DType::f32), 2);
    }
    trace.write(path);
  });
  std::map<std::string, std::pair<double, double>> slices;  // begin and duration, microseconds
  std::ifstream file(path);
  const nlohmann::json text = nlohmann::json::parse(file);
  for (const auto& event : text.at("traceEvents")) {
    if (event.at("ph") == "X") slices[event.at("name")] = {event.at("ts"), event.at("dur")};
  }
  ASSERT_EQ(slices.size(), 3U);
  EXPECT_GE(slices["slow"].second, 30e3);
  EXPECT_GE(slices["scale"].first, slices["slow"].first + slices["slow"].second);
  const auto& [begin, duration] = slices["step 1"];
  EXPECT_LE(begin, slices["slow"].first);
  EXPECT_GE(begin + duration, slices["scale"].first + slices["scale"].second);
}

}  // namespace
}  // namespace stretto
