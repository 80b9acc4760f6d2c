// Errors of broken links, and what the job says of the peer.
#include "collectives/execution/run_until_done.hpp"

#include <atomic>
#include <thread>

#include "support/error.hpp"
#include "transport/bootstrap/job.hpp"
#include "transport/link_broken.hpp"

namespace stretto {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// The sentence of rank 0's error about its link to `peer`, and whether it came before rank 1 was lost. Rank 2 is lost
// before.
struct Named {
  std::string sentence;
  bool before_the_loss_of_1 = false;
};
Named named(int peer) {
  const auto jobs = make_local_jobs(3);
  jobs[0]->do_without({1, 2});
  jobs[2]->abort("The second one.");
  std::atomic<bool> is_lost = false, has_begun = false, has_ended = false;
  Named result;
  std::thread rank0([&] {
    result.sentence = sentence_of(ErrorCode::peer_lost, [&] {
      naming_losses(*jobs[0], [&] {
        has_begun = true;
        throw LinkBroken(peer, ErrorCode::peer_lost, "The link broke.");
      });
    });
    result.before_the_loss_of_1 = !is_lost;
    has_ended = true;
  });
  while (!(peer == 1 ? has_begun : has_ended)) std::this_thread::yield();
  is_lost = true;
  jobs[1]->abort("The first one.");
  rank0.join();
  return result;
}

TEST(NamingLosses, EndsWithTheLossOfThePeer) {
  const Named of_1 = named(1);
  EXPECT_THAT(of_1.sentence,
              AllOf(HasSubstr("The link broke. "), HasSubstr("The first one."), HasSubstr("The second one.")));
  EXPECT_FALSE(of_1.before_the_loss_of_1);
  const Named of_2 = named(2);  // whose loss is known
  EXPECT_THAT(of_2.sentence, AllOf(HasSubstr("The second one."), Not(HasSubstr("The first one."))));
  EXPECT_TRUE(of_2.before_the_loss_of_1);
}

TEST(NamingLosses, ThrowsTheErrorOfAJobThatNeedsThePeer) {
  const auto jobs = make_local_jobs(2);
  jobs[1]->abort("It gives up.");
  EXPECT_THAT(
      sentence_of(ErrorCode::peer_gave_up,
                  [&] { naming_losses(*jobs[0], [] { throw LinkBroken(1, ErrorCode::peer_lost, "The link broke."); }); }),
      HasSubstr("It gives up."));
}

// An error of another kind concerns no peer.
TEST(NamingLosses, LeavesOtherErrorsAlone) {
  const auto jobs = make_local_jobs(2);
  const auto lacks_memory = [] { throw Error(ErrorCode::unavailable, "No memory."); };
  EXPECT_EQ(sentence_of(ErrorCode::unavailable, [&] { naming_losses(*jobs[0], lacks_memory); }), "No memory.");
}

}  // namespace
}  // namespace stretto
