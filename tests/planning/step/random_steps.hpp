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
#include "stretto/overlap/ring_pass.hpp"
#include "stretto/overlap/sharded_unit.hpp"
#include "stretto/overlap/unit_traffic.hpp"
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
                    {some_weight({5, 4}, group_.rank()), kernels::Transpose::yes}, y, Tensor(), group_, stream_,
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
    summed_ =
        start_gemm_all_reduce(drawn_from(state, {12, 4}), {some_weight({5, 4}, group_.rank()), kernels::Transpose::yes}, y_,
                              group_, stream_, {.chunks = 3});
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

// The parameters of some layers, a unit each, at a ZeRO stage.
class ShardedLayers {
 public:
  ShardedLayers(const Communicator& world, Chance& chance, const std::string& name, std::size_t layers,
                std::int64_t elements, ZeroStage stage, const UnitTraffic::Options& options)
      : chance_(chance), rank_(world.rank()) {
    const Communicator gathers = world.duplicate(name);
    const Communicator sums = world.duplicate(name + " gradients");
    std::vector<UnitStore*> units;
    for (std::size_t i = 0; i < layers; ++i) {
      units_.push_back(std::make_unique<ShardedUnit>(gathers, sums, std::vector<Shape>{{elements}}, DType::f32, DType::f32,
                                                     ShardedUnit::Options{.stage = stage}));
      const Tensor& share = units_[i]->share();
      for (std::int64_t e = 0; e < share.size(); ++e) {
        share.set(e, static_cast<double>((e * 11 + rank_ * 5 + static_cast<int>(i)) % 31));
      }
      if (units_[i]->has_values()) units_[i]->gather(Stream::inline_()).wait();
      units.push_back(units_[i].get());
    }
    traffic_ = std::make_unique<UnitTraffic>(std::move(units), chance.stream(name.c_str()),
                                             chance.stream((name + " gradients").c_str()), options);
  }

  void begin_step() { traffic_->begin_step(); }
  // The values, until end().
  const Tensor& begin(std::size_t layer, Pass pass) {
    chance_.delay();
    traffic_->begin_use(layer, pass);
    return units_[layer]->values()[0];
  }
  const Tensor& gradient(std::size_t layer) { return units_[layer]->gradients()[0]; }
  void end(std::size_t layer) { traffic_->end_use(layer); }
  // gathers: false leaves the other ranks' parameters stale.
  void finish_step(bool gathers = true) {
    traffic_->end_microbatch();
    chance_.delay();
    traffic_->finish_sums();
    for (const std::size_t layer : traffic_->forward_order()) {
      const Tensor& share = units_[layer]->share();
      for (std::int64_t e = 0; e < share.size(); ++e) {
        share.set(e, reduced(share.at(e) + units_[layer]->gradient_share().at(e)));
      }
      if (gathers) traffic_->updated(layer);
    }
  }
  std::vector<Tensor> result() const {
    std::vector<Tensor> all;
    for (const auto& unit : units_) all.push_back(unit->share().clone());
    return all;
  }

 private:
  Chance& chance_;
  int rank_;
  std::vector<std::unique_ptr<ShardedUnit>> units_;
  std::unique_ptr<UnitTraffic> traffic_;
};

}  // namespace stretto::random_steps
