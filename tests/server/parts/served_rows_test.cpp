#include "server/parts/served_rows.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <limits>
#include <map>
#include <random>

#include "server/parts/keyed_messages.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using Keys = std::vector<std::uint64_t>;

KeyedRows rows_of(const std::map<std::uint64_t, double>& values) {
  KeyedRows result;
  std::vector<double> elements;
  for (const auto& [key, value] : values) {
    result.keys.push_back(key);
    elements.insert(elements.end(), {value, -value});  // width 2
  }
  if (!elements.empty()) result.rows = Tensor::of<double>(elements).reshaped({std::ssize(result.keys), 2});
  return result;
}

ServedTable table_of(ServerFunction update) {
  return {.name = "rows", .dtype = DType::f64, .update = std::move(update), .width = 2};
}

std::map<std::uint64_t, double> pulled(ServedRows& rows, const Keys& keys) {
  rows.pull({.keys = keys});
  rows.apply_below(rows.end());
  const std::vector<ServedRows::Answer> answers = rows.answers();
  std::map<std::uint64_t, double> result;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    result[keys[i]] = answers.at(0).values.at(static_cast<std::int64_t>(2 * i));
    EXPECT_EQ(answers[0].values.at(static_cast<std::int64_t>(2 * i + 1)), -result[keys[i]]);
  }
  return result;
}

TEST(ServedRows, RandomPushesAreThoseOfAMap) {
  std::mt19937_64 draw(4);
  ServedRows rows(table_of(server_functions::sum()), 3, Consistency::sequential());
  std::map<std::uint64_t, double> expected;
  for (int clock = 0; clock < 50; ++clock) {
    for (int worker = 2; worker >= 0; --worker) {
      std::map<std::uint64_t, double> pushed;
      for (unsigned i = 0; i < draw() % 40; ++i) {
        const std::uint64_t key = draw() % 2 == 0 ? draw() % 100 : ~std::uint64_t{0} - draw() % 100;
        pushed[key] = static_cast<double>(draw() % 10);
      }
      for (const auto& [key, value] : pushed) expected[key] += value;
      rows.push(worker, clock, rows_of(pushed));
    }
  }
  Keys keys;
  for (const auto& [key, value] : expected) keys.push_back(key);
  EXPECT_EQ(pulled(rows, keys), expected);
  EXPECT_EQ(rows.keys(), expected.size());
}

TEST(ServedRows, AreMadeAtFirstTouchFromTheirKey) {
  ServedTable table = table_of(server_functions::sum());
  table.initial_row = [](const Tensor& row, std::uint64_t key) {
    row.set(0, static_cast<double>(key % 1000));
    row.set(1, -static_cast<double>(key % 1000));
  };
  ServedRows rows(table, 1, Consistency::sequential());
  EXPECT_EQ(pulled(rows, {7, 12}), (std::map<std::uint64_t, double>{{7, 7}, {12, 12}}));
  rows.push(0, 0, rows_of({{7, 1}, {5000000000003, 2}}));
  EXPECT_EQ(pulled(rows, {7, 5000000000003}), (std::map<std::uint64_t, double>{{7, 8}, {5000000000003, 5}}));
}

TEST(ServedRows, PullsWaitForAllWorkersPushes) {
  ServedRows rows(table_of(server_functions::sum()), 2, Consistency::sequential());
  rows.push(0, 0, rows_of({{1, 1}}));
  rows.pull({.worker = 0, .clock = 1, .keys = {1}});
  EXPECT_TRUE(rows.answers().empty());
  rows.push(1, 0, rows_of({}));
  rows.apply_below(rows.end());
  ASSERT_EQ(rows.answers().size(), 1U);
}

// ---- rows of any length

using RowsByKey = std::map<std::uint64_t, std::vector<double>>;

KeyedRows any_rows_of(const RowsByKey& values) {
  KeyedRows result;
  std::vector<double> elements;
  for (const auto& [key, row] : values) {
    result.keys.push_back(key);
    result.lengths.push_back(std::ssize(row));
    elements.insert(elements.end(), row.begin(), row.end());
  }
  if (!elements.empty()) result.rows = Tensor::of<double>(elements);
  return result;
}

