#include <gmock/gmock.h>

#include "stretto/launch.hpp"
#include "stretto/server.hpp"
#include "support/error.hpp"
#include "support/variables.hpp"
#include "transport/bootstrap/job.hpp"
#include "transport/bootstrap/socket.hpp"

namespace stretto {
namespace {

using testing::HasSubstr;

TEST(ServerState, NamesPartsClocksCopiesAndQueues) {
  std::string state;
  run_threads(4, [&](const Communicator& world) {
    ServerSet set(world,
                  {{"weights", 900, DType::f32, {}, server_functions::sum()},
                   {.name = "rows", .update = server_functions::sum(), .width = 2}},
                  {.servers = 2, .part_elements = 300, .copies = 1});
    if (set.is_server()) {
      set.serve();
      if (world.rank() == 2) state = set.state();
      return;
    }
    const Tensor ones({900}, DType::f32), found({900}, DType::f32);
    ones.zero();
    for (int i = 0; i < 3; ++i) set.wait(set.push_pull(0, ones, found));
    expect_refusal([&] { std::ignore = set.state(); }, "is a worker and has no parts");
    set.leave();
  });
  EXPECT_THAT(state, testing::StartsWith("Server 1 of 2, rank 2 of 4, process "));
  EXPECT_THAT(state, HasSubstr("11 parts, 3600 bytes of dense tables, 1 copies; consistency bounded 0\n"));
  EXPECT_THAT(state, HasSubstr(" messages of 0 bytes wait to be handled; sent "));  // a goodbye at most
  // Two servers have all parts; which of them is the first follows from the ring.
  EXPECT_THAT(state,
              HasSubstr(" of table weights\n  version 3, clocks of workers 3 3, 0 pushes and 0 pulls wait; at ranks "));
  EXPECT_THAT(state, HasSubstr("of 8 parts of the keys of table rows\n  version 0, clocks of workers 0 0,"));
  EXPECT_THAT(state, testing::AnyOf(HasSubstr("at ranks 2, 3"), HasSubstr("at ranks 3, 2")));
}

// No rank is left behind in a set that another one could not begin.
TEST(ServerState, PortsThatCannotBeEndTheSetOnAllRanks) {
  const auto sentences = [](int port) {
    const Variable setting("STRETTO_SERVERS_PORT", std::to_string(port));
    std::vector<std::string> of(4);
    run_threads(4, [&](const Communicator& world) {
      of[static_cast<std::size_t>(world.rank())] = sentence_of([&] {
        ServerSet(world, {{"weights", 900, DType::f32, {}, server_functions::sum()}}, {.servers = 2});
      });
    });
    return of;
  };
  const Listener listener = listen_on("127.0.0.1", 0);
  const Socket taken(listener.socket);
  const std::vector<std::string> in_use = sentences(listener.port);
  EXPECT_THAT(in_use[2],
              testing::AllOf(HasSubstr("The server of rank 2 cannot listen on port " + std::to_string(listener.port)),
                             HasSubstr("STRETTO_SERVERS_PORT")));
  for (const int rank : {0, 1, 3}) EXPECT_THAT(in_use[rank], HasSubstr("Rank 2 could not begin its part of the server set"));
  const std::vector<std::string> beyond = sentences(65535);
  EXPECT_THAT(beyond[0],
              HasSubstr("gives the last of 2 servers port 65536, and the last port is 65535; give at most 65534"));
  for (const std::string& sentence : beyond) EXPECT_NE(sentence, "");
}

}  // namespace
}  // namespace stretto
