#include "server/filters/key_cache.hpp"

#include <gmock/gmock.h>

#include "stretto/launch.hpp"
#include "stretto/server.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using testing::HasSubstr;

Tensor message_of(const std::vector<std::uint64_t>& words) {
  return Tensor::of<std::uint64_t>(words).view(std::size_t{0}, {8 * std::ssize(words)}, DType::u8);
}

std::vector<std::uint64_t> words_of(const Tensor& message) {
  std::vector<std::uint64_t> words(message.bytes() / 8);
  message.copy_to_host(words.data());
  return words;
}

TEST(KeyCache, AListThatComesAgainIsEightBytes) {
  KeyCache sender, receiver;
  const Tensor first = message_of({77, 1, 2, 3, 88}), again = message_of({55, 1, 2, 3, 66, 44}),
               other = message_of({0, 1, 2, 4});
  EXPECT_FALSE(sender.shortened({0, 1}, first, 8, 3));
  receiver.note({0, 1}, first, 8, 3);
  const Tensor shorter = sender.shortened({0, 1}, again, 8, 3);
  ASSERT_TRUE(shorter);
  EXPECT_EQ(shorter.bytes(), again.bytes() - 16);
  EXPECT_EQ(words_of(receiver.restored({0, 1}, shorter, 8)), words_of(again));
  EXPECT_FALSE(sender.shortened({0, 2}, again, 8, 3)) << "another part";
  EXPECT_FALSE(sender.shortened({0, 1}, other, 8, 3));
  EXPECT_FALSE(sender.shortened({0, 1}, again, 8, 3)) << "no longer the last one";
  receiver.note({0, 1}, other, 8, 3);
  EXPECT_THAT(sentence_of(ErrorCode::internal,
                          [&] {
                            receiver.restored({0, 1}, shorter, 8);
                          }),
              HasSubstr("not the last ones"));
  EXPECT_THAT(sentence_of(ErrorCode::internal,
                          [&] {
                            receiver.restored({0, 1}, first.view(0, {7}), 0);
                          }),
              HasSubstr("no signature"));
}

// The same values with and without the cache, with and without a filter, also when servers are lost; and fewer bytes.
TEST(KeyCache, SavesTheKeysOfMessagesThatRepeatThem) {
  constexpr int steps = 10, rows = 100;
  const auto run = [&](bool key_cache, bool filtered, bool loses, std::uint64_t& sent) {
    std::vector<float> result(rows);
    run_threads(4, [&](const Communicator& world) {
      std::vector<FilterKind> filters;
      if (filtered) filters.push_back(push_filters::significantly_modified(0));
      int updates = 0;
      ServerFunction sum = server_functions::sum();
      sum.update = [&updates, loses, rank = world.rank(), inner = sum.update](const ServerUpdate& update) {
        if (loses && rank == 3 && ++updates == 30) throw std::runtime_error("the power is gone");
        inner(update);
      };
      ServerSet set(world, {{.name = "t", .update = sum, .width = 1, .key_cache = key_cache, .filters = std::move(filters)}},
                    {.servers = 2, .copies = 1});
      if (set.is_server()) {
        try {
          return set.serve();
        } catch (const std::runtime_error& error) {
          if (std::string(error.what()) != "the power is gone") throw;
          return set.ranks().job().abort("it is lost.");
        }
      }
      std::vector<std::uint64_t> keys;
      for (std::uint64_t key = 0; key < rows; ++key) keys.push_back(key * key * 1000003);
      const Tensor values({rows, 1}, DType::f32), gradient({rows, 1}, DType::f32);
      for (std::int64_t i = 0; i < rows; ++i) gradient.set(i, static_cast<double>(i + 1));
      for (int step = 0; step < steps; ++step) {
        set.wait(set.pull(0, keys, values));
        set.wait(set.push(0, keys, gradient));
      }
      set.wait(set.pull(0, keys, values));
      if (world.rank() == 0) {
        values.copy_to_host(result.data());
        sent = set.traffic().payload;
      }
      set.leave();
      EXPECT_EQ(set.ranks().size(), loses ? 3 : 4);
    });
    return result;
  };
  for (const bool filtered : {false, true}) {
    std::uint64_t whole = 0, saved = 0, with_loss = 0;
    const std::vector<float> expected = run(false, filtered, false, whole);
    EXPECT_EQ(expected[4], 2 * steps * 5);
    EXPECT_EQ(run(true, filtered, false, saved), expected);
    EXPECT_EQ(run(true, filtered, true, with_loss), expected);
    EXPECT_LE(saved + 2 * steps * rows * 4, whole) << "at least 4 bytes a key and message";
  }
}

TEST(KeyCache, DenseTablesHaveNone) {
  run_threads(2, [](const Communicator& world) {
    EXPECT_THAT(sentence_of([&] {
                  const ServerSet set(
                      world, {{.name = "t", .elements = 4, .update = server_functions::sum(), .key_cache = true}}, {});
                }),
                HasSubstr("has no keys to cache"));
  });
}

}  // namespace
}  // namespace stretto
