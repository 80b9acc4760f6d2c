// Muon: what it computes, and that the layout changes no bit of it.
#include "stretto/layers/muon.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <map>

#include "layers/optimizer/matrices/hidden_matrices.hpp"
#include "layers/optimizer/matrices/newton_schulz.hpp"
#include "saved_checkpoint.hpp"
#include "stretto/planning/training_memory.hpp"
#include "support/data.hpp"

namespace stretto {
namespace {

// ---- one matrix

// tests/reference/make_muon_reference.py prints the table.
struct Reference {
  MuonScale scale;
  std::int64_t rows, columns;
  std::array<double, 4> values;  // of elements 0, 5, 13 and 23
};
const std::vector<Reference> references = {
    {MuonScale::keller, 4, 6, {-0.508284882435, 0.639196905641, -0.669204065302, 0.406936478245}},
    {MuonScale::keller, 6, 4, {-0.490728037076, 0.689804813170, -0.685945757740, 0.371487894580}},
    {MuonScale::moonlight, 4, 6, {-0.577019280954, 0.641152812565, -0.655853258524, 0.472700312358}},
    {MuonScale::moonlight, 6, 4, {-0.582109964830, 0.661740675268, -0.660197053096, 0.470110782832}},
};

std::array<double, 4> as_the_reference(const Reference& reference, double momentum = 0.9) {
  std::array<double, 4> result = {};
  run_threads(1, [&](const Communicator& world) {
    const Mesh mesh(world, {});
    Parameters parameters;
    Parameter& weight = parameters.add(
        Parameter::whole("w", {reference.rows, reference.columns}, token_axes, {.matrices = {reference.rows}}));
    parameters.used_together({&weight});
    ShardedParameters sharded(parameters, mesh, {.dtype = DType::f64});
    for (std::int64_t i = 0; i < weight.elements(); ++i) weight.value.set(i, (static_cast<double>(5 * i % 13) - 6) / 8);
    Muon optimizer(sharded, {.momentum = momentum, .scale = reference.scale, .matrix_lr = 0.5, .weight_decay = 0.5});
    for (std::int64_t step = 0; step < 3; ++step) {
      sum_gradients(sharded, parameters, [&](const std::string&, std::int64_t i) {
        return 2 * (static_cast<double>((7 * i + 3 * step * step) % 11) - 5 + 0.25 * static_cast<double>(i % 3));
      });
      optimizer.step(0.2, 0.5);
    }
    result = {weight.value.at(0), weight.value.at(5), weight.value.at(13), weight.value.at(23)};
  });
  return result;
}

TEST(Muon, StepsAsPyTorch) {
  for (const Reference& reference : references) {
    const std::array<double, 4> found = as_the_reference(reference), control = as_the_reference(reference, 0.85);
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_NEAR(found[i], reference.values[i], 1e-7);
      EXPECT_GT(std::abs(control[i] - reference.values[i]), 1e-4);
    }
  }
}

TEST(Muon, ScalesByTheShape) {
  EXPECT_DOUBLE_EQ(muon_scale(MuonScale::keller, 8, 2), 2);
  EXPECT_DOUBLE_EQ(muon_scale(MuonScale::keller, 2, 8), 1);
  EXPECT_DOUBLE_EQ(muon_scale(MuonScale::moonlight, 25, 100), 2);
  EXPECT_DOUBLE_EQ(muon_scale(MuonScale::moonlight, 100, 25), 2);
}

// ---- dealt out

TEST(HiddenMatrices, AreDealtOutEvenly) {
  std::vector<HiddenMatrix> matrices;  // of 6 blocks of a Llama
  for (int block = 0; block < 6; ++block) {
    for (const auto& [rows, columns] : {std::pair(64, 64), {16, 64}, {16, 64}, {64, 64}, {170, 64}, {170, 64}, {64, 170}})
      matrices.push_back({.rows = rows, .columns = columns});
  }
  const auto flops = [](const HiddenMatrix& matrix) { return newton_schulz_flops(matrix.rows, matrix.columns); };
  double all = 0, largest = 0;
  for (const HiddenMatrix& each : matrices) {
    all += flops(each);
    largest = std::max(largest, flops(each));
  }
  for (const int ranks : {1, 2, 3, 4, 7, 8}) {
    const std::vector<int> owners = owners_of(matrices, ranks);
    std::vector<double> load(static_cast<std::size_t>(ranks));
    for (std::size_t i = 0; i < owners.size(); ++i) load[static_cast<std::size_t>(owners[i])] += flops(matrices[i]);
    EXPECT_LE(*std::ranges::max_element(load), all / ranks + largest) << ranks;
    if (ranks <= 4) {
      EXPECT_LE(*std::ranges::max_element(load), 1.1 * all / ranks) << ranks;
    }
    EXPECT_GT(*std::ranges::min_element(load), 0) << ranks;
  }
}

// ---- in every layout

struct Matrices {
  std::vector<std::int64_t> of_fused = {10, 5, 5}, of_row = {12};
};

// A fused layer of four parts, of which q has two; one that is divided over its inputs; a table; and a bias.
void add_layer(Parameters& parameters, const Mesh& mesh, const std::string& name, const Matrices& matrices) {
  const int ranks = mesh.size(Axis::tensor), own = mesh.rank(Axis::tensor);
  const Initial initial{2, 1};
  Parameter& fused = parameters.add(
      Parameter::divided(name + "fused", {4, 5, 7}, 1, ranks, own, {.initial = initial, .matrices = matrices.of_fused}));
  Parameter& row = parameters.add(
      Parameter::divided(name + "row", {12, 9}, 1, ranks, own, {.initial = initial, .matrices = matrices.of_row}));
  Parameter& table = parameters.add(Parameter::divided(name + "table", {6, 3}, 0, ranks, own, {.initial = initial}));
  Parameter& bias = parameters.add(Parameter::whole(name + "bias", {9}, token_axes, {.initial = initial, .decays = false}));
  parameters.used_together({&fused, &row, &table, &bias});
}

struct Layered {
  MeshShape mesh;
  ZeroStage stage = ZeroStage::optimizer;
  int layers = 2;
  DType dtype = DType::f32;
  Matrices matrices = {};
  std::vector<bool> whole = {};  // from the second step on, by unit, the last of all further ones; empty: as measured
  std::size_t unit_bytes = 200;
  bool bf16_products = false;
};

class LayeredTraining {
 public:
  LayeredTraining(const Communicator& world, const Layered& layered) : layered_(layered), mesh_(world, layered.mesh) {
    const int stages = mesh_.size(Axis::pipeline);
    for (int layer = 0; layer < layered.layers; ++layer) {
      const int stage = layer * stages / layered.layers;
      parameters_.place_next({.part = stage, .is_here = stage == mesh_.rank(Axis::pipeline)});
      add_layer(parameters_, mesh_, std::to_string(layer) + ".", layered.matrices);
    }
    sharded_.emplace(parameters_, mesh_,
                     ShardedParameters::Options{.zero = layered.stage,
                                                .dtype = layered.dtype,
                                                .unit_bytes = layered.unit_bytes,
                                                .measured_steps = layered.whole.empty() ? 3 : 0});
    sharded_->initialise(3);
    optimizer_.emplace(*sharded_, Muon::Options{.matrix_lr = 2, .bf16_products = layered.bf16_products});
  }

