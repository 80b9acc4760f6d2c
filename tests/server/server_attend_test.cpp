// Ranks that attend answer losses while they call nothing, so that workers may wait for one another.
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <latch>
#include <thread>

#include "server/dying_servers.hpp"
#include "stretto/launch.hpp"
#include "stretto/server.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using testing::HasSubstr;

constexpr std::int64_t attended = 40;

Tensor attended_ones() {
  Tensor tensor({attended}, DType::i64);
  std::fill_n(tensor.data<std::int64_t>(), attended, 1);
  return tensor;
}

ServerSet attended_counts(const Communicator& world, const ServerSet::Options& options) {
  return {world, {{"counts", attended, DType::i64, {}, server_functions::sum()}}, options};
}

void wait_for_ranks(const ServerSet& set, int left) {
  while (set.ranks().size() > left) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// A server is lost while worker 1 waits for worker 0, which waits for the servers, or makes no call, either.
TEST(ServerAttend, WorkersThatWaitForOneAnotherGoOn) {
  for (const bool one_calls : {true, false}) {
    std::latch done(1);
    run_threads(4, [&](const Communicator& world) {
      ServerFunction sum = server_functions::sum();
      sum.update = [inner = sum.update, rank = world.rank()](const ServerUpdate& update) {
        if (rank == 3 && update.updates == 1) throw Killed();
        inner(update);
      };
      ServerSet set(world, {{"counts", attended, DType::i64, {}, sum}}, {.servers = 2, .part_elements = 10, .copies = 1});
      if (set.is_server()) return serve_until_death(set);
      set.attend();
      set.attend();  // once more changes nothing
      const Tensor found({attended}, DType::i64);
      set.wait(set.push_pull(0, attended_ones(), found));
      set.push(0, attended_ones());
      if (world.rank() == 0) {
        if (one_calls) set.wait(set.pull(0, found));
        wait_for_ranks(set, 3);
        done.count_down();
      } else {
        done.wait();
        EXPECT_EQ(set.ranks().size(), 3);
      }
      set.wait(set.push_pull(0, attended_ones(), found));
      EXPECT_THAT(std::vector<std::int64_t>(found.data<std::int64_t>(), found.data<std::int64_t>() + attended),
                  testing::Each(6));
      set.leave();
    });
  }
}

// The control: who does not attend, and calls nothing for the job's timeout, is left behind.
TEST(ServerAttend, WhoDoesNotIsLeftBehind) {
  std::latch done(1);
  run_threads(4, [&](const Communicator& world) {
    ServerSet set =
        attended_counts(world, {.servers = 2, .consistency = Consistency::eventual(), .part_elements = 10, .copies = 1});
    world.job().set_timeout(1);
    if (world.rank() == 3) return world.job().abort("it is killed.");
    if (set.is_server()) return set.serve();
    const Tensor found({attended}, DType::i64);
    if (world.rank() == 0) {
      set.attend();
      wait_for_ranks(set, 2);
      set.leave();
      done.count_down();
      return;
    }
    done.wait();
    EXPECT_THAT(sentence_of(ErrorCode::peer_gave_up, [&] { set.wait(set.pull(0, found)); }),
                HasSubstr("have gone on without rank 1"));
  });
}

// What ends the set while a rank calls nothing, its next call says.
TEST(ServerAttend, ALossThatEndsTheSetIsTheNextCallsError) {
  EXPECT_THAT(sentence_of(ErrorCode::peer_lost,
                          [&] {
                            run_threads(2, [&](const Communicator& world) {
                              ServerSet set =
                                  attended_counts(world, {.servers = 1, .part_elements = 10, .survivors_go_on = true});
                              if (set.is_server()) return world.job().abort("it is killed.");
                              set.attend();
                              wait_for_ranks(set, 1);
                              const Tensor found({attended}, DType::i64);
                              for (int call = 0; call < 2; ++call) {
                                EXPECT_THAT(sentence_of([&] { set.wait(set.pull(0, found)); }),
                                            HasSubstr("Lost with rank 1: elements 0 to 39"));
                              }
                              set.wait(set.pull(0, found));
                            });
                          }),
              HasSubstr("of which no other server has a copy"));
}

}  // namespace
}  // namespace stretto
