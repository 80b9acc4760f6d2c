// Sparse tables whose keys have rows of any length, through messages, copies and servers that join.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "stretto/launch.hpp"
#include "stretto/server.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using Keys = std::vector<std::uint64_t>;
using testing::HasSubstr;

ServedTable lengthy_counts(ServerFunction update = server_functions::sum()) {
  return {.name = "counts", .dtype = DType::i64, .update = std::move(update), .width = ServedTable::any_length};
}

std::vector<std::int64_t> lengths_of(const Keys& keys) {
  std::vector<std::int64_t> lengths;
  for (const std::uint64_t key : keys) lengths.push_back(static_cast<std::int64_t>(1 + key % 6));
  return lengths;
}

Keys keys_of(int worker, int step) {
  std::mt19937_64 draw(static_cast<std::uint64_t>(worker * 1000 + step));
  std::set<std::uint64_t> keys;
  for (unsigned i = 0; i < draw() % 50; ++i) keys.insert(draw() % 3 == 0 ? draw() : draw() % 64);
  return {keys.begin(), keys.end()};
}

// Element i of a key's row, each time it is pushed.
std::int64_t pushed_element(std::uint64_t key, std::int64_t i) { return static_cast<std::int64_t>(key % 100) * 10 + i; }

Tensor rows_of(const Keys& keys) {
  std::vector<std::int64_t> elements;
  const std::vector<std::int64_t> lengths = lengths_of(keys);
  for (std::size_t k = 0; k < keys.size(); ++k) {
    for (std::int64_t i = 0; i < lengths[k]; ++i) elements.push_back(pushed_element(keys[k], i));
  }
  return Tensor::of<std::int64_t>(elements);
}

struct LengthsKilled {};

// The server of this rank dies in its n-th update.
ServerFunction lengths_deadly_sum(int rank, int dead, int update) {
  ServerFunction sum = server_functions::sum();
  const auto updates = std::make_shared<int>(0);
  sum.update = [=, inner = sum.update](const ServerUpdate& pushed) {
    inner(pushed);
    if (++*updates == update && rank == dead) throw LengthsKilled();
  };
  return sum;
}

// A spare that joins when workers have made so many pushes; they wait until it has parts, and then push more.
struct Joining {
  std::atomic<int> pushes = 0;
  std::atomic<const ServerSet*> spare = nullptr;
};

// Workers push what depends on the keys only; in the end each key has as many times that as it was pushed.
void push_lengths_through(const Communicator& world, ServerSet::Options options, int dead = -1, Joining* joining = nullptr) {
  constexpr int steps = 20, joins_after = 10;
  ServerSet set(world, {lengthy_counts(lengths_deadly_sum(world.rank(), dead, 15))}, options);
  const int workers = set.workers();
  if (set.is_server()) {
    try {
      if (joining == nullptr || world.rank() < world.size() - 1) return set.serve();
      while (joining->pushes < joins_after) std::this_thread::sleep_for(std::chrono::microseconds(100));
      set.join();
      joining->spare = &set;
      set.serve();
      EXPECT_THAT(set.state(), testing::Not(HasSubstr(": 0 parts"))) << "parts have moved";
      return;
    } catch (const LengthsKilled&) {
      return world.job().abort("it is killed.");
    }
  }
  for (int step = 0; step < steps; ++step) {
    const Keys keys = keys_of(world.rank(), step);
    set.wait(set.push(0, keys, rows_of(keys), lengths_of(keys)));
    if (joining == nullptr) continue;
    ++joining->pushes;
    const Tensor rows = rows_of(keys);
    const auto has_moved = [&] {
      const ServerSet* const spare = joining->spare;
      return spare != nullptr && spare->state().find(": 0 parts") == std::string::npos;
    };
    const double deadline = now_seconds() + 60;
    do set.wait(set.pull(0, keys, rows, lengths_of(keys)));
    while (step == joins_after && !has_moved() && now_seconds() < deadline);
  }
  std::map<std::uint64_t, std::int64_t> pushed;
  for (int worker = 0; worker < workers; ++worker) {
    for (int step = 0; step < steps; ++step) {
      for (const std::uint64_t key : keys_of(worker, step)) ++pushed[key];
    }
  }
  Keys all;
  std::vector<std::int64_t> expected;
  for (const auto& [key, times] : pushed) {
    all.push_back(key);
    for (std::int64_t i = 0; i < lengths_of({key}).front(); ++i) expected.push_back(times * pushed_element(key, i));
  }
  const Tensor found({std::ssize(expected)}, DType::i64);
  set.wait(set.pull(0, all, found, lengths_of(all)));  // at the clock behind all pushes
  EXPECT_EQ(std::vector<std::int64_t>(found.data<std::int64_t>(), found.data<std::int64_t>() + found.size()), expected);
  set.leave();
  EXPECT_EQ(set.ranks().size(), world.size() - (dead >= 0 ? 1 : 0));
}

