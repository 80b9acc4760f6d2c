// Parameters that are not trained: the others train as if the gradients of these were zero, whatever the layout.
#include <gmock/gmock.h>

#include "by_hand.hpp"
#include "stretto/planning/training_memory.hpp"
#include "support/tiers.hpp"

namespace parity {
namespace {

using IsFrozen = std::function<bool(const std::string& name)>;

bool has_word(const std::string& name, const char* word) { return name.find(word) != std::string::npos; }

const std::map<std::string, IsFrozen> frozen_sets = {
    {"weights", [](const std::string& name) { return has_word(name, ".c_") && has_word(name, "weight"); }},
    {"biases and norms", [](const std::string& name) { return has_word(name, "bias") || has_word(name, "ln_"); }},
    {"embeddings", [](const std::string& name) { return has_word(name, "wte") || has_word(name, "wpe"); }},
    {"some of a layer",
     [](const std::string& name) { return has_word(name, "c_fc.bias") || has_word(name, "ln_2.weight"); }},
    {"all but the first block", [](const std::string& name) { return !has_word(name, "h.0."); }}};

Fault frozen(const IsFrozen& is_frozen) {
  Fault fault;
  fault.in_records = [=](Parameters& parameters) {
    for (const auto& parameter : parameters.all()) parameter->trainable = !is_frozen(parameter->name);
  };
  return fault;
}

// Everything is trained, but gradients are set to zero, so that AdamW leaves the values alone.
Fault zeroed(const IsFrozen& is_frozen) {
  Fault fault;
  fault.in_records = [=](Parameters& parameters) {
    for (const auto& parameter : parameters.all()) parameter->decays = parameter->decays && !is_frozen(parameter->name);
  };
  fault.in_sums = [=](ShardedParameters& sharded) {
    for (const ShardedParameters::Range& range : sharded.ranges()) {
      if (is_frozen(sharded.parameters().all()[range.parameter]->name)) range.gradient.zero();
    }
  };
  return fault;
}

// What the first rank has trained, with the gradients of frozen parameters left out.
Trace first_trace(Layout layout, const TrainingOptions& options, const Fault& fault, const IsFrozen& is_frozen) {
  Trace first;
  run_threads(layout.ranks(), [&](const Communicator& world) {
    Trace trace = train_by_hand(world, layout, options, fault);
    if (world.rank() == 0) first = std::move(trace);
  });
  for (Pieces& gradients : first.gradients) std::erase_if(gradients, [&](const auto& its) { return is_frozen(its.first); });
  return first;
}

struct FrozenCase {
  Layout layout;
  const char* schedule = "1f1b";
  bool own_rows = false;
  Recompute recompute = Recompute::none;
};

bool have_same_bits(const Pieces& a, const Pieces& b) {
  return std::ranges::equal(
      a, b, [](const auto& x, const auto& y) { return x.first == y.first && x.second.values == y.second.values; });
}

TEST(FrozenParameters, LeaveTheOthersTheirBitsAtEveryStage) {
  // Sums in the order of the ranks do not depend on how units are cut.
  const Variable order("STRETTO_ALGO", "all_reduce:recursive_doubling;reduce_scatter:direct;all_gather:ring");
  for (const FrozenCase& each : of_today({FrozenCase{{.data = 2}},
                                          {{.data = 2}, "1f1b", false, Recompute::full},
                                          {{.data = 2, .tensor = 2}},
                                          {{.tensor = 2}, "1f1b", true, Recompute::selective},
                                          {{.data = 2, .pipeline = 2}, "zb-h1"},
                                          {{.tensor = 2, .pipeline = 2}, "zb-h1", true},
                                          {{.ring = 2}}})) {
    for (const ZeroStage zero : zero_stages) {
      for (const auto& [name, is_frozen] : frozen_sets) {
        TrainingOptions options = tiny(each.layout);
        options.sharding.zero = zero;
        options.sharding.measured_steps = 0;
        options.stages.schedule_name = each.schedule;
        options.divides_rows = each.own_rows;
        options.recompute.level = each.recompute;
        const Trace expected = first_trace(each.layout, options, zeroed(is_frozen), is_frozen);
        const Trace found = first_trace(each.layout, options, frozen(is_frozen), is_frozen);
        const std::string what = fmt::format("{}, {}x{}x{}, {}, ZeRO {}", name, each.layout.data, each.layout.tensor,
                                             each.layout.pipeline, each.schedule, static_cast<int>(zero));
        EXPECT_EQ(found.losses, expected.losses) << what;
        EXPECT_TRUE(have_same_bits(found.parameters, expected.parameters)) << what;
        ASSERT_EQ(found.gradients.size(), expected.gradients.size());
        for (std::size_t step = 0; step < found.gradients.size(); ++step) {
          EXPECT_TRUE(have_same_bits(found.gradients[step], expected.gradients[step])) << what << ", step " << step;
          EXPECT_NEAR(found.norms[step], expected.norms[step], 1e-12 * expected.norms[step]) << what;
        }
      }
    }
  }
}

// The controls: nothing is frozen, or a parameter less.
TEST(FrozenParameters, ControlsDiffer) {
  const Layout layout{.data = 2};
  const TrainingOptions options = tiny(layout);
  const IsFrozen& is_frozen = frozen_sets.at("weights");
  const IsFrozen all_but_one = [&](const std::string& name) { return is_frozen(name) && name != "h.1.mlp.c_proj.weight"; };
  const Trace expected = first_trace(layout, options, zeroed(is_frozen), is_frozen);
  for (const Fault& fault : {Fault(), frozen(all_but_one)}) {
    const Trace found = first_trace(layout, options, fault, is_frozen);
    EXPECT_NE(found.losses, expected.losses);
    EXPECT_FALSE(have_same_bits(found.parameters, expected.parameters));
    EXPECT_GT(found.norms[0], expected.norms[0] * (1 + 1e-9));
  }
}

// Nobody sums them, and their values are gathered at stage 3 alone, where units of their own may be gathered more often. The
// control: all are trained.
TEST(FrozenParameters, TravelOnlyWhereValuesAreDivided) {
  const Layout layout{.data = 2};
  for (const ZeroStage zero : zero_stages) {
    TrainingOptions options = tiny(layout, DType::f32);
    options.sharding.zero = zero;
    options.sharding.measured_steps = 0;
    std::int64_t planned = 0, summed = 0;
    const auto sent_in_two_steps = [&](Fault fault) {
      std::int64_t sent = 0;
      summed = 0;
      fault.in_sums = [&](ShardedParameters& sharded) {
        if (sharded.mesh().world().rank() != 0) return;
        const std::int64_t microbatches = options.global_batch / options.micro_batch / layout.data;
        planned = 2 * state_traffic(sharded.parameters(), layout.mesh(), sharded.options(), microbatches).at("dp");
      };
      run_threads(layout.ranks(), [&](const Communicator& world) {
        train_by_hand(world, layout, options, fault, 2);
        if (world.rank() != 0) return;
        for (const Record& record : world.job().ledger().records()) {
          const auto bytes = static_cast<std::int64_t>(record.bytes_sent);
          if (record.tag == "gradients") summed += bytes;
          if (record.tag == "gradients" || record.tag == "parameters") sent += bytes;
        }
      });
      return sent;
    };
    const std::int64_t of_all = sent_in_two_steps({});
    const std::int64_t planned_for_all = planned, summed_of_all = summed;
    const std::int64_t sent = sent_in_two_steps(frozen(frozen_sets.at("weights")));
    EXPECT_LT(summed, summed_of_all);
    EXPECT_LT(planned, planned_for_all);
    if (zero == ZeroStage::values) continue;  // where the plan is an estimate
    EXPECT_LT(sent, of_all);
    EXPECT_EQ(sent, planned) << static_cast<int>(zero);
  }
}

}  // namespace
}  // namespace parity
