#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "stretto/overlap/sharded_unit.hpp"
#include "stretto/overlap/unit_traffic.hpp"
#include "stretto/stretto.hpp"

namespace stretto {

struct ModelOptions {
  ZeroStage stage = ZeroStage::values;
  int prefetch = 1;
  bool overlap = true;
  int microbatches = 2;
  std::vector<bool> whole = {};  // UnitTraffic::set_whole, after the first step
  bool keep_through_step = false;
  std::vector<std::size_t> summed_last = {};
};

struct ModelUse {
  std::size_t unit;
  Pass pass;
  int inside = 0;  // so many of the following uses lie within this one
};

// Units of different sizes over all ranks. In every step each use in `order` checks the values if it reads them, and adds to
// the gradients if it adds any; then every owner adds the sum of the gradients to its values. All are integers, so sums are
// exact.
class IntegerModel {
 public:
  IntegerModel(const Communicator& world, const ModelOptions& how, std::vector<ModelUse> order, std::size_t units)
      : world_(world), how_(how), order_(std::move(order)), expected_(units) {
    const Communicator gathers = world.duplicate("gathers");
    for (std::size_t i = 0; i < units; ++i) {
      const auto rows = static_cast<std::int64_t>(i + 3);
      expected_[i].resize(static_cast<std::size_t>(rows * 5 + 1));
      for (std::size_t k = 0; k < expected_[i].size(); ++k) expected_[i][k] = static_cast<double>(100 * i + k);
      units_.push_back(std::make_unique<ShardedUnit>(gathers, world, std::vector<Shape>{{rows, 5}, {1}}, DType::f64,
                                                     DType::f64, ShardedUnit::Options{.stage = how.stage}));
      write_share(i);
    }
    std::vector<UnitStore*> pointers;
    for (const auto& unit : units_) pointers.push_back(unit.get());
    traffic_ =
        std::make_unique<UnitTraffic>(pointers, Stream("gathers", Priority::urgent), Stream("sums", Priority::background),
                                      UnitTraffic::Options{.prefetch = how.prefetch,
                                                           .overlap = how.overlap,
                                                           .keep_through_step = how.keep_through_step,
                                                           .summed_last = how.summed_last});
    // The first values travel like those of a step.
    for (std::size_t i = 0; i < units; ++i) {
      units_[i]->share_changed();
      if (units_[i]->has_values()) units_[i]->gather(Stream::inline_()).wait();
    }
  }

  // Learns the uses of a step before the first one, which then follows them.
  void learn() {
    const auto uses = [&] {
      for (int microbatch = 0; microbatch < how_.microbatches; ++microbatch) {
        for (const ModelUse& use : order_) {
          traffic_->begin_use(use.unit, use.pass);
          most_live_ = std::max(most_live_, traffic_->live());
          traffic_->end_use(use.unit);
        }
        traffic_->end_microbatch();
      }
    };
    const std::uint64_t before = world_.job().ledger().next_sequence();
    traffic_->learn(uses);
    EXPECT_EQ(world_.job().ledger().next_sequence(), before) << "nothing is sent";
    EXPECT_THROW(traffic_->learn(uses), Error);
  }

  void step() {
    traffic_->begin_step();
    std::vector<double> added(units_.size(), 0);
    for (int microbatch = 0; microbatch < how_.microbatches; ++microbatch) {
      for (std::size_t i = 0; i < order_.size();) i = use(i, microbatch);
      for (const ModelUse& use : order_) {
        if (adds_gradients(use.pass)) added[use.unit] += world_.size() * (microbatch + 1);
      }
      traffic_->end_microbatch();
    }
    traffic_->finish_sums();
    for (const std::size_t unit : traffic_->forward_order()) {
      for (double& each : expected_[unit]) each += added[unit];
      update(unit);
      traffic_->updated(unit);
    }
    if (!how_.whole.empty() && steps_++ == 0) traffic_->set_whole(how_.whole);
  }

