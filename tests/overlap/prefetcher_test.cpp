// Prefetched parameters: the order of the gathers, the number of live units, uses that wait for gathers, and refusals.
#include "stretto/overlap/prefetcher.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <limits>
#include <string>
#include <thread>

#include "stretto/stretto.hpp"
#include "variables.hpp"

namespace stretto {
namespace {

using Use = Prefetcher::Use;
using Pass = Prefetcher::Pass;
using testing::HasSubstr;

// Forward through all layers, and backward.
std::vector<Use> there_and_back(std::size_t layers) {
  std::vector<Use> order;
  for (std::size_t i = 0; i < layers; ++i) order.push_back({i, Pass::forward});
  for (std::size_t i = layers; i-- > 0;) order.push_back({i, Pass::backward});
  return order;
}

// Units that log their calls: g0 is a gather of unit 0 for forward, b0 one for backward, r0 a release.
struct UnitLog {
  std::vector<Prefetcher::Unit> units(std::size_t count) {
    std::vector<Prefetcher::Unit> result;
    for (std::size_t i = 0; i < count; ++i) {
      result.push_back({[this, i](Pass pass, const Stream& stream) {
                          text += (pass == Pass::forward ? " g" : " b") + std::to_string(i);
                          most_live = std::max(most_live, ++live);
                          return stream.enqueue([] {});
                        },
                        [this, i] {
                          text += " r" + std::to_string(i);
                          --live;
                        }});
    }
    return result;
  }
  std::string text;
  int live = 0, most_live = 0;
};

// The log of the second step, where u0 is the use of unit 0. Checks that no unit stays live and that most_live is kept.
std::string second_step(std::size_t layers, const std::vector<Use>& given, const Prefetcher::Options& options) {
  UnitLog journal;
  Prefetcher prefetcher(journal.units(layers), given, Stream("parameters", Priority::urgent), options);
  for (int step = 0; step < 2; ++step) {
    journal.text.clear();
    prefetcher.begin_step();
    for (const Use& use : there_and_back(layers)) {
      prefetcher.begin_use(use.unit, use.pass);
      journal.text += " u" + std::to_string(use.unit);
      EXPECT_EQ(prefetcher.live(), journal.live);
      prefetcher.end_use(use.unit);
    }
    prefetcher.end_step();
    EXPECT_EQ(journal.live, 0);
  }
  EXPECT_LE(journal.most_live, options.most_live == 0 ? options.ahead + 1 : options.most_live);
  EXPECT_EQ(prefetcher.order(), there_and_back(layers));
  return journal.text;
}

TEST(Prefetcher, GathersBeginAsManyUsesAhead) {
  const std::vector<Use> order = there_and_back(3);
  EXPECT_EQ(second_step(3, order, {.ahead = 1}), " g0 g1 u0 r0 g2 u1 r1 u2 b1 u2 r2 b0 u1 r1 u0 r0");
  EXPECT_EQ(second_step(3, order, {.ahead = 2}), " g0 g1 g2 u0 r0 u1 u2 b0 u2 r2 u1 r1 u0 r0");
  EXPECT_EQ(second_step(3, order, {.ahead = 9}), " g0 g1 g2 u0 u1 u2 u2 r2 u1 r1 u0 r0");
  EXPECT_EQ(second_step(3, order, {.ahead = 1, .overlap = false}), " g0 u0 r0 g1 u1 r1 g2 u2 u2 r2 b1 u1 r1 b0 u0 r0");
}

TEST(Prefetcher, HoldsNoMoreThanItMay) {
  const std::vector<Use> order = there_and_back(3);
  EXPECT_EQ(second_step(3, order, {.ahead = 2, .most_live = 1}), " g0 u0 r0 g1 u1 r1 g2 u2 u2 r2 b1 u1 r1 b0 u0 r0");
  EXPECT_EQ(second_step(3, order, {.ahead = 2, .most_live = 2}), " g0 g1 u0 r0 g2 u1 u2 u2 r2 b0 u1 r1 u0 r0");
  for (int ahead = 1; ahead < 8; ++ahead) {
    for (int most_live = 0; most_live < 8; ++most_live) {
      for (const bool overlap : {true, false}) second_step(6, there_and_back(6), {ahead, most_live, overlap});
    }
  }
}

TEST(Prefetcher, LearnsTheOrderOfTheFirstStep) {
  for (const int ahead : {1, 2, 5}) {
    const Prefetcher::Options options{.ahead = ahead};
    EXPECT_EQ(second_step(4, {}, options), second_step(4, there_and_back(4), options));
  }
}

TEST(Prefetcher, UsesMayBeNested) {
  UnitLog journal;
  const std::vector<Use> order{{0}, {1}, {2}, {1, Pass::backward}};  // the use of unit 0 encloses the others
  const auto run = [&](int most_live) {
    Prefetcher prefetcher(journal.units(3), order, Stream("parameters"), {.ahead = 1, .most_live = most_live});
    prefetcher.begin_step();
    prefetcher.begin_use(0);
    prefetcher.begin_use(1);
    prefetcher.end_use(1);
    prefetcher.begin_use(2);
    prefetcher.end_use(2);
    prefetcher.begin_use(1, Pass::backward);
    prefetcher.end_use(1);
    prefetcher.end_use(0);
    prefetcher.end_step();
  };
  run(3);
  EXPECT_EQ(journal.text, " g0 g1 g2 r2 r1 r0");
  journal.text.clear();
  run(2);
  EXPECT_EQ(journal.text, " g0 g1 r1 g2 r2 b1 r1 r0");
  EXPECT_THAT(sentence_of([&] { run(1); }), HasSubstr("Unit 1 cannot be gathered while 1 others are in use; most_live=1"));
}

// Promises hold the gathers until the test sets them.
TEST(Prefetcher, AUseWaitsForItsGatherAndNotForTheNext) {
  const Tensor values = Tensor::zeros({1}, DType::f32);
  std::promise<void> first;
  std::promise<void> second;
  const auto unit = [&](std::promise<void>& gate, double value) {
    return Prefetcher::Unit{[&, value](Pass, const Stream& stream) {
                              return stream.enqueue([&, value] {
                                gate.get_future().wait();
                                values.set(0, value);
                              });
                            },
                            [] {}};
  };
  Prefetcher prefetcher({unit(first, 1), unit(second, 2)}, {{0}, {1}}, Stream("parameters"), {});
  prefetcher.begin_step();
  EXPECT_EQ(values.at(0), 0) << "the control: who does not wait finds nothing";
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    first.set_value();
  });
  prefetcher.begin_use(0);
  EXPECT_EQ(values.at(0), 1);
  EXPECT_EQ(prefetcher.live(), 2);
  prefetcher.end_use(0);
  second.set_value();
  prefetcher.begin_use(1);
  EXPECT_EQ(values.at(0), 2);
  prefetcher.end_use(1);
  prefetcher.end_step();
  opener.join();
}