TEST(KeyLengths, ArriveWithTheirKeys) {
  run_threads(5, [](const Communicator& world) { push_lengths_through(world, {.servers = 2}); });
}

TEST(KeyLengths, OutliveAServer) {
  for (int dead = 3; dead < 6; ++dead) {
    run_threads(6, [&](const Communicator& world) { push_lengths_through(world, {.servers = 3, .copies = 1}, dead); });
  }
}

TEST(KeyLengths, MoveToAServerThatJoins) {
  Joining joining;
  run_threads(5, [&](const Communicator& world) { push_lengths_through(world, {.servers = 3, .spares = 1}, -1, &joining); });
}

TEST(KeyLengths, AreMadeAtFirstTouch) {
  run_threads(2, [](const Communicator& world) {
    ServedTable table = lengthy_counts();
    table.initial_row = [](const Tensor& row, std::uint64_t key) { row.set(row.size() - 1, static_cast<double>(key)); };
    ServerSet set(world, {table}, {});
    if (set.is_server()) return set.serve();
    const Tensor found({4}, DType::i64);
    set.wait(set.pull(0, {5, 9}, found, {1, 3}));
    EXPECT_THAT(std::vector<std::int64_t>(found.data<std::int64_t>(), found.data<std::int64_t>() + 4),
                testing::ElementsAre(5, 0, 0, 9));
    set.leave();
  });
}

TEST(KeyLengths, AreRefusedWhereTheyDoNotFit) {
  run_threads(2, [](const Communicator& world) {
    const auto sentence = [&](const std::function<void(ServedTable&)>& change) {
      ServedTable table = lengthy_counts();
      change(table);
      return sentence_of([&] { const ServerSet set(world, {table}, {}); });
    };
    EXPECT_THAT(
        sentence([](ServedTable& table) { table.filters = {push_filters::random_skip(0.5)}; }),
        testing::ContainsRegex("Table counts has rows of any length, and its filter random_skip.* needs rows of equal"));
    EXPECT_THAT(sentence([](ServedTable& table) { table.key_cache = true; }), HasSubstr("a key cache needs rows of equal"));
    EXPECT_THAT(sentence([](ServedTable& table) { table.width = -2; }), HasSubstr("rows of -2"));
    ServedTable equal = lengthy_counts();
    equal.name = "equal";
    equal.width = 2;
    ServerSet set(world, {lengthy_counts(), equal}, {});
    if (set.is_server()) return set.serve();
    const Tensor four = Tensor::zeros({4}, DType::i64);
    EXPECT_THAT(sentence_of([&] { set.push(0, {3, 4}, four); }), HasSubstr("rows of any length, come with 0 lengths"));
    EXPECT_THAT(sentence_of([&] { set.push(1, {3, 4}, four, {2, 2}); }), HasSubstr("rows of 2, come with 2 lengths"));
    EXPECT_THAT(sentence_of([&] { set.push(0, {3, 4}, four, {4, 0}); }), HasSubstr("a length of 0"));
    EXPECT_THAT(sentence_of([&] {
                  set.pull(0, {3, 4}, four, {4, 1});
                }),
                HasSubstr("a length of 1, and the tensor 4 elements, 4 of which"));
    constexpr std::int64_t quarter = std::int64_t{1} << 62;  // of 2 to the 64, so that the sum would be 4
    EXPECT_THAT(sentence_of([&] {
                  set.push(0, {1, 2, 3, 4, 5}, four, {quarter, quarter, quarter, quarter, 4});
                }),
                HasSubstr("and the tensor 4 elements, 0 of which"));
    EXPECT_THAT(sentence_of([&] {
                  set.push(0, {3, 4}, four, {1, 2});
                }),
                HasSubstr("have 3 elements of i64, and the tensor 4"));
    set.leave();
  });
}

}  // namespace
}  // namespace stretto
