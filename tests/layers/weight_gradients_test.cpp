// Backward in halves: the gradients of activations first, and those of weights later, have the bits of a backward at once.
#include "stretto/layers/weight_gradients.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "device/kernels/kernel_data.hpp"
#include "layers/allocated.hpp"
#include "stretto/layers/sharded_parameters.hpp"
#include "stretto/layers/transformer.hpp"
#include "stretto/layers/vocabulary.hpp"
#include "stretto/stretto.hpp"
#include "support/data.hpp"

namespace stretto {
namespace {

constexpr std::int64_t width = 16;
constexpr std::int64_t sequences = 2, length = 5, rows = sequences * length;

// Values and gradients are there in the uses that need them only. Notes the uses.
class WhatThePassNeeds : public ParameterUse {
 public:
  void begin(const UsedParameters& used, Pass pass) override {
    uses.push_back(used.parameters.front()->name + " " + name(pass));
    for (Parameter* const parameter : used.parameters) {
      if (!reads_values(pass)) aside_[&parameter->value] = std::exchange(parameter->value, {});
      if (!adds_gradients(pass)) aside_[&parameter->gradient] = std::exchange(parameter->gradient, {});
    }
  }
  void end(const UsedParameters& /*used*/, Pass /*pass*/) override {
    for (auto& [place, tensor] : aside_) *place = tensor;
    aside_.clear();
  }
  std::vector<std::string> uses;