  void step(int number) {
    sharded_->begin_step();
    for (const auto& used : parameters_.used()) {
      if (!used->parameters.front()->is_here) continue;
      const InUse in_use(*sharded_, *used, Pass::backward);
      for (const Parameter* parameter : used->parameters) {
        if (mesh_.over(token_axes).rank() != 0) continue;
        for_each_run(*parameter, 0, parameter->gradient.size(), [&](std::int64_t to, std::int64_t from, std::int64_t count) {
          for (std::int64_t i = 0; i < count; ++i) {
            const double draw = random_uniform(4, parameter->name, static_cast<std::uint64_t>(from + i + 1000 * number));
            parameter->gradient.set(to + i, std::floor(17 * draw) - 8);
          }
        });
      }
    }
    sharded_->end_microbatch();
    sharded_->finish_sums();
    optimizer_->step(1e-2, 0.5);
    if (number != 0 || layered_.whole.empty()) return;
    std::vector<bool> whole(sharded_->unit_count(), layered_.whole.back());
    for (std::size_t i = 0; i < std::min(whole.size(), layered_.whole.size()); ++i) whole[i] = layered_.whole[i];
    sharded_->traffic().set_whole(whole);
  }

  std::map<std::string, double> values() const {
    std::map<std::string, double> result;
    const std::vector<Tensor> slices = sharded_->whole_values();
    for (const auto& parameter : parameters_.all()) {
      if (!parameter->is_here) continue;
      for_each_run(*parameter, 0, parameter->elements(), [&](std::int64_t here, std::int64_t whole, std::int64_t count) {
        for (std::int64_t i = 0; i < count; ++i)
          result[fmt::format("{}[{}]", parameter->name, whole + i)] = slices[parameter->index].at(here + i);
      });
    }
    return result;
  }
  ShardedParameters& sharded() { return *sharded_; }
  const Optimizer& optimizer() const { return *optimizer_; }

