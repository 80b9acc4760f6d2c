// ZeRO-3 as a trainer runs it: parameters are prefetched on an urgent stream while a background stream sums gradients. The
// results have the same bits as without overlap.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "same_bits.hpp"
#include "stretto/kernels.hpp"
#include "stretto/layers/zero.hpp"
#include "stretto/overlap/prefetcher.hpp"
#include "stretto/stretto.hpp"
#include "variables.hpp"

namespace stretto {
namespace {

using Pass = Prefetcher::Pass;

constexpr int layers = 4;
constexpr std::int64_t rows = 6, width = 37;  // 37 x 37 elements: the last share of a unit is padded

Tensor filled(const Shape& shape, int seed, double scale) {
  Tensor result(shape, DType::f32);
  for (std::int64_t i = 0; i < result.size(); ++i) result.set(i, scale * std::sin(static_cast<double>(i * 7 + seed)));
  return result;
}

struct How {
  bool overlap = true;
  int ahead = 1;
  bool secondary = false;
  double learning_rate = 0.01;
};

// A few linear layers that learn a target: y = x W1 W2 ...
class Model {
 public:
  Model(const Communicator& world, const How& how)
      : how_(how),
        parameters_("parameters", Priority::urgent),
        gradients_(how.overlap ? Stream("gradients", Priority::background) : Stream::inline_()),
        input_(filled({rows, width}, world.rank(), 1)),
        target_(filled({rows, width}, world.rank() + 5, 1)) {
    const Communicator gathers = world.duplicate("parameters");
    ZeroUnit::Options options{.secondary = how.secondary};
    options.reduce_group = world.duplicate("gradients");
    for (int i = 0; i < layers; ++i) {
      units_.push_back(
          std::make_unique<ZeroUnit>(gathers, std::vector<Shape>{{width, width}}, DType::f32, DType::f32, options));
      units_.back()->adopt({filled({width, width}, 100 + i, 0.25)});
    }
    std::vector<Prefetcher::Unit> prefetched;
    for (const auto& unit : units_) {
      prefetched.push_back({[&unit = *unit](Pass pass, const Stream& stream) {
                              return pass == Pass::forward ? unit.gather_forward(stream) : unit.gather_backward(stream);
                            },
                            [&unit = *unit] { unit.release(); }});
    }
    prefetcher_ = std::make_unique<Prefetcher>(std::move(prefetched), std::vector<Prefetcher::Use>{}, parameters_,
                                               Prefetcher::Options{.ahead = how.ahead, .overlap = how.overlap});
  }

  void step() {
    prefetcher_->begin_step();
    std::vector<Tensor> x{input_};
    for (int i = 0; i < layers; ++i) {
      prefetcher_->begin_use(i, Pass::forward);
      x.emplace_back(Shape{rows, width}, DType::f32);
      kernels::gemm(x[i], kernels::Transpose::no, units_[i]->values()[0], kernels::Transpose::no, x[i + 1]);
      prefetcher_->end_use(i);
    }
    Tensor error(Shape{rows, width}, DType::f32);
    for (std::int64_t e = 0; e < error.size(); ++e) error.set(e, x.back().at(e) - target_.at(e));
    std::vector<Work> sums;
    for (int i = layers - 1; i >= 0; --i) {
      prefetcher_->begin_use(i, Pass::backward);
      kernels::gemm(x[i], kernels::Transpose::yes, error, kernels::Transpose::no, units_[i]->gradients()[0]);
      sums.push_back(units_[i]->reduce_scatter(gradients_));
      Tensor before(Shape{rows, width}, DType::f32);
      kernels::gemm(error, kernels::Transpose::no, units_[i]->values()[0], kernels::Transpose::yes, before);
      error = before;
      prefetcher_->end_use(i);
    }
    prefetcher_->end_step();
    for (const Work& sum : sums) sum.wait();
    for (const auto& unit : units_) {
      for (std::int64_t e = 0; e < unit->share().size(); ++e) {
        unit->share().set(e, unit->share().at(e) - how_.learning_rate * unit->gradient_share().at(e));
      }
    }
  }

  std::vector<Tensor> shares() const {
    std::vector<Tensor> result;
    for (const auto& unit : units_) result.push_back(unit->share().clone());
    return result;
  }

 private:
  How how_;
  Stream parameters_, gradients_;
  Tensor input_, target_;
  std::vector<std::unique_ptr<ZeroUnit>> units_;
  std::unique_ptr<Prefetcher> prefetcher_;
};

std::vector<Tensor> trained(const Communicator& world, const How& how) {
  Model model(world, how);
  for (int step = 0; step < 4; ++step) model.step();
  return model.shares();
}

void compare(const Communicator& world) {
  const std::vector<Tensor> plain = trained(world, {.overlap = false});
  for (const Tensor& share : plain) {
    for (std::int64_t e = 0; e < share.size(); ++e) ASSERT_TRUE(std::isfinite(share.at(e)));
  }
  for (const bool secondary : {false, true}) {
    for (const int ahead : {1, 2}) {
      EXPECT_TRUE(same_bits(trained(world, {.ahead = ahead, .secondary = secondary}), plain));
    }
    EXPECT_TRUE(same_bits(trained(world, {.overlap = false, .secondary = secondary}), plain));
  }
  EXPECT_FALSE(same_bits(trained(world, {.learning_rate = 0.02}), plain)) << "the control";
}

TEST(PrefetchedZero, ChangesNoBit) {
  for (const int ranks : {2, 3, 4}) run_threads(ranks, compare);
}

// The same over links between nodes, where urgent gathers overtake sums.
TEST(PrefetchedZero, ChangesNoBitBetweenNodes) {
  const Variable nodes("STRETTO_RANKS_PER_NODE", "2");
  const Variable links("STRETTO_LINKS", "inter=200MB/s,20us");
  run_threads(4, compare);
}

TEST(PrefetchedZero, SumsOverTheOtherCommunicator) {
  run_threads(2, [](const Communicator& world) {
    const std::uint64_t since = world.ledger().next_sequence();
    Model model(world, {});
    model.step();
    int gathers = 0;
    int sums = 0;
    for (const Record& record : world.ledger().records(since)) {
      const bool gathers_one = record.tag == "zero forward" && record.group == "parameters" && record.stream == "parameters";
      const bool sums_one = record.tag == "zero gradients" && record.group == "gradients" && record.stream == "gradients";
      gathers += gathers_one ? 1 : 0;
      sums += sums_one ? 1 : 0;
    }
    EXPECT_EQ(gathers, 2 * layers) << "the first step keeps nothing: it learns the order";
    EXPECT_EQ(sums, layers);
    const Communicator half = world.split(world.rank(), 0, "half");
    EXPECT_NE(sentence_of([&] {
                ZeroUnit::Options options;
                options.reduce_group = half;
                ZeroUnit(world, {{4}}, DType::f32, DType::f32, options);
              }).find("the same ranks"),
              std::string::npos);
  });
}

}  // namespace
}  // namespace stretto