 private:
  std::map<Tensor*, Tensor> aside_;
};

std::vector<Tensor> gradients_of(const Parameters& parameters) {
  std::vector<Tensor> all;
  for (const auto& parameter : parameters.all()) all.push_back(parameter->gradient.clone());
  return all;
}

enum class Backward { whole, halves, second_microbatch_is_forgotten };
enum class Begin { zeros, unset, garbage };

// Fills the gradients that their layers overwrite with garbage. The control: `garbage` does not tell the layers.
void fill_gradients(const Parameters& parameters, Begin begin) {
  for (const auto& parameter : parameters.all()) {
    if (begin == Begin::zeros || !parameter->overwrites_gradient) continue;
    for (std::int64_t i = 0; i < parameter->gradient.size(); ++i) parameter->gradient.set(i, NAN);
    parameter->unset = std::make_shared<bool>(begin == Begin::unset);
  }
}

struct Results {
  std::vector<Tensor> dx, gradients;
};

// Two blocks, of which the second's dx goes through the first.
struct Blocks {
  Blocks(Parameters& parameters, const TensorParallel& tensor_parallel, const RecomputeOptions& recompute) {
    const DecoderShape shape = DecoderShape{.layers = 2, .hidden = width, .heads = 2}.filled();
    for (const char* name : {"h.0.", "h.1."}) blocks.emplace_back(parameters, name, shape, tensor_parallel, recompute);
  }
  struct Saved {
    TransformerBlock::Saved of_blocks[2];
  };
  void forward(Tensor x, Saved& saved, ParameterUse& use) const {
    for (std::size_t i = 0; i < 2; ++i) x = blocks[i].forward(x, {sequences, length}, saved.of_blocks[i], use);
  }
  void backward(const Tensor& dx, Saved& saved, ParameterUse& use, WeightGradients* later) const {
    for (const std::size_t i : {1, 0}) blocks[i].backward(dx, saved.of_blocks[i], use, later);
  }
  std::vector<TransformerBlock> blocks;
};

struct Tested {
  int ranks;
  DType dtype;
  RecomputeOptions recompute;
  bool divides_rows = false, keeps_gathered = false;
  TensorParallel of(const Communicator& world, const Stream& stream) const {
    return {.group = world, .stream = stream, .divides_rows = divides_rows, .keeps_gathered = keeps_gathered};
  }
};

// Two microbatches through two blocks.
Results train(const Communicator& world, const Tested& tested, Backward how, Begin begin = Begin::zeros) {
  Parameters parameters;
  const TensorParallel tensor_parallel = tested.of(world, Stream("tp"));
  const Blocks blocks(parameters, tensor_parallel, tested.recompute);
  const DType dtype = tested.dtype;
  const auto own_rows = [&](unsigned seed) { return tensor_parallel.own_rows(random_tensor({rows, width}, dtype, seed)); };
  allocate(parameters, dtype);
  initialise(parameters, 1);
  fill_gradients(parameters, begin);
  WhatThePassNeeds use;
  Blocks::Saved saved[2];
  WeightGradients later[2];
  Results results;
  for (unsigned m = 0; m < 2; ++m) blocks.forward(own_rows(m), saved[m], use);
  for (unsigned m = 0; m < 2; ++m) {
    const Tensor dx = own_rows(10 + m);
    const Tensor dy = dx.clone();
    blocks.backward(dx, saved[m], use, how == Backward::whole ? nullptr : &later[m]);
    EXPECT_FALSE(same_bits(dx, dy)) << "what is kept of dx must be a copy";
    EXPECT_EQ(later[m].empty(), how == Backward::whole);
    results.dx.push_back(dx);
  }
  for (WeightGradients& each : later) {
    if (how == Backward::second_microbatch_is_forgotten && &each == &later[1]) continue;
    each.compute(use);
    EXPECT_TRUE(each.empty());
  }
  results.gradients = gradients_of(parameters);
  return results;
}

class WeightGradientsOfBlocks : public testing::TestWithParam<Tested> {};

TEST_P(WeightGradientsOfBlocks, HaveTheBitsOfBackwardAtOnce) {
  const Tested& tested = GetParam();
  run_threads(tested.ranks, [&](const Communicator& world) {
    const Results expected = train(world, tested, Backward::whole);
    const Results halves = train(world, tested, Backward::halves);
    EXPECT_TRUE(same_bits(halves.dx, expected.dx));
    EXPECT_TRUE(same_bits(halves.gradients, expected.gradients));
    const Results control = train(world, tested, Backward::second_microbatch_is_forgotten);
    EXPECT_TRUE(same_bits(control.dx, expected.dx));
    EXPECT_FALSE(same_bits(control.gradients, expected.gradients)) << "the control";
  });
}

TEST_P(WeightGradientsOfBlocks, AreOverwrittenWhereTheyAreUnset) {
  const Tested& tested = GetParam();
  run_threads(tested.ranks, [&](const Communicator& world) {
    const Results expected = train(world, tested, Backward::whole);
    for (const Backward how : {Backward::whole, Backward::halves}) {
      EXPECT_TRUE(same_bits(train(world, tested, how, Begin::unset).gradients, expected.gradients));
      EXPECT_FALSE(same_bits(train(world, tested, how, Begin::garbage).gradients, expected.gradients)) << "the control";
    }
  });
}

TEST_P(WeightGradientsOfBlocks, HoldsWhatItsHeaderSaysAndFreesIt) {
  const Tested& tested = GetParam();
  run_threads(tested.ranks, [&](const Communicator& world) {
    Parameters parameters;
    const TensorParallel tensor_parallel = tested.of(world, Stream::inline_());
    const Blocks blocks(parameters, tensor_parallel, tested.recompute);
    const auto own_rows = [&](unsigned seed) {
      return tensor_parallel.own_rows(random_tensor({rows, width}, tested.dtype, seed));
    };
    allocate(parameters, tested.dtype);
    initialise(parameters, 1);
    ParameterUse use;
    WeightGradients later;
    const auto held = [&] {  // by all ranks
      world.barrier(Stream::inline_()).wait();
      const std::size_t bytes = memory_use(MemoryKind::activations).bytes;
      world.barrier(Stream::inline_()).wait();
      return static_cast<std::int64_t>(bytes);
    };
    const std::int64_t before = held();
    {
      const MemoryScope activations(MemoryKind::activations);
      Blocks::Saved saved;
      blocks.forward(own_rows(1), saved, use);
      blocks.backward(own_rows(2), saved, use, &later);
    }
    const int whole = tested.divides_rows && !tested.keeps_gathered ? 1 : tested.ranks;
    const std::int64_t block = rows * width * static_cast<std::int64_t>(size_of(tested.dtype)) * (4 * whole + 12);
    EXPECT_EQ(held() - before, 2 * block);
    later.compute(use);
    EXPECT_EQ(held(), before);
  });
}

std::vector<Tested> all_tested() {
  std::vector<Tested> result;
  for (const int ranks : {1, 2}) {
    for (const DType dtype : {DType::f64, DType::bf16}) {
      for (const Recompute level : {Recompute::none, Recompute::selective, Recompute::full}) {
        result.push_back({ranks, dtype, {.level = level}});
        if (ranks == 1) continue;
        result.push_back({ranks, dtype, {.level = level}, true});
        if (level != Recompute::selective) result.push_back({ranks, dtype, {.level = level}, true, true});
      }
      if (ranks > 1) result.push_back({ranks, dtype, {.level = Recompute::full, .partition = true}});
    }
  }
  return result;
}
std::string name_of(const testing::TestParamInfo<Tested>& tested) {
  const char* const levels[] = {"none", "selective", "full"};
  const auto& [ranks, dtype, recompute, divides_rows, keeps_gathered] = tested.param;
  return std::to_string(ranks) + "_" + name(dtype) + "_" + levels[static_cast<int>(recompute.level)] +
         (recompute.partition ? "_divided" : "") + (divides_rows ? "_own_rows" : "") + (keeps_gathered ? "_kept" : "");
}
INSTANTIATE_TEST_SUITE_P(All, WeightGradientsOfBlocks, testing::ValuesIn(all_tested()), name_of);

TEST(WeightGradients, AreComputedInTheOrderOfBackward) {
  run_threads(1, [](const Communicator& world) {
    Parameters parameters;
    const TransformerBlock block(parameters, "", DecoderShape{.layers = 1, .hidden = width, .heads = 2}.filled(),
                                 {world, Stream::inline_()});
    allocate(parameters, DType::f64);
    initialise(parameters, 1);
    WhatThePassNeeds use;
    TransformerBlock::Saved saved;
    WeightGradients later;
    const Tensor x = random_tensor({rows, width}, DType::f64);
    block.forward(x, {sequences, length}, saved, use);
    use.uses.clear();
    block.backward(x, saved, use, &later);
    using testing::ElementsAre;
    EXPECT_THAT(use.uses, ElementsAre("mlp.c_proj.weight backward_input", "mlp.c_fc.weight backward_input",
                                      "ln_2.weight backward", "attn.c_proj.weight backward_input",
                                      "attn.c_attn.weight backward_input", "ln_1.weight backward"));
    use.uses.clear();
    later.compute(use);
    EXPECT_THAT(use.uses, ElementsAre("mlp.c_proj.weight backward_weight", "mlp.c_fc.weight backward_weight",
                                      "attn.c_proj.weight backward_weight", "attn.c_attn.weight backward_weight"));
    use.uses.clear();
    later.compute(use);
    EXPECT_THAT(use.uses, ElementsAre()) << "there is nothing left";
  });
}

// What a layer keeps must stay as it is: a row-parallel layer keeps dy itself.
TEST(WeightGradients, NeedWhatTheLayersKept) {
  run_threads(1, [](const Communicator& world) {
    Parameters parameters;
    const RowParallelLinear layer(parameters, "row", width, width, {0, 1}, {world, Stream::inline_()});
    allocate(parameters, DType::f64);
    initialise(parameters, 1);
    ParameterUse use;
    const auto gradients = [&](bool in_halves, bool overwrites) {
      zero_gradients(parameters);
      const Tensor x = random_tensor({rows, width}, DType::f64, 1), dy = random_tensor({rows, width}, DType::f64, 2);
      WeightGradients later;
      layer.backward(x, dy, use, in_halves ? &later : nullptr);
      if (overwrites) dy.set(3, 7);
      later.compute(use);
      return gradients_of(parameters);
    };
    EXPECT_TRUE(same_bits(gradients(true, false), gradients(false, false)));
    EXPECT_TRUE(same_bits(gradients(false, true), gradients(false, false)));
    EXPECT_FALSE(same_bits(gradients(true, true), gradients(false, false)));
  });
}

TEST(WeightGradients, OfATableHaveTheBitsOfBackwardAtOnce) {
  for (const int ranks : {1, 2}) {
    for (const DType dtype : {DType::f64, DType::bf16}) {
      run_threads(ranks, [&](const Communicator& world) {
        constexpr std::int64_t vocabulary = 7;
        Parameters parameters;
        const VocabularyParallelTable table(parameters, "wte", vocabulary, width, {0, 1}, {world, Stream("tp")});
        allocate(parameters, dtype);
        initialise(parameters, 1);
        const Tensor ids = Tensor::of(std::vector<std::int32_t>{0, 6, 3, 3, 5, 1, 0, 2, 6, 4});
        const std::int64_t columns = share_of(vocabulary, ranks, world.rank()).count;
        WhatThePassNeeds use;
        const auto train = [&](Backward how, Begin begin = Begin::zeros) {
          zero_gradients(parameters);
          fill_gradients(parameters, begin);
          Results results;
          WeightGradients later[2];
          for (unsigned m = 0; m < 2; ++m) {
            WeightGradients* const to = how == Backward::whole ? nullptr : &later[m];
            const auto rank = static_cast<unsigned>(world.rank());
            results.dx.push_back(table.logits_backward(random_tensor({rows, width}, dtype, m),
                                                       random_tensor({rows, columns}, dtype, 10 + 2 * m + rank), use, to));
            use.uses.clear();
            table.embed_backward(ids, random_tensor({rows, width}, dtype, 20 + m), use, to);
            EXPECT_EQ(use.uses.empty(), to != nullptr);
          }
          for (WeightGradients& each : later) {
            if (how == Backward::second_microbatch_is_forgotten && &each == &later[1]) continue;
            each.compute(use);
          }
          results.gradients = gradients_of(parameters);
          return results;
        };
        const Results expected = train(Backward::whole);
        const Results halves = train(Backward::halves);
        EXPECT_TRUE(same_bits(halves.dx, expected.dx));
        EXPECT_TRUE(same_bits(halves.gradients, expected.gradients));
        EXPECT_FALSE(same_bits(train(Backward::second_microbatch_is_forgotten).gradients, expected.gradients))
            << "the control";
        for (const Backward how : {Backward::whole, Backward::halves}) {
          EXPECT_TRUE(same_bits(train(how, Begin::unset).gradients, expected.gradients));
        }
        EXPECT_FALSE(same_bits(train(Backward::halves, Begin::garbage).gradients, expected.gradients)) << "the control";
      });
    }
  }
}

// A pipeline's first stage has no logits: there the embedding is the first to add to the gradient.
TEST(WeightGradients, OfATableMayBeginWithTheEmbedding) {
  run_threads(1, [](const Communicator& world) {
    Parameters parameters;
    const VocabularyParallelTable table(parameters, "wte", 7, width, {0, 1}, {world, Stream::inline_()});
    allocate(parameters, DType::f64);
    initialise(parameters, 1);
    ParameterUse use;
    const auto gradients = [&](Begin begin) {
      zero_gradients(parameters);
      fill_gradients(parameters, begin);
      const Tensor ids = Tensor::of(std::vector<std::int32_t>{0, 6, 3, 3, 5, 1, 0, 2, 6, 4});
      table.embed_backward(ids, random_tensor({rows, width}, DType::f64, 1), use);
      table.logits_backward(random_tensor({rows, width}, DType::f64, 2), random_tensor({rows, 7}, DType::f64, 3), use);
      return gradients_of(parameters);
    };
    EXPECT_TRUE(same_bits(gradients(Begin::unset), gradients(Begin::zeros)));
    EXPECT_FALSE(same_bits(gradients(Begin::garbage), gradients(Begin::zeros))) << "the control";
  });
}

// With parameters that are divided over ranks, which are gathered for the first half only.
TEST(WeightGradients, OfShardedParametersHaveTheBitsOfBackwardAtOnce) {
  for (const ZeroStage stage : zero_stages) {
    run_threads(2, [&](const Communicator& world) {
      const Mesh mesh(world, {{Axis::data, 2}});
      const auto gradients = [&](Backward how) {
        Parameters parameters;
        const Blocks blocks(parameters, {mesh.over(Axis::tensor), Stream::inline_()}, {});
        ShardedParameters sharded(parameters, mesh, {.zero = stage, .dtype = DType::f64, .unit_bytes = 4096});
        sharded.initialise(1);
        EXPECT_GT(sharded.unit_count(), 4U);
        const auto rank = static_cast<unsigned>(world.rank());
        std::vector<Tensor> result;
        for (unsigned step = 0; step < 2; ++step) {  // the first one learns the order
          sharded.begin_step();
          for (unsigned m = 0; m < 2; ++m) {
            Blocks::Saved saved;
            WeightGradients later;
            blocks.forward(random_tensor({rows, width}, DType::f64, m + rank), saved, sharded);
            blocks.backward(random_tensor({rows, width}, DType::f64, 10 + m + rank), saved, sharded,
                            how == Backward::whole ? nullptr : &later);
            if (how != Backward::second_microbatch_is_forgotten || m == 0) later.compute(sharded);
            sharded.end_microbatch();
          }
          sharded.finish_sums();
          for (const Tensor& each : sharded.whole_gradients()) result.push_back(each.clone());
          sharded.update([](std::size_t) {});
        }
        return result;
      };
      const std::vector<Tensor> expected = gradients(Backward::whole);
      EXPECT_TRUE(same_bits(gradients(Backward::halves), expected)) << static_cast<int>(stage);
      EXPECT_FALSE(same_bits(gradients(Backward::second_microbatch_is_forgotten), expected)) << "the control";
    });
  }
}

}  // namespace
}  // namespace stretto
