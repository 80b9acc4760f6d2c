#pragma once
// The workloads that run beside the layers in the steps of random_delays_test.cpp, each on its own communicators and
// streams. All values are small integers, so every sum is exact in any order and any grouping.
#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "stretto/overlap/all_to_all.hpp"
#include "stretto/overlap/chunked_gemm.hpp"
#include "stretto/overlap/postponed_gather.hpp"
#include "stretto/overlap/ring_pass.hpp"
#include "stretto/stretto.hpp"

namespace stretto::random_steps {

inline double reduced(double value) { return static_cast<double>(static_cast<std::int64_t>(value) % 61); }

// The random decisions of a rank: the times of its calls and the priorities of its streams. Without overlap there are none.
class Chance {
 public:
  Chance(unsigned seed, int rank, bool overlap)
      : engine_(seed * 64 + static_cast<unsigned>(rank)), shared_(seed), overlap_(overlap) {}

  void delay() {
    if (overlap_ && engine_() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(engine_() % 200));
  }
  bool coin() { return overlap_ && engine_() % 2 == 0; }
  Stream stream(const char* name) {
    return overlap_ ? Stream(name, static_cast<Priority>(engine_() % 3)) : Stream::inline_();
  }
  // Gives the same on all ranks.
  bool common_coin() { return overlap_ && shared_() % 2 == 0; }

 private:
  std::mt19937 engine_, shared_;
  bool overlap_;
};

// A tensor filled with the elements of the state, repeated.
inline Tensor drawn_from(const Tensor& state, Shape shape) {
  Tensor result(std::move(shape), state.dtype());
  for (std::int64_t e = 0; e < result.size(); ++e) result.set(e, state.at(e % state.size()));
  return result;
}
inline Tensor some_weight(Shape shape, int rank) {
  Tensor result(std::move(shape), DType::f32);
  for (std::int64_t e = 0; e < result.size(); ++e) result.set(e, static_cast<double>((e * 3 + rank) % 5));
  return result;
}
// Mixes every element of `what` into the state.
inline void absorb(const Tensor& state, const Tensor& what) {
  for (std::int64_t e = 0; e < what.size(); ++e) {
    const std::int64_t at = e % state.size();
    state.set(at, reduced(state.at(at) + static_cast<double>(e % 3 + 1) * what.at(e)));
  }
}

// Reads the state, communicates while it computes, and returns its result. All ranks run workloads in the same order.
class Workload {
 public:
  virtual ~Workload() = default;
  virtual Tensor run(const Tensor& state, Chance& chance) = 0;
};

// Each rank's block goes round the ring, and the sum of all ranks' contributions to it follows.
class Ring : public Workload {
 public:
  Ring(const Communicator& world, Chance& chance)
      : blocks_(world.duplicate("blocks")),
        sums_(world.duplicate("block sums")),
        block_stream_(chance.stream("blocks")),
        sum_stream_(chance.stream("block sums")) {}

  Tensor run(const Tensor& state, Chance& chance) override {
    RingPass blocks({state}, blocks_, block_stream_);
    RingSum sums({state}, sums_, sum_stream_);
    const auto contribute = [&](const Tensor& block, int source, const Tensor& to) {
      chance.delay();
      for (std::int64_t e = 0; e < state.size(); ++e) to.set(e, block.at(e) * (blocks_.rank() + 1) + state.at(e) + source);
    };
    const bool own_first = chance.coin();
    if (own_first) contribute(state, blocks_.rank(), sums.own()[0]);
    while (blocks.rotate()) {
      contribute(blocks.current()[0], blocks.source(), sums.contribution()[0]);
      sums.pass();
    }
    if (!own_first) contribute(state, blocks_.rank(), sums.own()[0]);
    return sums.finish()[0].clone();
  }

 private:
  Communicator blocks_, sums_;
  Stream block_stream_, sum_stream_;
};

// Rows from each rank to each other; their number depends on the pair.
class RowExchange : public Workload {
 public:
  RowExchange(const Communicator& world, Chance& chance) : group_(world.duplicate("rows")), stream_(chance.stream("rows")) {}

  Tensor run(const Tensor& state, Chance& chance) override {
    std::vector<std::int64_t> send, receive, first;
    std::int64_t sent = 0, received = 0;
    for (int r = 0; r < group_.size(); ++r) {
      send.push_back((group_.rank() + 2 * r) % 4 + 1);
      receive.push_back((r + 2 * group_.rank()) % 4 + 1);
      first.push_back(received);
      sent += send.back();
      received += receive.back();
    }
    const Tensor output({received, width}, DType::f32);
    const Tensor result = Tensor::zeros({received, width}, DType::f32);
    const auto compute = [&](const BlockRows& block) {
      chance.delay();
      const std::int64_t at = (first[static_cast<std::size_t>(block.rank)] + block.first) * width;
      for (std::int64_t e = 0; e < block.rows.size(); ++e) result.set(at + e, reduced(3 * block.rows.at(e) + block.rank));
    };
    all_to_all_then(drawn_from(state, {sent, width}), send, output, receive, compute, group_, stream_, {.chunks = 2});
    return result;
  }