 private:
  Layered layered_;
  Mesh mesh_;
  Parameters parameters_;
  std::optional<ShardedParameters> sharded_;
  std::optional<Muon> optimizer_;
};

// The values of all ranks after three steps. Copies must agree.
std::map<std::string, double> trained(const Layered& layered) {
  std::vector<std::map<std::string, double>> of(static_cast<std::size_t>(layered.mesh.ranks()));
  run_threads(static_cast<int>(layered.mesh.ranks()), [&](const Communicator& world) {
    LayeredTraining training(world, layered);
    for (int step = 0; step < 3; ++step) training.step(step);
    of[static_cast<std::size_t>(world.rank())] = training.values();
  });
  std::map<std::string, double> result;
  for (const auto& values : of) {
    for (const auto& [name, value] : values) EXPECT_EQ(result.try_emplace(name, value).first->second, value) << name;
  }
  return result;
}

// The control: matrices that are updated in two halves.
TEST(Muon, GivesTheSameBitsInEveryLayout) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto expected = trained({.mesh = {}, .dtype = dtype});
    ASSERT_EQ(expected.size(), 2U * (4 * 5 * 7 + 12 * 9 + 6 * 3 + 9));
    for (const ZeroStage stage : zero_stages) {
      for (const MeshShape& mesh : {MeshShape{{Axis::data, 2}},
                                    {{Axis::data, 3}},
                                    {{Axis::data, 4}},
                                    {{Axis::tensor, 2}},
                                    {{Axis::tensor, 2}, {Axis::data, 2}},
                                    {{Axis::pipeline, 2}},
                                    {{Axis::ring, 2}, {Axis::pipeline, 2}}}) {
        EXPECT_EQ(trained({.mesh = mesh, .stage = stage, .dtype = dtype}), expected)
            << mesh.ranks() << " ranks, tp " << mesh[Axis::tensor] << ", ZeRO " << static_cast<int>(stage);
      }
    }
    for (const Matrices& halves : {Matrices{.of_fused = {5, 5, 5, 5}}, Matrices{.of_row = {6, 6}}})
      EXPECT_NE(trained({.mesh = {}, .dtype = dtype, .matrices = halves}), expected);
  }
}

TEST(Muon, GivesTheSameBitsInEveryLayoutWithProductsInBf16) {
  const auto expected = trained({.mesh = {}, .bf16_products = true});
  EXPECT_NE(expected, trained({.mesh = {}})) << "the control: products in f32";
  for (const ZeroStage stage : zero_stages) {
    for (const MeshShape& mesh : {MeshShape{{Axis::data, 3}}, {{Axis::tensor, 2}, {Axis::data, 2}}})
      EXPECT_EQ(trained({.mesh = mesh, .stage = stage, .bf16_products = true}), expected);
  }
  run_threads(1, [](const Communicator& world) {
    EXPECT_THROW(LayeredTraining(world, {.mesh = {}, .dtype = DType::f64, .bf16_products = true}), Error);
  });
}

