#include "stretto/push_filters.hpp"

#include <gmock/gmock.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <random>

#include "server/filters/filter_chain.hpp"
#include "server/served_training.hpp"
#include "stretto/launch.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using testing::HasSubstr;

constexpr std::int64_t part_size_here = 100;

ServedTable dense_with(std::vector<FilterKind> filters) {
  return {.name = "t", .elements = part_size_here, .update = server_functions::sum(), .filters = std::move(filters)};
}
ServedTable sparse_with(std::vector<FilterKind> filters) {
  return {.name = "t", .update = server_functions::sum(), .width = 2, .filters = std::move(filters)};
}

Tensor values_drawn(std::int64_t count, unsigned seed) {
  std::mt19937 draw(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(draw);
  return Tensor::of(values);
}

KeyedRows rows_drawn(unsigned seed) {
  std::mt19937_64 draw(seed);
  KeyedRows rows;
  std::uint64_t key = 0;
  for (int i = 0; i < 30; ++i) rows.keys.push_back(key += 1 + draw() % 1000000);
  rows.rows = values_drawn(60, seed).reshaped({30, 2});
  return rows;
}

// The worker has pulled zeros before, if it has pulled.
Tensor through(const ServedTable& table, const Tensor& values, bool has_pulled = false) {
  FilterChain worker(table, values.size());
  if (has_pulled) worker.see_pulled({}, Tensor::zeros({values.size()}, DType::f32));
  const FilterChain server(table, values.size());
  return server.decoded(worker.encoded({{}, values})).rows;
}

TEST(PushFilters, ThatLeaveOutNothingAreThePlainRun) {
  const Tensor values = values_drawn(part_size_here, 1);
  EXPECT_THAT(through(dense_with({push_filters::significantly_modified(0)}), values), has_the_bits_of(values));
  EXPECT_THAT(through(dense_with({push_filters::random_skip(0)}), values), has_the_bits_of(values));
  EXPECT_THAT(through(dense_with({push_filters::kkt(1e9)}), values), has_the_bits_of(values)) << "nothing pulled";
  EXPECT_THAT(through(dense_with({push_filters::random_skip(0.5)}), values), testing::Not(has_the_bits_of(values)));
  const KeyedRows rows = rows_drawn(3);
  const ServedTable table = sparse_with({push_filters::random_skip(0), push_filters::significantly_modified(0)});
  FilterChain chain(table, 0);
  const KeyedRows found = chain.decoded(chain.encoded(rows));
  EXPECT_EQ(found.keys, rows.keys);
  EXPECT_THAT(found.rows, has_the_bits_of(rows.rows));
}

// The oracle of a chain of filters that leave out and round: each of them alone, one after the other.
TEST(PushFilters, AnyChainDecodesInReverse) {
  const auto kinds_of = [](unsigned which) {
    std::vector<FilterKind> filters;
    if ((which & 1) != 0) filters.push_back(push_filters::random_skip(0.3));
    if ((which & 2) != 0) filters.push_back(push_filters::significantly_modified(0.5));
    if ((which & 4) != 0) filters.push_back(push_filters::kkt(0.8));
    if ((which & 8) != 0) std::ranges::reverse(filters);
    if ((which & 16) != 0) filters.push_back(push_filters::fixed_point(3));
    return filters;
  };
  for (unsigned which = 0; which < 32; ++which) {
    const Tensor values = values_drawn(part_size_here, which);
    Tensor expected = values;
    for (const FilterKind& filter : kinds_of(which)) expected = through(dense_with({filter}), expected, true);
    const Tensor found = through(dense_with(kinds_of(which)), values, true);
    ASSERT_EQ(found.size(), values.size());
    // One after the other, zeros take part in the draws of those behind: only chains with one drawing filter first agree.
    if ((which & 1) == 0 || (which & 8) == 0) {
      for (std::int64_t i = 0; i < values.size(); ++i) EXPECT_NEAR(found.at(i), expected.at(i), 1e-6) << which << ", " << i;
    }
    if (which == 4) {
      EXPECT_THAT(found, testing::Not(has_the_bits_of(values))) << "kkt leaves out what it may";
    }
    const KeyedRows rows = rows_drawn(which);
    const ServedTable table = sparse_with(kinds_of(which));
    FilterChain worker(table, 0);
    worker.see_pulled(rows.keys, Tensor::zeros({30, 2}, DType::f32));
    const FilterChain server(table, 0);
    const KeyedRows kept = server.decoded(worker.encoded(rows));
    std::size_t at = 0;
    for (std::size_t i = 0; i < kept.keys.size(); ++i) {
      while (at < rows.keys.size() && rows.keys[at] != kept.keys[i]) ++at;
      ASSERT_LT(at, rows.keys.size()) << "a key that was not pushed";
      for (std::int64_t c = 0; c < 2; ++c) {
        EXPECT_NEAR(kept.rows.at(2 * static_cast<std::int64_t>(i) + c), rows.rows.at(2 * static_cast<std::int64_t>(at) + c),
                    1e-6);
      }
    }
  }
}

TEST(PushFilters, FixedPointIsRightInTheMean) {
  constexpr int draws = 10000;
  for (const int bytes : {1, 2, 3}) {
    const ServedTable table = dense_with({push_filters::fixed_point(bytes)});
    FilterChain chain(table, 3);
    const Tensor values = Tensor::of<float>({1.0F, 0.3F, -0.12345F});
    const double step = 1.0 / ((1 << (8 * bytes - 1)) - 1);
    double sums[3] = {};
    for (int i = 0; i < draws; ++i) {
      const Tensor found = chain.decoded(chain.encoded({{}, values})).rows;
      for (std::int64_t e = 0; e < 3; ++e) {
        ASSERT_LE(std::fabs(found.at(e) - values.at(e)), step + 1e-7);
        sums[e] += found.at(e);
      }
    }
    for (std::int64_t e = 0; e < 3; ++e) {
      EXPECT_NEAR(sums[e] / draws, values.at(e), 5 * 0.5 * step / std::sqrt(draws) + 1e-7) << bytes;
    }
    if (bytes == 1) {
      EXPECT_GT(std::fabs(std::floor(0.3 / step) * step - 0.3), 5 * 0.5 * step / std::sqrt(draws))
          << "the control: rounding down";
    }
  }
}

TEST(PushFilters, FixedPointCosts64BytesAPart) {
  for (const int bytes : {1, 2, 3}) {
    FilterChain chain(dense_with({push_filters::fixed_point(bytes)}), part_size_here);
    EXPECT_EQ(chain.encoded({{}, values_drawn(part_size_here, 1)}).size(), bytes * part_size_here + 64);
  }
}

// Filters of a user's own that break a rule: at the worker, before anything is sent.
struct BadFilter : PushFilter {
  explicit BadFilter(int fault) : fault_(fault) {}
  void encode(PushedMessage& message) override {
    message.all = false;
    message.keys = fault_ == 0 ? std::vector<std::uint64_t>{5, 4} : std::vector<std::uint64_t>{5, 1000};
    message.rows = Tensor::of<float>({1, 2});
    if (fault_ == 2) message.keys[1] = 6, message.notes.resize(2);
  }
  int fault_;
};

TEST(PushFilters, ThatBreakTheRulesAreNamedAtTheWorker) {
  const auto sentence = [](int fault, bool is_sparse) {
    const std::vector<FilterKind> filters{{"bad", [=](const FilteredPart&) { return std::make_unique<BadFilter>(fault); }}};
    return sentence_of(ErrorCode::invalid_argument, [&] {
      FilterChain chain(is_sparse ? sparse_with(filters) : dense_with(filters), is_sparse ? 0 : part_size_here);
      chain.encoded(is_sparse ? rows_drawn(1) : KeyedRows{{}, values_drawn(part_size_here, 1)});
    });
  };
  EXPECT_THAT(sentence(0, false), HasSubstr("2 keys of a push that do not ascend"));
  EXPECT_THAT(sentence(0, true), HasSubstr("2 keys of a push that do not ascend"));
  EXPECT_THAT(sentence(1, false), HasSubstr("element 1000 of a part of 100"));
  EXPECT_THAT(sentence(2, false), HasSubstr("1 filters have given a push 2 notes"));
}

TEST(PushFilters, RefuseKeysOutOfOrder) {
  const ServedTable table = sparse_with({push_filters::random_skip(0)});
  FilterChain chain(table, 0);
  const Tensor bytes = chain.encoded({{3, 7}, Tensor::of<float>({1, 2, 3, 4}).reshaped({2, 2})});
  EXPECT_EQ(chain.decoded(bytes).keys, (std::vector<std::uint64_t>{3, 7})) << "the control";
  bytes.data<std::uint8_t>()[FilterChain::keys_begin] = 9;
  EXPECT_THAT(sentence_of(ErrorCode::internal, [&] { chain.decoded(bytes); }), HasSubstr("2 keys that do not ascend"));
}

TEST(PushFilters, FixedPointKeepsWhatIsNotFinite) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const Tensor values = Tensor::of<float>({1.0F, -infinity, 0.25F});
  ServedTable table = dense_with({push_filters::fixed_point(1)});
  EXPECT_THAT(through(table, values), has_the_bits_of(values));
  EXPECT_THAT(through(table, Tensor::zeros({3}, DType::f32)), has_the_bits_of(Tensor::zeros({3}, DType::f32)));
}

