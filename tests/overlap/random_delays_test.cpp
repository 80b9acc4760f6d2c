// Steps like those of training, with everything that overlaps at once: gradients in buckets on a background stream, gathers
// of parameters ahead on an urgent one, small sums over subgroups on a normal one. Every rank is late where chance has it,
// before operations and inside them, and calls the communicators in an order of its own. The same bits as one after the
// other without delays, and nobody waits forever.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "collectives/plan_run.hpp"
#include "stretto/overlap/gradient_buckets.hpp"
#include "stretto/overlap/prefetcher.hpp"
#include "stretto/stretto.hpp"
#include "variables.hpp"

namespace stretto {
namespace {

using Pass = Prefetcher::Pass;

#ifdef STRETTO_SANITIZE
constexpr int steps = 40;
#else
constexpr int steps = 200;
#endif
constexpr std::size_t layers = 5;
constexpr std::int64_t state_size = 48;  // of activations
constexpr std::int64_t share_size = 90;  // of a layer's parameters, by rank

struct How {
  bool overlap = true;
  int ahead = 1;
  bool forgets_sums = false;  // of forward
};

// One rank. Nothing that it computes depends on chance, only when and in what order it calls.
class Training {
 public:
  Training(const Communicator& world, const How& how)
      : how_(how),
        chance_(std::random_device{}()),
        rank_(world.rank()),
        ranks_(world.size()),
        gathers_(world.duplicate("parameters")),
        sums_{world.split(rank_ / 2, rank_, "neighbours"), world.split(rank_ % 2, rank_, "others")},
        normal_(how.overlap ? Stream("sums") : Stream::inline_()),
        state_({state_size}, DType::f32),
        gradients_({static_cast<std::int64_t>(layers) * share_size * ranks_}, DType::f32) {
    std::vector<Tensor> by_layer;  // as backward finishes them: the last layer's first
    for (std::size_t i = 0; i < layers; ++i) {
      by_layer.push_back(gradients_.view(static_cast<std::int64_t>(i) * share_size * ranks_, {share_size * ranks_}));
      shares_.push_back(Tensor({share_size}, DType::f32));
      for (std::int64_t e = 0; e < share_size; ++e) {
        shares_[i].set(e, static_cast<double>((e * 11 + rank_ * 5 + static_cast<int>(i)) % 31) / 31);
      }
      whole_.push_back(Tensor({share_size * ranks_}, DType::f32));
    }
    const Stream background = how.overlap ? Stream("gradients", Priority::background) : Stream::inline_();
    buckets_ = std::make_unique<GradientBuckets>(
        by_layer, world.duplicate("gradients"), background,
        GradientBuckets::Options{.bucket_bytes = by_layer[0].bytes() + 1, .overlap = how.overlap});
    std::vector<Prefetcher::Unit> units;
    for (std::size_t i = 0; i < layers; ++i) {
      units.push_back({[this, i](Pass, const Stream& stream) {
                         delay();
                         return gathers_.all_gather(shares_[i].raw(), whole_[i].raw(), share_size, DType::f32, stream);
                       },
                       [this, i] { whole_[i].zero(); }});
    }
    prefetcher_ = std::make_unique<Prefetcher>(std::move(units), std::vector<Prefetcher::Use>{},
                                               Stream("parameters", Priority::urgent),
                                               Prefetcher::Options{.ahead = how.ahead, .overlap = how.overlap});
  }

  void step(int number) {
    for (std::int64_t e = 0; e < state_size; ++e) {
      state_.set(e, static_cast<double>((e * 5 + rank_ * 3 + number) % 23) / 23);
    }
    prefetcher_->begin_step();
    for (std::size_t i = 0; i < layers; ++i) forward(i);
    for (std::size_t i = layers; i-- > 0;) backward(i);
    prefetcher_->end_step();
    delay();
    buckets_->finish();
    for (std::size_t i = 0; i < layers; ++i) {
      for (std::int64_t e = 0; e < share_size; ++e) {
        const double gradient = gradients_.at((place_of(i) * ranks_ + rank_) * share_size + e);
        shares_[i].set(e, shares_[i].at(e) * 0.875 + 0.01 * gradient / ranks_);
      }
    }
  }
  std::vector<Tensor> result() const {
    std::vector<Tensor> all{state_.clone()};
    for (const Tensor& share : shares_) all.push_back(share.clone());
    return all;
  }

 private:
  static std::int64_t place_of(std::size_t layer) { return static_cast<std::int64_t>(layers - 1 - layer); }

  void delay() {
    if (how_.overlap && chance_() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(chance_() % 200));
  }
  bool coin() { return how_.overlap && chance_() % 2 == 0; }

