// What a layer says that it costs, beside what it does: the bytes that a block holds, the operations of its products, and
// the bytes that it sends, forward and backward.
#include "stretto/layers/layer_cost.hpp"

#include <gtest/gtest.h>

#include "device/kernels/kernel_data.hpp"
#include "device/stream/kernel_scope.hpp"
#include "layers/allocated.hpp"
#include "stretto/layers/transformer.hpp"
#include "stretto/stretto.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

constexpr std::int64_t sequences = 2, length = 8, rows = sequences * length;

struct Costs {
  double forward = 0, backward = 0;  // operations of products
  std::int64_t kept = 0, sent = 0;   // bytes
  bool operator==(const Costs&) const = default;
};

struct Case {
  int ranks = 1;
  bool divides_rows = false, keeps_gathered = false;
  Recompute level = Recompute::none;
  AdapterSet adapters = {};
};

DecoderShape shape() { return {.layers = 1, .hidden = 24, .heads = 4, .kv_heads = 2, .head_size = 5, .mlp_width = 44}; }

Costs said(const LayerCost& cost, int ranks) {
  Costs result{cost.forward.operations(), cost.input.operations() + cost.weight.operations() + cost.again.operations(),
               cost.kept, 0};
  for (const PassCost* pass : {&cost.forward, &cost.input, &cost.weight, &cost.again}) {
    for (const Exchange& each : pass->exchanges) {
      result.sent += each.bytes() * (each.kind == Collective::all_reduce ? 2 : 1) * (ranks - 1) / ranks;
    }
  }
  return result;
}

// What the first rank's block does, and what it said before.
std::pair<Costs, LayerCost> measured(const Case& its) {
  const Variable ring("STRETTO_ALGO", "all_reduce:ring;reduce_scatter:ring;all_gather:ring");
  Costs result;
  LayerCost cost;
  run_threads(its.ranks, [&](const Communicator& world) {
    const TensorParallel tensor_parallel{
        .group = world, .stream = Stream::inline_(), .divides_rows = its.divides_rows, .keeps_gathered = its.keeps_gathered};
    Parameters parameters;
    const TransformerBlock block(parameters, "", shape(), tensor_parallel, {.level = its.level},
                                 std::make_shared<LocalAttention>(), nullptr, its.adapters);
    allocate(parameters, DType::f32);
    initialise(parameters, 1);
    KernelNotes notes;
    kernel_notes = &notes;
    const auto operations = [&] {
      double sum = 0;
      for (const KernelSpan& span : std::exchange(notes.spans, {})) sum += span.operations;
      return sum;
    };
    ParameterUse use;
    TransformerBlock::Saved saved;
    const Tensor all = random_tensor({rows, shape().hidden}, DType::f32, 1);
    Costs own;
    const MemoryScope activations(MemoryKind::activations);
    const auto held = [&] {  // by all ranks, of which none goes on meanwhile
      world.barrier(Stream::inline_()).wait();
      const std::size_t bytes = memory_use(MemoryKind::activations).bytes;
      world.barrier(Stream::inline_()).wait();
      return static_cast<std::int64_t>(bytes);
    };
    const std::int64_t before = held();
    {
      const Tensor x = tensor_parallel.own_rows(all).clone();
      block.forward(x, {sequences, length}, saved, use);
    }
    own.forward = operations();
    own.kept = (held() - before) / its.ranks;
    const Tensor dx = tensor_parallel.own_rows(all).clone();
    block.backward(dx, saved, use);
    own.backward = operations();
    kernel_notes = nullptr;
    for (const Record& record : world.job().ledger().records()) {
      if (record.collective != Collective::barrier) own.sent += static_cast<std::int64_t>(record.bytes_sent);
    }
    if (world.rank() > 0) return;
    result = own;
    cost = block.cost({.count = rows, .dtype = DType::f32, .level = its.level});
  });
  return {result, cost};
}

const AdapterSet whole_adapters{{{"attn.c_attn", {3, 2}}, {"attn.c_proj", {2, 1}}, {"mlp.c_proj", {1, 2}}}};
const AdapterSet adapters_of_parts{{{"attn.c_attn.q", {3, 2}}, {"attn.c_attn.v", {1, 2}}, {"mlp.c_fc", {2, 1}}}};

TEST(LayerCost, IsWhatABlockDoes) {
  for (const AdapterSet& adapters : {AdapterSet{}, whole_adapters, adapters_of_parts}) {
    for (const int ranks : {1, 2}) {
      for (const Recompute level : {Recompute::none, Recompute::selective, Recompute::full}) {
        for (const auto& [divides_rows, keeps_gathered] : {std::pair{false, false}, {true, false}, {true, true}}) {
          if (divides_rows && ranks == 1) continue;
          if (keeps_gathered && level == Recompute::selective) continue;  // refused
          const auto [done, cost] = measured({ranks, divides_rows, keeps_gathered, level, adapters});
          const Costs its = said(cost, ranks);
          const std::string at =
              fmt::format("{} ranks, {}{}, recomputes {}, {} adapters", ranks, divides_rows ? "own rows" : "all rows",
                          keeps_gathered ? " kept" : "", name(level), adapters.by_record.size());
          EXPECT_EQ(done.forward, its.forward) << at;
          EXPECT_EQ(done.backward, its.backward) << at;
          EXPECT_EQ(done.kept, its.kept) << at;
          EXPECT_EQ(done.sent, its.sent) << at;
          LayerCost forgets = cost;
          forgets.weight.products.pop_back();
          EXPECT_NE(said(forgets, ranks), done) << "the control, a product";
          forgets = cost;
          forgets.kept -= rows * shape().hidden;
          EXPECT_NE(said(forgets, ranks), done) << "the control, a kept tensor";
        }
      }
    }
  }
}

// A layer's backward comes before that of the layer in front of it, and frees what its layer kept.
TEST(LayerCost, BackwardFreesWhatLaterLayersKept) {
  const LayerCost front{.parameters = 1, .kept = 10, .backward = 50, .later = 2};
  const LayerCost behind{.parameters = 2, .kept = 30, .backward = 15, .later = 3};
  const LayerCost both = front.before(behind);
  EXPECT_EQ(both.parameters, 3);
  EXPECT_EQ(both.kept, 40);
  EXPECT_EQ(both.backward, 20);
  EXPECT_EQ(both.later, 5);
  EXPECT_EQ(behind.before(front).backward, 50);
}

}  // namespace
}  // namespace stretto