// What rounding leaves out comes later: the sum of what arrives follows the sum of what is pushed.
TEST(PushFilters, ErrorFeedbackAddsUp) {
  constexpr int pushes = 200;
  for (const QuantizedFormat format : {QuantizedFormat::int8, QuantizedFormat::int4, QuantizedFormat::onebit}) {
    const ServedTable table = dense_with({push_filters::quantized(format)});
    FilterChain chain(table, part_size_here);
    const Tensor values = values_drawn(part_size_here, 5);
    const Tensor sum = Tensor::zeros({part_size_here}, DType::f32);
    for (int i = 0; i < pushes; ++i) kernels::add(sum, chain.decoded(chain.encoded({{}, values})).rows, sum);
    const Tensor once = through(table, values);
    double error = 0, error_without = 0;
    for (std::int64_t i = 0; i < part_size_here; ++i) {
      error += std::fabs(sum.at(i) / pushes - values.at(i));
      error_without += std::fabs(once.at(i) - values.at(i));
    }
    EXPECT_LT(error, error_without / 4) << name(format)
                                        << "; the control: without feedback every push has the first one's error";
  }
}

TEST(PushFilters, SmallChangesAreHeldBackAndAddUp) {
  const ServedTable table = dense_with({push_filters::significantly_modified(1)});
  FilterChain chain(table, 2);
  const Tensor values = Tensor::of<float>({0.375F, 2});
  for (const float expected : {0.0F, 0.0F, 1.125F, 0.0F}) {
    const Tensor found = chain.decoded(chain.encoded({{}, values})).rows;
    EXPECT_EQ(found.at(0), expected);
    EXPECT_EQ(found.at(1), 2);
  }
}