// ZeRO stage 0, where some units are updated by share and their values gathered, from the second step on.
TEST(Muon, GivesTheSameBitsWithUnitsUpdatedByShare) {
  const auto expected = trained({.mesh = {}});
  for (const auto& whole : {std::vector<bool>{false}, {true, false, true}, {false, true}}) {
    EXPECT_EQ(trained({.mesh = {{Axis::data, 3}}, .stage = ZeroStage::none, .whole = whole}), expected);
    EXPECT_EQ(trained({.mesh = {{Axis::data, 2}, {Axis::tensor, 2}}, .stage = ZeroStage::none, .whole = whole}), expected);
  }
}

TEST(Muon, CallsDoNotGrowWithTheNumberOfMatrices) {
  const auto calls = [](int layers) {
    std::map<std::string, int> result;
    run_threads(2, [&](const Communicator& world) {
      LayeredTraining training(world, {.mesh = {{Axis::data, 2}}, .layers = layers});
      training.step(0);
      const std::uint64_t first = world.job().ledger().next_sequence();
      training.step(1);
      if (world.rank() != 0) return;
      for (const Record& record : world.job().ledger().records(first)) ++result[record.tag];
    });
    return result;
  };
  const auto few = calls(2), many = calls(4);
  for (const char* tag : {"matrices to owners", "matrices from owners"}) {
    EXPECT_EQ(few.at(tag), 1);
    EXPECT_EQ(many.at(tag), 1);
  }
  EXPECT_NE(few, many);  // the control: the sums of gradients are more
}

TEST(Muon, AllGathersUpdatesThatAllRanksTake) {
  const auto found = [](ZeroStage stage, const MeshShape& mesh, const std::vector<bool>& whole = {}) {
    Collective result = Collective::barrier;
    run_threads(static_cast<int>(mesh.ranks()), [&](const Communicator& world) {
      LayeredTraining training(world, {.mesh = mesh, .stage = stage, .whole = whole});
      training.step(0);
      training.step(1);
      if (world.rank() != 0) return;
      for (const Record& record : world.job().ledger().records()) {
        if (record.tag == "matrices from owners") result = record.collective;
      }
    });
    return result;
  };
  EXPECT_EQ(found(ZeroStage::none, {{Axis::data, 3}}), Collective::all_gather);
  EXPECT_EQ(found(ZeroStage::none, {{Axis::data, 2}, {Axis::tensor, 2}}), Collective::all_to_all) << "slices";
  EXPECT_EQ(found(ZeroStage::optimizer, {{Axis::data, 3}}), Collective::all_to_all) << "shares";
  EXPECT_EQ(found(ZeroStage::none, {{Axis::data, 3}}, {false}), Collective::all_to_all) << "units that are updated by share";
}

// One slot for matrices, two for others: the rank with the most has as much as the formula says.
TEST(Muon, TakesTheMemoryOfItsFormula) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const ZeroStage stage : {ZeroStage::none, ZeroStage::optimizer}) {
      for (const MeshShape& mesh : {MeshShape{{Axis::data, 2}}, {{Axis::data, 3}}}) {
        const OptimizerKind kind = Muon::Options{}.kind(), two_slots = AdamW::Options{}.kind();
        std::vector<std::int64_t> found(static_cast<std::size_t>(mesh.ranks()));
        std::int64_t planned = 0, of_adamw = 0;
        run_threads(static_cast<int>(mesh.ranks()), [&](const Communicator& world) {
          LayeredTraining training(world, {.mesh = mesh, .stage = stage, .dtype = dtype});
          std::int64_t& bytes = found[static_cast<std::size_t>(world.rank())];
          for (const Optimizer::State& state : training.optimizer().states()) {
            if (dtype == DType::bf16) bytes += static_cast<std::int64_t>(state.master.bytes());
            for (const Tensor& slot : state.slots) bytes += static_cast<std::int64_t>(slot.bytes());
          }
          if (world.rank() != 0) return;
          const ShardedParameters& sharded = training.sharded();
          planned = state_memory(sharded.parameters(), mesh, sharded.options(), kind).optimizer;
          of_adamw = state_memory(sharded.parameters(), mesh, sharded.options(), two_slots).optimizer;
        });
        EXPECT_EQ(*std::ranges::max_element(found), planned);
        EXPECT_LT(planned, of_adamw);
      }
    }
  }
}