ServedRows rows_of_any_length(int workers) {
  ServedTable table = table_of(server_functions::sum());
  table.width = ServedTable::any_length;
  table.initial_row = [](const Tensor& row, std::uint64_t key) { row.set(row.size() - 1, static_cast<double>(key % 7)); };
  return {table, workers, Consistency::sequential()};
}

// Also the keys' lengths, from 1 to 5.
std::vector<double> first_row(std::uint64_t key) {
  std::vector<double> row(1 + key % 5);
  row.back() = static_cast<double>(key % 7);
  return row;
}

RowsByKey pulled_of_any_length(ServedRows& rows, const RowsByKey& like) {
  const KeyedRows asked = any_rows_of(like);
  rows.pull({.keys = asked.keys, .lengths = asked.lengths});
  rows.apply_below(rows.end());
  const std::vector<ServedRows::Answer> answers = rows.answers();
  const std::vector<std::int64_t> begins = asked.begins();
  RowsByKey result;
  for (std::size_t i = 0; i < asked.keys.size(); ++i) {
    for (std::int64_t at = begins[i]; at < begins[i + 1]; ++at) result[asked.keys[i]].push_back(answers.at(0).values.at(at));
  }
  return result;
}

std::string refusal_of_pull(ServedRows& rows, const RowsByKey& like) {
  const KeyedRows asked = any_rows_of(like);
  rows.pull({.keys = asked.keys, .lengths = asked.lengths});
  rows.apply_below(rows.end());
  return rows.answers().at(0).refusal;
}

TEST(ServedRows, OfAnyLengthAreThoseOfAMap) {
  std::mt19937_64 draw(5);
  ServedRows rows = rows_of_any_length(3);
  RowsByKey expected;
  for (int clock = 0; clock < 30; ++clock) {
    for (int worker = 2; worker >= 0; --worker) {
      RowsByKey pushed;
      for (unsigned i = 0; i < draw() % 40; ++i) {
        const std::uint64_t key = draw() % 2 == 0 ? draw() % 100 : ~std::uint64_t{0} - draw() % 100;
        std::vector<double>& row = pushed[key];
        row.resize(1 + key % 5);
        for (double& element : row) element = static_cast<double>(draw() % 10);
      }
      for (const auto& [key, row] : pushed) {
        std::vector<double>& sum = expected.try_emplace(key, first_row(key)).first->second;
        for (std::size_t i = 0; i < row.size(); ++i) sum[i] += row[i];
      }
      rows.push(worker, clock, any_rows_of(pushed));
    }
  }
  EXPECT_EQ(pulled_of_any_length(rows, expected), expected);
  EXPECT_EQ(pulled_of_any_length(rows, {{5000000000003, {0, 0, 0, 0}}}),
            (RowsByKey{{5000000000003, first_row(5000000000003)}}));
  ServedRows copy = rows_of_any_length(3);
  EXPECT_NE(pulled_of_any_length(copy, expected), expected) << "the control: nothing was pushed to it";
  copy.load(rows.saved());
  EXPECT_EQ(pulled_of_any_length(copy, expected), expected);
}