TEST(PushFilters, AChangeOfTheThresholdItselfIsNotHeldBack) {
  const ServedTable table = dense_with({push_filters::significantly_modified(1)});
  FilterChain chain(table, 3);
  const Tensor values = Tensor::of<float>({0.5F, 1, -1});
  for (const float expected : {0.0F, 1.0F, 0.0F, 1.0F}) {
    const Tensor found = chain.decoded(chain.encoded({{}, values})).rows;
    EXPECT_EQ(found.at(0), expected);
    EXPECT_EQ(found.at(1), 1);
    EXPECT_EQ(found.at(2), -1);
  }
}

TEST(PushFilters, KktLeavesOutWhatTheSoftThresholdWould) {
  const Tensor values = values_drawn(part_size_here, 8);
  const ServedTable all_out = dense_with({push_filters::kkt(100)});
  FilterChain chain(all_out, part_size_here);
  chain.see_pulled({}, Tensor::zeros({part_size_here}, DType::f32));
  const Tensor message = chain.encoded({{}, values});
  EXPECT_LT(message.size(), 100) << "nothing but heads";
  EXPECT_THAT(chain.decoded(message).rows, has_the_bits_of(Tensor::zeros({part_size_here}, DType::f32)));
  const ServedTable table = sparse_with({push_filters::kkt(1.5, 0.5)});
  FilterChain sparse(table, 0);
  sparse.see_pulled({3, 5, 9}, Tensor::of<float>({0, 0, 0, 0, 0, 1}).reshaped({3, 2}));
  const KeyedRows kept =
      sparse.decoded(sparse.encoded({{3, 5, 9, 11}, Tensor::of<float>({1, -1, 1.25F, 0, 0, 0, 0, 0}).reshaped({4, 2})}));
  EXPECT_EQ(kept.keys, (std::vector<std::uint64_t>{5, 9, 11})) << "5 is above 1, 9 is not 0, 11 is not known";
}

