#include "server/mailbox.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <random>
#include <vector>

#include "collectives/communicator/group.hpp"
#include "core/fail.hpp"
#include "stretto/launch.hpp"
#include "support/transports.hpp"
#include "support/variables.hpp"
#include "transport/link_broken.hpp"

namespace stretto {
namespace {

// All ranks send messages of random sizes to random others, and receive at random moments. Every byte says who sent which
// message to whom; messages between two ranks keep their order.
void random_program(const Communicator& world, unsigned seed, int messages, std::size_t most_inbox) {
  const int size = world.size(), rank = world.rank();
  std::vector<int> others;
  for (int other = 0; other < size; ++other) {
    if (other != rank) others.push_back(other);
  }
  ASSERT_GT(size, 1);
  // Everybody knows what everybody sends.
  std::vector<std::vector<std::vector<std::int64_t>>> sizes(
      static_cast<std::size_t>(size), std::vector<std::vector<std::int64_t>>(static_cast<std::size_t>(size)));
  std::mt19937 shared(seed), own(seed * 31 + static_cast<unsigned>(rank));
  for (int i = 0; i < messages; ++i) {
    const auto from = static_cast<std::size_t>(shared()) % static_cast<std::size_t>(size);
    const auto to = (from + 1 + shared() % static_cast<unsigned>(size - 1)) % static_cast<std::size_t>(size);
    const int kind = static_cast<int>(shared() % 4);
    sizes[from][to].push_back(kind == 0   ? 0
                              : kind == 1 ? 1 + shared() % 100
                              : kind == 2 ? shared() % 5000
                                          : shared() % 300000);
  }
  const auto content = [](int from, int to, std::size_t number, std::int64_t i) {
    return static_cast<std::uint8_t>(from * 7 + to * 31 + static_cast<int>(number) * 3 + static_cast<int>(i % 251));
  };
  Mailbox mailbox(world.duplicate("mail"), others, most_inbox);
  std::vector<std::size_t> sent(static_cast<std::size_t>(size)), received(static_cast<std::size_t>(size));
  std::size_t to_send = 0, to_receive = 0;
  for (const int other : others) {
    to_send += sizes[static_cast<std::size_t>(rank)][static_cast<std::size_t>(other)].size();
    to_receive += sizes[static_cast<std::size_t>(other)][static_cast<std::size_t>(rank)].size();
  }
  while (to_send + to_receive > 0) {
    const auto to = static_cast<std::size_t>(others[own() % others.size()]);
    const auto& mine = sizes[static_cast<std::size_t>(rank)][to];
    if (to_send > 0 && (own() % 2 == 0 || to_receive == 0)) {
      if (sent[to] == mine.size()) continue;
      const std::int64_t bytes = mine[sent[to]];
      const Tensor payload = bytes > 0 ? Tensor({bytes}, DType::u8) : Tensor();
      for (std::int64_t i = 0; i < bytes; ++i)
        payload.data<std::uint8_t>()[i] = content(rank, static_cast<int>(to), sent[to], i);
      mailbox.send(static_cast<int>(to), {.clock = static_cast<std::int64_t>(sent[to])}, payload);
      ++sent[to], --to_send;
    } else if (to_receive > 0) {
      // A rank that has messages to send must not wait for those of others, who may wait for them.
      const std::optional<ReceivedMessage> found = to_send > 0 ? mailbox.try_receive() : mailbox.receive();
      if (!found) continue;
      const ReceivedMessage& message = *found;
      const auto from = static_cast<std::size_t>(message.from);
      ASSERT_EQ(message.head.clock, static_cast<std::int64_t>(received[from]));
      ASSERT_EQ(static_cast<std::int64_t>(message.head.bytes), sizes[from][static_cast<std::size_t>(rank)][received[from]]);
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(message.head.bytes); ++i) {
        ASSERT_EQ(message.bytes.data<std::uint8_t>()[i], content(message.from, rank, received[from], i));
      }
      ++received[from], --to_receive;
    }
  }
  mailbox.send_all();
  world.barrier(Stream::inline_()).wait();
}

TEST(Mailbox, RandomProgramsReceiveWhatWasSent) {
  for (const char* const name : transports_here()) {
    const Variable transport("STRETTO_TRANSPORT", name);
    for (const int size : {2, 3, 5}) {
      for (unsigned seed = 1; seed <= 4; ++seed) {
        run_threads(size, [&](const Communicator& world) { random_program(world, seed, 200, std::size_t{64} << 20); });
      }
    }
  }
}

TEST(Mailbox, AFullInboxHoldsMessagesBackOnly) {
  run_threads(3, [&](const Communicator& world) { random_program(world, 9, 200, 1000); });
}

// Rank 1 waits for rank 2 to take a message, and takes off its links what rank 0 sends meanwhile, up to its bound. Returns
// whether all of that has left rank 0.
bool takes_all_while_it_waits(std::size_t most_inbox_bytes) {
  constexpr std::int64_t bytes = 1 << 20;
  constexpr int messages = 48;
  bool all_sent = false;
  run_threads(3, [&](const Communicator& world) {
    std::vector<int> partners;
    for (int rank = 0; rank < 3; ++rank) {
      if (rank != world.rank()) partners.push_back(rank);
    }
    Mailbox mailbox(world.duplicate("mail"), partners, most_inbox_bytes);
    int word = 0;
    if (world.rank() == 0) {
      for (int i = 0; i < messages; ++i) mailbox.send(1, {}, Tensor::zeros({bytes}, DType::u8));
      const auto begin = std::chrono::steady_clock::now();
      const auto patience = std::chrono::milliseconds(most_inbox_bytes > bytes ? 20000 : 300);
      while (!mailbox.all_sent() && std::chrono::steady_clock::now() - begin < patience) mailbox.try_receive();
      all_sent = mailbox.all_sent();
      world.send(&word, 1, DType::i32, 2, Stream::inline_()).wait();
      mailbox.send_all();
    } else if (world.rank() == 1) {
      mailbox.send(2, {}, Tensor::zeros({messages * bytes}, DType::u8));
      mailbox.send_all();
      for (int i = 0; i < messages; ++i) EXPECT_EQ(mailbox.receive().head.bytes, static_cast<std::uint64_t>(bytes));
    } else {
      world.recv(&word, 1, DType::i32, 0, Stream::inline_()).wait();
      mailbox.receive();
    }
    world.barrier(Stream::inline_()).wait();
  });
  return all_sent;
}

TEST(Mailbox, StopsTakingAtItsBound) {
  EXPECT_FALSE(takes_all_while_it_waits(1 << 20));
  EXPECT_TRUE(takes_all_while_it_waits(std::size_t{1} << 30)) << "the control: a bound that is not reached";
}

#ifdef STRETTO_HAVE_UCX
// The error comes before the job has said anything, and names the partner.
TEST(Mailbox, GoesOnWithoutAPartnerWhoseLinkIsBroken) {
  const Variable transport("STRETTO_TRANSPORT", "ucx");
  const int status = launch(3,
                            [&](const Communicator& world) {
                              Communicator::Group::of(world).context().job().do_without({1, 2});
                              const int rank = world.rank(), other = 2 - rank;  // of ranks 0 and 2
                              std::vector<int> partners{0, 1, 2};
                              std::erase(partners, rank);
                              Mailbox mailbox(world.duplicate("mail"), partners, 1 << 20);
                              for (const int partner : partners) mailbox.send(partner, {});
                              for (int i = 0; i < 2; ++i) mailbox.receive();
                              mailbox.send_all();
                              world.barrier(Stream::inline_()).wait();
                              if (rank == 1) std::raise(SIGKILL);
                              int broken = -1;
                              while (broken < 0) {
                                try {
                                  mailbox.send(1, {});
                                  mailbox.try_receive();
                                } catch (const LinkBroken& error) {
                                  broken = error.peer();
                                }
                              }
                              ensure(broken == 1, "The link to rank {} is broken.", broken);
                              mailbox.lose(broken);
                              mailbox.send(other, {.clock = rank}, Tensor::zeros({1 << 20}, DType::u8));
                              const ReceivedMessage message = mailbox.receive();
                              ensure(message.from == other && message.head.clock == other, "Rank {} sent clock {}.",
                                     message.from, message.head.clock);
                              mailbox.send_all();
                            },
                            {.survivors_go_on = true});
  EXPECT_EQ(status, 0);
}
#endif

// The first message is larger than what a link holds, and the others wait behind it.
TEST(Mailbox, MessagesOfHigherPriorityPassOthers) {
  run_threads(2, [](const Communicator& world) {
    const int other = 1 - world.rank();
    Mailbox mailbox(world.duplicate("mail"), {other}, std::size_t{1} << 30);
    const Tensor large({64 << 20}, DType::u8, Device::cpu);
    if (world.rank() == 0) {
      mailbox.send(other, {.clock = 0}, large, 0);
      mailbox.send(other, {.clock = 1}, {}, 0);
      mailbox.send(other, {.clock = 2}, {}, 5);
      mailbox.send(other, {.clock = 3});
      mailbox.send(other, {.clock = 4}, {}, 3);
      mailbox.send(other, {.clock = 5}, {}, 5);
      mailbox.send(other, {.clock = 6}, {}, 3);
    }
    world.barrier(Stream::inline_()).wait();
    if (world.rank() == 0) return mailbox.send_all();
    for (const std::int64_t clock : {0, 2, 1, 3, 5, 4, 6}) EXPECT_EQ(mailbox.receive().head.clock, clock);
  });
}

TEST(Mailbox, SaysWhichRequestsHaveLeft) {
  run_threads(2, [](const Communicator& world) {
    const int other = 1 - world.rank();
    Mailbox mailbox(world.duplicate("mail"), {other}, std::size_t{1} << 30);
    if (world.rank() == 0) {
      mailbox.send(other, {.request = 1});
      mailbox.send(other, {.request = 2}, Tensor({64 << 20}, DType::u8, Device::cpu));
      mailbox.send(other, {.request = 3});
      EXPECT_TRUE(mailbox.has_sent(1) && mailbox.has_sent(7));
      EXPECT_FALSE(mailbox.has_sent(2) || mailbox.has_sent(3));
      EXPECT_FALSE(mailbox.receive_unless([] { return true; }));
    }
    world.barrier(Stream::inline_()).wait();
    if (world.rank() == 0) {
      EXPECT_FALSE(mailbox.receive_unless([&] { return mailbox.has_sent(3); })) << "none comes before they have left";
      mailbox.send(other, {.request = 4});
      EXPECT_EQ(mailbox.receive_unless([] { return false; })->head.request, 5U);
      return mailbox.send_all();
    }
    for (const std::uint64_t request : {1, 2, 3, 4}) EXPECT_EQ(mailbox.receive().head.request, request);
    mailbox.send(other, {.request = 5});
    mailbox.send_all();
  });
}

}  // namespace
}  // namespace stretto