TEST(ServedRows, KeepTheFirstLengthOfAKey) {
  ServedRows rows = rows_of_any_length(2);
  rows.push(0, 0, any_rows_of({{9, {1, 2, 3}}}));
  EXPECT_EQ(rows.push(1, 0, any_rows_of({{8, {1}}, {9, {1, 2}}})),
            "Worker 1 pushes or pulls key 9 of table rows with 2 elements, and it has 3: a key keeps its first length; "
            "give that one. Keys of the same part that are refused with it: 1.");
  EXPECT_EQ(rows.keys(), 1U) << "nothing of the push stays";
  EXPECT_EQ(rows.push(0, 1, any_rows_of({{9, {0, 0, 0}}})), "");
  EXPECT_EQ(rows.push(1, 1, any_rows_of({{9, {10, 20, 30}}})), "") << "the refused push counts";
  EXPECT_EQ(pulled_of_any_length(rows, {{9, {0, 0, 0}}}), (RowsByKey{{9, {11, 22, 35}}}));
  EXPECT_EQ(rows.version(), 2);
  const RowsByKey wrong{{8, {0, 0}}, {9, {0}}};
  EXPECT_THAT(refusal_of_pull(rows, wrong),
              testing::HasSubstr("Worker 0 pushes or pulls key 9 of table rows with 1 elements, and it has 3"));
  EXPECT_EQ(rows.keys(), 1U);
  ServedRows copy = rows_of_any_length(2);
  EXPECT_EQ(refusal_of_pull(copy, wrong), "") << "the control: it knows no lengths yet";
  copy.load(rows.saved());
  EXPECT_THAT(copy.push(0, 2, any_rows_of({{9, {1}}})), testing::HasSubstr("with 1 elements, and it has 3"));
}

TEST(ServedRows, RefuseLengthsWhoseSumNoMemoryHolds) {
  ServedRows rows = rows_of_any_length(1);
  rows.push(0, 0, any_rows_of({{9, {1, 2, 3}}}));
  constexpr std::int64_t most = std::int64_t{1} << 56, half = most / 2;
  for (const std::int64_t length : {most - 2, std::numeric_limits<std::int64_t>::max()}) {
    rows.pull({.keys = {4}, .lengths = {length}});
    EXPECT_EQ(rows.answers().at(0).refusal,
              fmt::format("Worker 0 pushes or pulls key 4 of table rows with {} elements, and no memory holds more than {} "
                          "besides the others of its part; give the length of its row.",
                          length, most - 3));
  }
  rows.pull({.keys = {4, 5}, .lengths = {half, half}});
  EXPECT_THAT(rows.answers().at(0).refusal, testing::HasSubstr("key 5 of table rows")) << "their sum";
  EXPECT_EQ(rows.keys(), 1U);
  EXPECT_EQ(refusal_of_pull(rows, {{4, {0, 0}}}), "") << "the control";
}

// It is what another server has said of them, or this one: what the part knows by now says nothing of it.
TEST(ServedRows, SayOfAPushThatComesAgainWhatWasSaid) {
  ServedRows rows = rows_of_any_length(1);
  EXPECT_EQ(rows.push(0, 0, any_rows_of({{9, {1, 2, 3}}})), "");
  EXPECT_NE(rows.push(0, 1, any_rows_of({{9, {1, 2}}})), "");
  ServedRows copy = rows_of_any_length(1);
  copy.append(rows.update(0));
  copy.append(rows.update(1));
  EXPECT_EQ(copy.push(0, 1, any_rows_of({{9, {1, 2}}})), "") << "the control: the copy has not heard of the refusal";
  copy.note_refusal(0, 1, "It is refused.");
  EXPECT_EQ(copy.push(0, 1, any_rows_of({{9, {1, 2}}})), "It is refused.");
  EXPECT_EQ(copy.push(0, 0, any_rows_of({{9, {1, 2, 3}}})), "");
  copy.note_refusal(0, 2, "It is refused, too.");
  EXPECT_EQ(copy.push(0, 2, any_rows_of({{8, {1}}})), "It is refused, too.") << "although no update has counted it";
  EXPECT_EQ(copy.clock(0), 3);
  EXPECT_EQ(copy.keys(), 1U) << "it counts as one without rows";
  copy.note_refusal(0, 2, {});
  EXPECT_TRUE(copy.refusals().contains({0, 1}));
  EXPECT_EQ(copy.refusals().size(), 1U);
  ServedRows next = rows_of_any_length(1);
  next.load(copy.saved());
  EXPECT_EQ(next.refusals(), copy.refusals());
  next.lose(0);
  EXPECT_TRUE(next.refusals().empty()) << "its pushes do not come again";
}