TEST(PushFilters, RandomSkipLeavesOutItsShare) {
  const Tensor ones({20000}, DType::f32);
  std::fill_n(ones.data<float>(), ones.size(), 1.0F);
  const Tensor found = through(dense_with({push_filters::random_skip(0.25)}), ones);
  double sum = 0;
  for (std::int64_t i = 0; i < found.size(); ++i) sum += found.at(i);
  EXPECT_NEAR(sum, 15000, 5 * std::sqrt(20000 * 0.25 * 0.75));
}

// Training through filters that leave out nothing has the bits of plain training; with lossy ones fewer bytes travel.
TEST(PushFilters, TrainThroughServers) {
  constexpr int worker_count_here = 2, steps = 8;
  const auto trained = [&](const std::vector<FilterKind>& filters, std::uint64_t& sent, bool loses = false) {
    Tensor result;
    std::atomic<std::uint64_t> bytes = 0;
    run_threads(worker_count_here + 2, [&](const Communicator& world) {
      int updates = 0;
      ServerFunction function = kinds[0].function(worker_count_here);
      function.update = [&updates, loses, rank = world.rank(), inner = function.update](const ServerUpdate& update) {
        if (loses && rank == 3 && ++updates == 10) throw std::runtime_error("the power is gone");
        inner(update);
      };
      ServerSet set(world,
                    {{.name = "weights", .elements = elements, .initial = initial, .update = function, .filters = filters}},
                    {.servers = 2, .part_elements = 300, .copies = 1});
      if (set.is_server()) {
        try {
          return set.serve();
        } catch (const std::runtime_error& error) {
          if (std::string(error.what()) != "the power is gone") throw;
          return set.ranks().job().abort("it is lost.");
        }
      }
      const Tensor weights({elements}, DType::f32);
      for (int step = 0; step < steps; ++step) {
        set.wait(set.pull(0, weights));
        set.wait(set.push(0, gradient_of(weights, world.rank(), step)));
      }
      set.wait(set.pull(0, weights));
      bytes += set.traffic().payload;
      if (world.rank() == 0) result = weights;
      set.leave();
      EXPECT_EQ(set.ranks().size(), worker_count_here + (loses ? 1 : 2));
    });
    sent = bytes;
    return result;
  };
  const Tensor expected = reference(kinds[0], worker_count_here, 0, steps);
  std::uint64_t plain = 0, few = 0;
  EXPECT_THAT(trained({}, plain), has_the_bits_of(expected));
  EXPECT_THAT(trained({push_filters::significantly_modified(0), push_filters::random_skip(0)}, few),
              has_the_bits_of(expected));
  const Tensor rounded = trained({push_filters::quantized(QuantizedFormat::int8)}, few);
  EXPECT_THAT(rounded, testing::Not(has_the_bits_of(expected)));
  EXPECT_LT(few, plain / 2);
  std::uint64_t again = 0;
  EXPECT_THAT(trained({push_filters::quantized(QuantizedFormat::int8)}, again, true), has_the_bits_of(rounded))
      << "pushes that are sent again after a loss are rounded once";
}