// Matrices so large that no other test of this program has as many bytes on their way. Several ranks of this process need
// not be at their peak at the same time.
TEST(Muon, HasTheBuffersOfItsFormula) {
  for (const int ranks : {1, 2}) {
    std::int64_t before = 0, peak_before = 0;
    const auto bytes = [] { return static_cast<std::int64_t>(memory_use(MemoryKind::buffers).bytes); };
    const auto peak = [] { return static_cast<std::int64_t>(memory_use(MemoryKind::buffers).peak_bytes); };
    run_threads(ranks, [&](const Communicator& world) {
      const Mesh mesh(world, {{Axis::data, ranks}});
      Parameters parameters;
      const std::vector<std::int64_t> rows(static_cast<std::size_t>(2 * ranks), 512);
      Parameter& weight =
          parameters.add(Parameter::whole("w", {1024 * ranks, 2048}, token_axes, {.initial = {0, 1}, .matrices = rows}));
      parameters.used_together({&weight});
      ShardedParameters sharded(parameters, mesh, {.zero = ZeroStage::none, .measured_steps = 0});
      Muon optimizer(sharded);
      sum_gradients(sharded, parameters, [](const std::string&, std::int64_t i) { return i % 7 - 3; });
      world.barrier(Stream::inline_()).wait();
      if (world.rank() == 0) before = bytes(), peak_before = peak();
      world.barrier(Stream::inline_()).wait();
      optimizer.step(1e-2, 1);
      world.barrier(Stream::inline_()).wait();
      if (world.rank() != 0) return;
      const std::int64_t planned = state_memory(parameters, mesh.shape(), sharded.options(), optimizer.kind()).buffers;
      ASSERT_GT(peak(), peak_before);
      EXPECT_LE(peak() - before, ranks * planned);
      EXPECT_GE(peak() - before, planned - planned / 100);
      EXPECT_EQ(bytes(), before);  // nothing stays
      // Units that may come to be updated by share: an owner then has a copy of its matrices for each rank.
      ShardedParameters::Options measuring = sharded.options();
      measuring.measured_steps = 3;
      const std::int64_t own = 1024 * 2048 * static_cast<std::int64_t>(sizeof(float));
      EXPECT_EQ(state_memory(parameters, mesh.shape(), measuring, optimizer.kind()).buffers, planned + (ranks - 1) * own);
      EXPECT_EQ(state_memory(parameters, mesh.shape(), sharded.options(), AdamW::Options{}.kind()).buffers, 0);
    });
  }
}

// ---- what cannot be

TEST(Muon, RefusesWhatItCannotDo) {
  run_threads(1, [](const Communicator& world) {
    const Mesh mesh(world, {});
    Parameters parameters;
    Parameter& weight = parameters.add(Parameter::whole("w", {2, 3}, token_axes, {.matrices = {2}}));
    {
      ShardedParameters sharded(parameters, mesh);
      for (const double momentum : {-0.5, 1.0}) EXPECT_THROW(Muon(sharded, {.momentum = momentum}), Error);
      EXPECT_NO_THROW(Muon{sharded});
    }
    weight.trainable = false;
    parameters.add(Parameter::whole("b", {2, 3}, token_axes, {}));
    ShardedParameters sharded(parameters, mesh);
    EXPECT_THAT(sentence_of([&] { Muon{sharded}; }), testing::HasSubstr("no hidden matrix is trained"));
  });
  EXPECT_EQ(to_string(Muon::Options{}.kind()), "muon (m, v)");
  Parameters parameters;
  for (const auto& matrices : {std::vector<std::int64_t>{1}, {3}, {2, 0}, {3, -1}})
    EXPECT_THROW(parameters.add(Parameter::whole("w", {2, 3}, token_axes, {.matrices = matrices})), Error);
  EXPECT_THROW(parameters.add(Parameter::whole("w", {2}, token_axes, {.matrices = {2}})), Error);
}

}  // namespace
}  // namespace stretto