  // The state takes the layer's parameters in, and is summed over a subgroup, while the layer may already be given back.
  void forward(std::size_t layer) {
    prefetcher_->begin_use(layer, Pass::forward);
    mix(layer);
    const bool first = coin();
    if (first) prefetcher_->end_use(layer);
    const Work summed = sum_state(0);
    delay();
    if (!first) prefetcher_->end_use(layer);
    summed.wait();
    shrink();
  }

  // The layer's gradient is ready before or after the sum has begun.
  void backward(std::size_t layer) {
    prefetcher_->begin_use(layer, Pass::backward);
    mix(layer);
    const Tensor gradient = gradients_.view(place_of(layer) * share_size * ranks_, {share_size * ranks_});
    for (std::int64_t e = 0; e < gradient.size(); ++e) {
      gradient.set(e, state_.at((e * 7 + static_cast<std::int64_t>(layer)) % state_size) - 0.5 * whole_[layer].at(e));
    }
    const bool first = coin();
    if (first) buckets_->ready(static_cast<std::size_t>(place_of(layer)));
    const Work summed = sum_state(1);
    delay();
    if (!first) buckets_->ready(static_cast<std::size_t>(place_of(layer)));
    if (coin()) {
      prefetcher_->end_use(layer);
      summed.wait();
    } else {
      summed.wait();
      prefetcher_->end_use(layer);
    }
    shrink();
  }

  void mix(std::size_t layer) const {
    for (std::int64_t e = 0; e < state_size; ++e) {
      state_.set(e, 0.5 * state_.at(e) + whole_[layer].at((e * 13 + 5) % whole_[layer].size()));
    }
  }
  Work sum_state(std::size_t group) {
    delay();
    if (how_.forgets_sums && group == 0) return {};
    return sums_[group].all_reduce(state_, ReduceOp::sum, normal_);
  }
  void shrink() const {
    for (std::int64_t e = 0; e < state_size; ++e) state_.set(e, state_.at(e) / 3);
  }

  How how_;
  std::mt19937 chance_;
  int rank_, ranks_;
  Communicator gathers_;
  std::vector<Communicator> sums_;
  Stream normal_;
  Tensor state_, gradients_;
  std::vector<Tensor> shares_, whole_;
  std::unique_ptr<GradientBuckets> buckets_;
  std::unique_ptr<Prefetcher> prefetcher_;
};

std::vector<std::vector<Tensor>> trained(int ranks, int how_many, const How& how) {
  std::vector<std::vector<Tensor>> results(static_cast<std::size_t>(ranks));
  run_threads(ranks, [&](const Communicator& world) {
    Training training(world, how);
    for (int step = 0; step < how_many; ++step) training.step(step);
    results[world.rank()] = training.result();
  });
  return results;
}

bool same_bits(const std::vector<std::vector<Tensor>>& a, const std::vector<std::vector<Tensor>>& b) {
  for (std::size_t rank = 0; rank < a.size(); ++rank) {
    for (std::size_t i = 0; i < a[rank].size(); ++i) {
      if (std::memcmp(a[rank][i].raw(), b[rank][i].raw(), a[rank][i].bytes()) != 0) return false;
    }
  }
  return true;
}

// Holds up one round in sixteen, of any rank, for a moment.
void delay_some_rounds() {
  thread_local std::mt19937 engine(std::random_device{}());
  if (engine() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(engine() % 200));
}

struct Links {
  const char* name;
  const char* nodes;
  const char* links;
};

class RandomDelays : public testing::TestWithParam<Links> {
 protected:
  RandomDelays() : nodes_("STRETTO_RANKS_PER_NODE", GetParam().nodes), links_("STRETTO_LINKS", GetParam().links) {}
  ~RandomDelays() override { before_each_round = nullptr; }

 private:
  Variable nodes_, links_;
};
INSTANTIATE_TEST_SUITE_P(Everywhere, RandomDelays,
                         testing::Values(Links{"InOneHost", "0", ""}, Links{"OverLinks", "1", "inter=1GB/s,5us"}),
                         [](const auto& tested) { return tested.param.name; });

TEST_P(RandomDelays, ChangeNoBitAndBlockNobody) {
  for (const int ranks : {2, 3, 4}) {
    before_each_round = nullptr;
    const auto plain = trained(ranks, steps / 3, {.overlap = false});
    EXPECT_FALSE(same_bits(trained(ranks, steps / 3, {.overlap = false, .forgets_sums = true}), plain)) << "the control";
    before_each_round = delay_some_rounds;
    EXPECT_TRUE(same_bits(trained(ranks, steps / 3, {.ahead = ranks - 1}), plain)) << ranks << " ranks";
  }
}

}  // namespace
}  // namespace stretto