TEST(Prefetcher, WaitsForWhatIsUnderWayBeforeItGoes) {
  bool gathered = false;
  {
    Prefetcher prefetcher({{[&](Pass, const Stream& stream) {
                              return stream.enqueue([&] {
                                std::this_thread::sleep_for(std::chrono::milliseconds(5));
                                gathered = true;
                              });
                            },
                            [] {}}},
                          {{0}}, Stream("parameters"), {});
    prefetcher.begin_step();
  }
  EXPECT_TRUE(gathered);
}

// ---- Steps of a toy model whose layers are sharded over the ranks

// Each layer is a vector. A use folds it into the state and records a change of the share.
class Toy {
 public:
  Toy(const Communicator& group, int layers) : group_(group) {
    for (int i = 0; i < layers; ++i) {
      shares_.push_back(Tensor({share_size}, DType::f32));
      for (std::int64_t e = 0; e < share_size; ++e) {
        shares_.back().set(e, static_cast<double>((e * 7 + group.rank() * 3 + i) % 29) / 29);
      }
      whole_.push_back(Tensor({share_size * group.size()}, DType::f32));
      poison(whole_.back());
    }
  }
  std::vector<Prefetcher::Unit> units() {
    std::vector<Prefetcher::Unit> result;
    for (std::size_t i = 0; i < shares_.size(); ++i) {
      result.push_back({[this, i](Pass, const Stream& stream) {
                          return group_.all_gather(shares_[i].raw(), whole_[i].raw(), share_size, DType::f32, stream);
                        },
                        [this, i] { poison(whole_[i]); }});
    }
    return result;
  }
  void use(std::size_t layer) {
    for (std::int64_t e = 0; e < whole_[layer].size(); ++e) {
      state_ = 0.75F * state_ + static_cast<float>(whole_[layer].at(e));
    }
    changes_.resize(shares_.size());
    changes_[layer] = state_;
  }
  void optimize() {
    for (std::size_t i = 0; i < shares_.size(); ++i) {
      for (std::int64_t e = 0; e < share_size; ++e) shares_[i].set(e, shares_[i].at(e) * 0.5 + changes_[i] * 0.01);
    }
  }
  float state() const { return state_; }

 private:
  static constexpr std::int64_t share_size = 100;
  // Values read before their gather or after their release are NaN, and so is every result of them.
  static void poison(const Tensor& tensor) {
    for (std::int64_t e = 0; e < tensor.size(); ++e) tensor.set(e, std::numeric_limits<float>::quiet_NaN());
  }
  Communicator group_;
  std::vector<Tensor> shares_, whole_;
  std::vector<float> changes_;
  float state_ = 1;
};