  void use(const ModelUse& use, int microbatch, const std::function<void()>& inside = nullptr) {
    traffic_->begin_use(use.unit, use.pass);
    most_live_ = std::max(most_live_, traffic_->live());
    if (!reads_values(use.pass)) most_live_unread_ = std::max(most_live_unread_, traffic_->live());
    if (inside) inside();
    if (reads_values(use.pass)) check(use.unit);
    if (adds_gradients(use.pass)) {
      for (const Tensor& gradient : units_[use.unit]->gradients()) {
        for (std::int64_t i = 0; i < gradient.size(); ++i) gradient.set(i, gradient.at(i) + microbatch + 1);
      }
    }
    traffic_->end_use(use.unit);
  }

  UnitTraffic& traffic() { return *traffic_; }
  const ShardedUnit& unit(std::size_t i) const { return *units_[i]; }
  std::vector<Tensor> shares() const {
    std::vector<Tensor> all;
    for (const auto& unit : units_) all.push_back(unit->share().clone());
    return all;
  }
  int most_live() const { return most_live_; }
  int most_live_unread() const { return most_live_unread_; }  // in uses that read no values
  const std::string& fault() const { return fault_; }
  void spoil() { expected_[0][0] += 1; }

 private:
  // Returns the number of the next use that does not lie within this one.
  std::size_t use(std::size_t i, int microbatch) {
    const ModelUse& outer = order_[i++];
    use(outer, microbatch, [&] {
      for (int n = 0; n < outer.inside && i < order_.size(); ++n) i = use(i, microbatch);
    });
    return i;
  }
  void check(std::size_t unit) {
    std::size_t k = 0;
    for (const Tensor& value : units_[unit]->values()) {
      for (std::int64_t i = 0; i < value.size(); ++i, ++k) {
        if (fault_.empty() && value.at(i) != expected_[unit][k]) {
          fault_ = "unit " + std::to_string(unit) + "[" + std::to_string(k) + "] is " + std::to_string(value.at(i)) +
                   " instead of " + std::to_string(expected_[unit][k]);
        }
      }
    }
  }
  void write_share(std::size_t unit) {
    const Tensor& share = units_[unit]->share();
    const std::int64_t begin = world_.rank() * share.size();
    for (std::int64_t i = 0; i < share.size() && begin + i < units_[unit]->elements(); ++i) {
      share.set(i, expected_[unit][static_cast<std::size_t>(begin + i)]);
    }
  }
  void update(std::size_t unit) {
    ShardedUnit& of = *units_[unit];
    if (!traffic_->is_whole(unit)) {
      for (std::int64_t i = 0; i < of.share().size(); ++i) of.share().set(i, of.share().at(i) + of.gradient_share().at(i));
      return;
    }
    for (std::size_t t = 0; t < of.values().size(); ++t) {
      const Tensor& value = of.values()[t];
      for (std::int64_t i = 0; i < value.size(); ++i) value.set(i, value.at(i) + of.gradients()[t].at(i));
    }
  }

  Communicator world_;
  ModelOptions how_;
  std::vector<ModelUse> order_;
  std::vector<std::vector<double>> expected_;  // values, by unit
  std::vector<std::unique_ptr<ShardedUnit>> units_;
  std::unique_ptr<UnitTraffic> traffic_;
  int steps_ = 0;
  int most_live_ = 0, most_live_unread_ = 0;
  std::string fault_;
};

// A network with a tied layer: unit 0 is the first and the last that forward uses.
inline std::vector<ModelUse> network(std::size_t units) {
  std::vector<ModelUse> order;
  for (std::size_t i = 0; i < units; ++i) order.push_back({i, Pass::forward});
  order.push_back({0, Pass::forward});
  order.push_back({0, Pass::backward});
  for (std::size_t i = units; i-- > 0;) order.push_back({i, Pass::backward});
  return order;
}

// The same with a backward in halves: the gradients of all inputs, and then those of the weights.
inline std::vector<ModelUse> network_in_halves(std::size_t units) {
  std::vector<ModelUse> order, weights;
  for (const ModelUse& use : network(units)) {
    if (use.pass == Pass::forward) {
      order.push_back(use);
    } else {
      order.push_back({use.unit, Pass::backward_input});
      weights.push_back({use.unit, Pass::backward_weight});
    }
  }
  order.insert(order.end(), weights.begin(), weights.end());
  return order;
}

}  // namespace stretto