// A memory checker gives addresses for any length.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(ServedRows, RefuseLengthsThatFindNoMemory) {
  ServedRows rows = rows_of_any_length(1);
  rows.push(0, 0, any_rows_of({{9, {1, 2, 3}}}));
  constexpr std::int64_t much = std::int64_t{1} << 50;
  rows.apply_below(1);
  rows.pull({.keys = {4, 9}, .lengths = {much, 3}});
  EXPECT_THAT(rows.answers().at(0).refusal,
              testing::HasSubstr(fmt::format("Worker 0 pushes or pulls 2 keys of table rows, and their server has no memory "
                                             "for {} elements besides the 3 of their part: Cannot allocate",
                                             much)));
  EXPECT_EQ(rows.keys(), 1U);
  EXPECT_EQ(pulled_of_any_length(rows, {{9, {0, 0, 0}}}), (RowsByKey{{9, {1, 2, 5}}})) << "it serves on";
}

// A row is there, and room for it so many times is not: 16 TiB.
TEST(ServedRows, RefuseAnswersThatFindNoMemory) {
  constexpr std::int64_t length = std::int64_t{1} << 23;
  constexpr std::size_t times = std::size_t{1} << 18;
  for (const std::int64_t width : {length, ServedTable::any_length}) {
    ServedTable table = table_of(server_functions::sum());
    table.width = width;
    ServedRows rows(table, 1, Consistency::sequential());
    const std::vector<std::int64_t> lengths(width == length ? 0 : times, length);
    for (const bool is_new : {true, false}) {
      const std::vector<std::int64_t> one(lengths.begin(), lengths.begin() + (lengths.empty() ? 0 : 1));
      if (!is_new) {
        rows.pull({.keys = {4}, .lengths = one});
        EXPECT_EQ(rows.answers().at(0).values.size(), length) << "the control";
      }
      rows.pull({.keys = Keys(times, 4), .lengths = lengths});
      const ServedRows::Answer refused = rows.answers().at(0);
      EXPECT_THAT(refused.refusal, testing::HasSubstr("no memory for"));
      EXPECT_FALSE(refused.values);
      EXPECT_EQ(rows.keys(), is_new ? 0U : 1U);
    }
  }
}
#endif

// A copy holds updates that are not applied yet. When the server before it is lost, it takes pushes itself.
TEST(ServedRows, KeepTheLengthsOfUpdatesThatWait) {
  ServedRows rows = rows_of_any_length(2);
  rows.append({.pushes = 2, .pushed = any_rows_of({{9, {1, 2, 3}}})});
  EXPECT_THAT(rows.push(1, 1, any_rows_of({{9, {1}}})),
              testing::HasSubstr("Worker 1 pushes or pulls key 9 of table rows with 1 elements, and it has 3"));
  rows.apply_below(1);
  EXPECT_EQ(rows.version(), 1);
}

TEST(ServedRows, SumByKeyAddsInTheOrderOfLists) {
  const KeyedRows sum =
      sum_by_key({rows_of({{1, 1e16}, {3, 1}}), rows_of({{1, 1}}), rows_of({}), rows_of({{1, -1e16}, {2, 5}})});
  EXPECT_EQ(sum.keys, (Keys{1, 2, 3}));
  EXPECT_EQ(sum.rows.at(0), (1e16 + 1) - 1e16);
  EXPECT_EQ(sum.rows.at(2), 5);
  EXPECT_EQ(sum.rows.at(4), 1);
}

TEST(KeyedMessages, NameTheKeyOutOfOrder) {
  EXPECT_NO_THROW(check_keys({1, 2, ~std::uint64_t{0}}));
  EXPECT_THAT(sentence_of([] { check_keys({1, 5, 3}); }), testing::HasSubstr("Key 3 at place 2 does not ascend from key 5"));
  EXPECT_THAT(sentence_of([] { check_keys({4, 4}); }), testing::HasSubstr("Key 4 at place 1"));
}

}  // namespace
}  // namespace stretto