// The state after three steps. releases_first: each use reads parameters that it has released.
float trained(const Communicator& world, const std::vector<Use>& order, const Prefetcher::Options& options,
              bool releases_first = false) {
  constexpr std::size_t layers = 5;
  Toy toy(world.duplicate("parameters"), layers);
  Prefetcher prefetcher(toy.units(), order, Stream("parameters", Priority::urgent), options);
  for (int step = 0; step < 3; ++step) {
    prefetcher.begin_step();
    for (const Use& use : there_and_back(layers)) {
      prefetcher.begin_use(use.unit, use.pass);
      if (releases_first) prefetcher.end_use(use.unit);
      toy.use(use.unit);
      if (!releases_first) prefetcher.end_use(use.unit);
    }
    prefetcher.end_step();
    toy.optimize();
  }
  return toy.state();
}

TEST(Prefetcher, ChangesNoBit) {
  for (const int ranks : {1, 2, 3}) {
    run_threads(ranks, [](const Communicator& world) {
      const std::vector<Use> order = there_and_back(5);
      const float plain = trained(world, order, {.overlap = false});
      EXPECT_EQ(plain, plain) << "a number";
      for (const int ahead : {1, 2, 4}) {
        for (const int most_live : {0, 1, 2, 5}) {
          EXPECT_EQ(trained(world, order, {.ahead = ahead, .most_live = most_live}), plain);
          EXPECT_EQ(trained(world, {}, {.ahead = ahead, .most_live = most_live}), plain) << "learned";
        }
      }
      const float wrong = trained(world, order, {}, true);
      EXPECT_NE(wrong, wrong) << "the control: what is released before its use is no number";
    });
  }
}

TEST(Prefetcher, RefusesWhatDoesNotFit) {
  UnitLog journal;
  const Stream stream("parameters");
  const auto make = [&](std::vector<Use> order, const Prefetcher::Options& options) {
    return std::make_unique<Prefetcher>(journal.units(2), std::move(order), stream, options);
  };
  EXPECT_THAT(sentence_of([&] { make({}, {.ahead = 0}); }), HasSubstr("prefetched 0 uses ahead"));
  EXPECT_THAT(sentence_of([&] { make({}, {.ahead = 1, .most_live = -1}); }), HasSubstr("At most -1 units"));
  EXPECT_THAT(sentence_of([&] { make({{0}, {2}}, {}); }), HasSubstr("names unit 2, but there are 2"));
  EXPECT_THAT(sentence_of([&] {
                Prefetcher({{nullptr, [] {}}}, {}, stream, {});
              }),
              HasSubstr("Unit 0 of 1 cannot be gathered"));

  const auto prefetcher = make({{0}, {1}}, {});
  EXPECT_THAT(sentence_of([&] { prefetcher->begin_use(0); }), HasSubstr("outside a step"));
  EXPECT_THAT(sentence_of([&] { prefetcher->end_step(); }), HasSubstr("not begun"));
  prefetcher->begin_step();
  EXPECT_THAT(sentence_of([&] { prefetcher->begin_step(); }), HasSubstr("begun already"));
  EXPECT_THAT(sentence_of([&] { prefetcher->begin_use(1); }),
              HasSubstr("Unit 1 is used for forward as number 0 of a step's 2 uses, where unit 0 for forward comes"));
  EXPECT_THAT(sentence_of([&] { prefetcher->begin_use(0, Pass::backward); }), HasSubstr("Unit 0 is used for backward"));
  EXPECT_THAT(sentence_of([&] { prefetcher->begin_use(7); }), HasSubstr("does not exist"));
  EXPECT_THAT(sentence_of([&] { prefetcher->end_use(0); }), HasSubstr("Unit 0 of 2 is not in use"));
  prefetcher->begin_use(0);  // the refusals have changed nothing
  EXPECT_THAT(sentence_of([&] { prefetcher->begin_use(0); }), HasSubstr("Unit 0 of 2 is in use already"));
  EXPECT_THAT(sentence_of([&] { prefetcher->end_step(); }), HasSubstr("Unit 0 is still in use"));
  prefetcher->end_use(0);
  EXPECT_THAT(sentence_of([&] { prefetcher->end_step(); }), HasSubstr("after 1 uses of units, but has 2"));
  prefetcher->begin_use(1);
  prefetcher->end_use(1);
  EXPECT_THAT(sentence_of([&] { prefetcher->begin_use(0); }), HasSubstr("after the last of the 2 uses"));
  prefetcher->end_step();
  prefetcher->begin_step();  // the next step may begin
}

}  // namespace
}  // namespace stretto