 private:
  static constexpr std::int64_t width = 5;
  Communicator group_;
  Stream stream_;
};

// Rows of all ranks times a weight, chunk by chunk as they arrive.
class GatheredProduct : public Workload {
 public:
  GatheredProduct(const Communicator& world, Chance& chance)
      : group_(world.duplicate("gathered product")), stream_(chance.stream("gathered product")) {}

  Tensor run(const Tensor& state, Chance& chance) override {
    std::vector<std::int64_t> rows;
    std::int64_t all = 0;
    for (int r = 0; r < group_.size(); ++r) all += rows.emplace_back(3 + r);
    const Tensor y({all, 5}, DType::f32);
    chance.delay();
    all_gather_gemm(drawn_from(state, {rows[static_cast<std::size_t>(group_.rank())], 4}), rows,
                    some_weight({5, 4}, group_.rank()), kernels::Transpose::yes, y, Tensor(), group_, stream_,
                    {.chunks = 3});
    return y;
  }

 private:
  Communicator group_;
  Stream stream_;
};

// A product summed over all ranks. Its sum starts in forward and is waited for before backward.
class SummedProduct {
 public:
  SummedProduct(const Communicator& world, Chance& chance)
      : group_(world.duplicate("summed product")), stream_(chance.stream("summed product")), y_({12, 5}, DType::f32) {}

  void start(const Tensor& state) {
    summed_ = start_gemm_all_reduce(drawn_from(state, {12, 4}), some_weight({5, 4}, group_.rank()), kernels::Transpose::yes,
                                    y_, group_, stream_, {.chunks = 3});
  }
  const Tensor& wait() {
    summed_.wait();
    return y_;
  }

 private:
  Communicator group_;
  Stream stream_;
  Tensor y_;
  Work summed_;
};

// Replicated parameters whose gradients are summed as reduce-scatter and all-gather. Every few steps a new random set of
// buckets is postponed: their parameters are gathered during the next forward instead of their gradients.
class PostponedParameters {
 public:
  PostponedParameters(const Communicator& world, Chance& chance, std::size_t layers, bool overlap)
      : gradients_(one_behind_the_other(layers)),
        values_(one_behind_the_other(layers)),
        buckets_(gradients_, world.duplicate("postponed"), chance.stream("postponed"),
                 {.bucket_bytes = 2 * 4 * size, .first_bucket_bytes = 4 * size, .overlap = overlap, .scatter = true}) {}

  // The parameters of layer i, counted in the order of backward.
  const Tensor& value(std::size_t i) {
    if (gather_ != nullptr) gather_->wait_for(i);
    return values_[i];
  }
  void draw(Chance& chance) {  // between forward and backward; all values have been waited for
    if (!buckets_.knows_order()) return;
    std::vector<bool> flags(buckets_.bucket_count());
    for (std::size_t b = 0; b < flags.size(); ++b) flags[b] = chance.common_coin();
    buckets_.set_postponed(flags);
    gather_ = std::make_unique<PostponedGather>(buckets_, values_, "postponed parameters");
  }
  void ready(std::size_t i, const Tensor& state) {
    for (std::int64_t e = 0; e < size; ++e)
      gradients_[i].set(e, state.at((e + static_cast<std::int64_t>(i)) % state.size()));
    buckets_.ready(i);
  }
  // gathers: false leaves the postponed parameters stale.
  void update(Chance& chance, bool gathers) {
    buckets_.finish();
    update(buckets_.complete());
    chance.delay();
    if (gather_ != nullptr && gathers) gather_->start([this](const std::vector<ElementRange>& share) { update(share); });
  }
  std::vector<Tensor> result() {
    if (gather_ != nullptr) gather_->wait();
    std::vector<Tensor> all;
    for (const Tensor& value : values_) all.push_back(value.clone());
    return all;
  }

 private:
  static constexpr std::int64_t size = 70;

  static std::vector<Tensor> one_behind_the_other(std::size_t layers) {
    const Tensor memory = Tensor::zeros({static_cast<std::int64_t>(layers) * size}, DType::f32);
    std::vector<Tensor> result;
    for (std::size_t i = 0; i < layers; ++i) result.push_back(memory.view(static_cast<std::int64_t>(i) * size, {size}));
    return result;
  }
  void update(const std::vector<ElementRange>& ranges) const {
    for (const ElementRange& range : ranges) {
      for (std::int64_t e = range.first; e < range.first + range.count; ++e) {
        values_[range.tensor].set(e, reduced(values_[range.tensor].at(e) + gradients_[range.tensor].at(e)));
      }
    }
  }

  std::vector<Tensor> gradients_, values_;
  GradientBuckets buckets_;
  std::unique_ptr<PostponedGather> gather_;
};

}  // namespace stretto::random_steps
