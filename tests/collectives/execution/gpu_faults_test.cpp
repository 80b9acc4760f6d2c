// Operations on GPUs whose other ranks do not come: they end in time with an error message, and everything that depends on
// them reports it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <tuple>

#include "collectives/gpu_buffers.hpp"
#include "stand_in/job_on_gpus.hpp"
#include "support/error.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

using testing::AllOf;
using testing::HasSubstr;

void sleep_ms(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

// Rank 0 waits for an operation that never comes. The other ranks wait for rank 0 outside of operations, which would time
// out, too.
class Patience {
 public:
  void rank_0_is_done(const Communicator& world) {
    if (world.rank() == 0) done_ = true;
    for (int i = 0; i < 20000 && !done_; ++i) sleep_ms(1);
  }

 private:
  std::atomic<bool> done_ = false;
};

class LostOnGpus : public testing::TestWithParam<Route> {
 protected:
  JobOnGpus ranks_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(All, LostOnGpus, testing::ValuesIn(all_routes),
                         [](const auto& parameter) { return std::string(name(parameter.param)); });

// NCCL's calls return before the other ranks have come; on the other routes the call itself waits.
class LostOverNccl : public LostOnGpus {};
INSTANTIATE_TEST_SUITE_P(All, LostOverNccl, testing::Values(Route::nccl),
                         [](const auto& parameter) { return std::string(name(parameter.param)); });

const std::function<void(HostNccl&)> as_it_is = [](HostNccl&) {};
constexpr double for_ever = 60;  // seconds; NCCL itself has no timeout

// Rank 1 does not call the operation that rank 0 calls.
TEST_P(LostOnGpus, ResultsOfWhatNeverCameCannotBeRead) {
  const Variable patience("STRETTO_TIMEOUT", "0.4");
  Patience others;
  ranks_.run(
      2,
      [&](const Communicator& world) {
        const Tensor x = Tensor::zeros({1000}, DType::f32);
        const Communicator pair = world.duplicate("pair");
        {
          const Stream stream("communication");
          pair.all_reduce(x, ReduceOp::sum, stream).wait();
          if (world.rank() == 0) {
            const Work work = pair.all_reduce(x, ReduceOp::sum, stream);
            computation().wait(work);
            kernels::add(x, x, x);
            EXPECT_THAT(sentence_of([&] { x.at(0); }), HasSubstr("waited"));
            // Between threads of one process, the copies' own sentence names the rank that does not come; else the other
            // rank is asked what it is doing.
            const bool asks = GetParam() != Route::copies;
            EXPECT_THAT(sentence_of([&] { work.wait(); }),
                        AllOf(HasSubstr("waited"), testing::ContainsRegex(asks ? "; rank [01] " : "rank 1")));
            EXPECT_THAT(sentence_of([&] { pair.all_reduce(x, ReduceOp::sum, stream).wait(); }), HasSubstr("waited"));
          }
        }
        others.rank_0_is_done(world);
      },
      as_it_is, for_ever);
}

// One rank leaves while another waits for it on its GPU.
TEST_P(LostOnGpus, ARankThatLeavesByAnExceptionWaitsForNobody) {
  const double before = now_seconds();
  const std::string sentence = sentence_of([&] {
    ranks_.run(
        2,
        [](const Communicator& world) {
          const Tensor x = Tensor::zeros({1000}, DType::f32);
          const Stream stream("communication");
          const Communicator pair = world.duplicate("pair");
          pair.all_reduce(x, ReduceOp::sum, stream).wait();
          if (world.rank() == 1) throw Error(ErrorCode::internal, "no more of this");
          pair.all_reduce(x, ReduceOp::sum, stream).wait();
        },
        as_it_is, for_ever);
  });
  EXPECT_EQ(sentence, "no more of this");
  EXPECT_LT(now_seconds() - before, for_ever / 2);
}

// The rank that leaves has an operation in flight that waits for the others; destroying its communicator would wait, too.
TEST_P(LostOverNccl, ARankThatLeavesGivesUpWhatIsUnderWay) {
  const double before = now_seconds();
  const std::string sentence = sentence_of([&] {
    ranks_.run(
        2,
        [](const Communicator& world) {
          const Tensor x = Tensor::zeros({1000}, DType::f32);
          const Stream stream("communication");
          const Communicator pair = world.duplicate("pair");
          pair.all_reduce(x, ReduceOp::sum, stream).wait();
          if (world.rank() == 1) {
            std::ignore = pair.all_reduce(x, ReduceOp::sum, stream);
            throw Error(ErrorCode::internal, "no more of this");
          }
          while (true) world.barrier(Stream::inline_()).wait();
        },
        as_it_is, for_ever);
  });
  EXPECT_EQ(sentence, "no more of this");
  EXPECT_LT(now_seconds() - before, for_ever / 2);
}

// The communicator is destroyed while its operation is in flight; the operation's timeout still works.
TEST_P(LostOverNccl, WorksAreWatchedUntilTheirEnd) {
  const Variable patience("STRETTO_TIMEOUT", "0.4");
  Patience others;
  ranks_.run(
      2,
      [&](const Communicator& world) {
        const Tensor x = Tensor::zeros({1000}, DType::f32);
        const Stream stream("communication");
        Work work;
        {
          const Communicator pair = world.duplicate("pair");
          pair.all_reduce(x, ReduceOp::sum, stream).wait();
          if (world.rank() == 0) work = pair.all_reduce(x, ReduceOp::sum, stream);
        }
        if (world.rank() == 0) {
          EXPECT_THAT(sentence_of([&] { work.wait(); }), HasSubstr("waited"));
        }
        others.rank_0_is_done(world);
      },
      as_it_is, for_ever);
}

// NCCL connects ranks in their first operation and blocks the caller until all have come.
TEST(LostOnGpusWithNccl, TheFirstOperationDoesNotBlockForEver) {
  for (const Algorithm algorithm : {Algorithm::nccl, Algorithm::ring}) {
    const Variable patience("STRETTO_TIMEOUT", "0.4");
    Patience others;
    JobOnGpus ranks(Route::nccl);
    ranks.run(
        2,
        [&](const Communicator& world) {
          const Tensor x = Tensor::zeros({1000}, DType::f32);
          const Communicator pair = world.duplicate("pair");
          {
            const Stream stream("communication");
            const Operation sum =
                pair.prepare({Collective::all_reduce, x.raw(), x.raw(), x.size(), x.dtype()}, {.method = algorithm});
            if (world.rank() == 0) {
              EXPECT_THAT(sentence_of([&] { sum.start(stream).wait(); }), HasSubstr("before the GPU could begin"));
            }
          }
          others.rank_0_is_done(world);
        },
        [](HostNccl& nccl) { nccl.connect_first(); }, for_ever);
  }
}

TEST(LostOnGpusWithNccl, ALaunchOfAGraphEnds) {
  const Variable patience("STRETTO_TIMEOUT", "0.4");
  Patience others;
  JobOnGpus ranks(Route::nccl);
  ranks.run(
      2,
      [&](const Communicator& world) {
        const Tensor x = Tensor::zeros({1000}, DType::f32);
        const Communicator pair = world.duplicate("pair");
        {
          const Stream stream("communication");
          const Operation sum = pair.prepare({Collective::all_reduce, x.raw(), x.raw(), x.size(), x.dtype()});
          sum.start(stream).wait();
          const Graph graph(stream, [&] { std::ignore = sum.start(computation()); });
          graph.launch(stream).wait();
          if (world.rank() == 0) {
            EXPECT_THAT(sentence_of([&] { graph.launch(stream).wait(); }),
                        AllOf(HasSubstr("waited"), HasSubstr("a launch of a graph with operations of 'pair'")));
            const Stream other("other");  // the graph is not launched any more, in any stream
            EXPECT_THAT(sentence_of([&] { graph.launch(other).wait(); }), HasSubstr("a launch of a graph"));
          }
        }
        others.rank_0_is_done(world);
      },
      as_it_is, for_ever);
}

// A graph keeps its communicator alive, so it can be launched after the last handle has gone.
TEST(LostOnGpusWithNccl, AGraphKeepsItsCommunicator) {
  JobOnGpus ranks(Route::nccl);
  ranks.run(2, [](const Communicator& world) {
    const Tensor x = Tensor::zeros({1000}, DType::f32);
    x.set(999, 1);
    const Stream stream("communication");
    const Graph graph = [&] {
      const Communicator pair = world.duplicate("pair");
      const Operation sum = pair.prepare({Collective::all_reduce, x.raw(), x.raw(), x.size(), x.dtype()});
      sum.start(stream).wait();
      return Graph(stream, [&] { std::ignore = sum.start(computation()); });
    }();
    graph.launch(stream).wait();
    EXPECT_EQ(x.at(999), 4);
  });
}

// ---- Threads that wait for each other

// An operation on a GPU waits for its turn, which comes only after a task in a host stream has started another operation.
TEST_P(LostOnGpus, WhoWaitsForATurnLetsOthersStartOperations) {
  ranks_.run(2, [](const Communicator& world) {
    const Communicator other = world.duplicate("other");
    const Tensor x = Tensor::zeros({10}, DType::f32);
    world.all_reduce(x, ReduceOp::sum, computation()).wait();
    const Stream host("host", Priority::normal, Device::cpu);
    const Stream second("second", Priority::normal, Device::cpu);
    std::vector<float> here(10, 1), there(10, 1);
    host.enqueue([&] {
      sleep_ms(60);  // the calling thread waits by then
      std::ignore = other.all_reduce(here.data(), here.data(), 10, DType::f32, ReduceOp::sum, second);
    });
    std::ignore = world.all_reduce(there.data(), there.data(), 10, DType::f32, ReduceOp::sum, host);
    std::ignore = world.all_reduce(x, ReduceOp::sum, computation());
    host.synchronize();
    second.synchronize();
    computation().synchronize();
    EXPECT_EQ(here[9], 2);
    EXPECT_EQ(there[9], 2);
  });
}

// An operation with host buffers on a GPU's stream waits for its turn as well, and runs after the stream's earlier work.
TEST_P(LostOnGpus, HostBuffersOnAGpusStreamAreTakenInTheStreamsOrder) {
  ranks_.run(2, [](const Communicator& world) {
    const Communicator other = world.duplicate("other");
    const Stream host("host", Priority::normal, Device::cpu);
    const Stream second("second", Priority::normal, Device::cpu);
    std::vector<float> here(10, 1), there(10, 1), late(10, 0);
    host.enqueue([&] {
      sleep_ms(60);
      std::ignore = other.all_reduce(here.data(), here.data(), 10, DType::f32, ReduceOp::sum, second);
    });
    std::ignore = world.all_reduce(there.data(), there.data(), 10, DType::f32, ReduceOp::sum, host);
    auto& on = dynamic_cast<HostGpu&>(gpu());
    on.put(gpu_stream(), [&] {
      sleep_ms(20);
      late.assign(10, static_cast<float>(world.rank() + 1));
    });
    std::ignore = world.all_reduce(late.data(), late.data(), 10, DType::f32, ReduceOp::sum, computation());
    EXPECT_EQ(late[9], 3);
    std::ignore = world.barrier(computation());
    host.synchronize();
    second.synchronize();
    EXPECT_EQ(here[9], 2);
  });
}

TEST_P(LostOnGpus, CallsThatDifferAreFoundWithoutHoldingOthersUp) {
  const Variable checks("STRETTO_CHECK", "1");
  EXPECT_THAT(sentence_of([&] {
                ranks_.run(2, [](const Communicator& world) {
                  const Tensor x = Tensor::zeros({10}, DType::f32);
                  world.all_reduce(x.raw(), x.raw(), 10 - world.rank(), DType::f32, ReduceOp::sum, computation()).wait();
                });
              }),
              HasSubstr("all its ranks must make the same"));
}

}  // namespace
}  // namespace stretto