TEST(PushFilters, RefuseDamagedBytesInASentence) {
  std::mt19937 draw(4);
  for (const std::vector<FilterKind>& filters : {std::vector{push_filters::random_skip(0.4), push_filters::fixed_point(2)},
                                                 std::vector{push_filters::quantized(QuantizedFormat::int8)}}) {
    const ServedTable table = dense_with(filters);
    FilterChain chain(table, part_size_here);
    const Tensor bytes = chain.encoded({{}, values_drawn(part_size_here, 2)});
    int refused = 0;
    for (int i = 0; i < 2000; ++i) {
      const Tensor damaged =
          bytes.view(0, {static_cast<std::int64_t>(draw() % static_cast<unsigned>(bytes.size()))}).clone();
      for (unsigned b = 0; b < draw() % 4 && damaged.size() > 0; ++b) {
        damaged.data<std::uint8_t>()[draw() % static_cast<unsigned>(damaged.size())] = static_cast<std::uint8_t>(draw());
      }
      refused += sentence_of([&] { chain.decoded(damaged); }).empty() ? 0 : 1;
    }
    EXPECT_EQ(refused, 2000);
    EXPECT_EQ(sentence_of([&] { chain.decoded(bytes); }), "") << "the control: whole bytes";
  }
}

TEST(PushFilters, ThatTheOtherSideDoesNotHaveAreRefused) {
  const std::string sentence = sentence_of([] {
    run_threads(2, [](const Communicator& world) {
      const ServedTable with = dense_with({push_filters::fixed_point(2)}), without = dense_with({});
      const ServerSet set(world, {world.rank() == 0 ? with : without}, {});
    });
  });
  EXPECT_THAT(sentence, testing::AllOf(HasSubstr("filters [fixed_point(2)]"), HasSubstr("filters []")));
}

TEST(PushFilters, RefuseWhatCannotBe) {
  const auto sentence = [](const ServedTable& table) { return sentence_of([&] { check_filters(table); }); };
  EXPECT_THAT(sentence(dense_with({push_filters::fixed_point(1), push_filters::random_skip(0)})),
              HasSubstr("packs elements, which random_skip(0) behind it cannot read"));
  EXPECT_THAT(sentence(sparse_with({push_filters::quantized(QuantizedFormat::int4)})), HasSubstr("needs all elements"));
  EXPECT_THAT(sentence(dense_with({push_filters::random_skip(0), push_filters::quantized(QuantizedFormat::int4)})),
              HasSubstr("needs all elements"));
  ServedTable counts = dense_with({push_filters::random_skip(0)});
  counts.dtype = DType::i64;
  EXPECT_THAT(sentence(counts), HasSubstr("elements of i64; its filter random_skip(0) needs f32"));
  EXPECT_THAT(sentence_of([] { push_filters::fixed_point(4); }), HasSubstr("in 4 bytes"));
  EXPECT_THAT(sentence_of([] { push_filters::random_skip(2); }), HasSubstr("probability of 2"));
  EXPECT_THAT(sentence_of([] { push_filters::kkt(1, 2); }), HasSubstr("lambda 1 and delta 2"));
  EXPECT_THAT(sentence_of([] { push_filters::significantly_modified(-1); }), HasSubstr("threshold of -1"));
  EXPECT_THAT(sentence_of([] { push_filters::quantized(QuantizedFormat::none); }), HasSubstr("quantizes nothing"));
}

}  // namespace
}  // namespace stretto
