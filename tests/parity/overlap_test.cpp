// Neither overlap of communication with computation nor the transport may change a bit of the results.
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>

#include "parity.hpp"
#include "support/temporary_directory.hpp"
#include "support/tiers.hpp"
#include "support/variables.hpp"

namespace parity {
namespace {

class Overlap : public testing::TestWithParam<Cell> {};

TEST_P(Overlap, ChangesNoBit) {
  const auto in_background = [](const std::vector<Trace>& traces) {
    return std::ranges::count_if(traces.front().records, [](const Record& record) {
      return record.stream == "dp" || (record.stream == "tp" && record.tag == "column-parallel backward");
    });
  };
  // With one gradient in each unit, a gradient that is declared ready too early travels at once and gives wrong bits.
  for (const std::size_t unit_bytes : {std::size_t{1}, std::size_t{16} << 10}) {
    TrainingOptions options = tiny(GetParam().layout, GetParam().dtype);
    options.sharding.unit_bytes = unit_bytes;
    const std::vector<Trace> overlapped = train(GetParam().layout, options);
    EXPECT_EQ(divergence(overlapped, train(GetParam().layout, options)), "") << "in another run";
    options.sharding.overlap = false;
    const std::vector<Trace> plain = train(GetParam().layout, options);
    EXPECT_EQ(divergence(overlapped, plain), "") << unit_bytes;
    // The control: only the first run overlapped.
    EXPECT_GE(in_background(overlapped), 2);
    EXPECT_EQ(in_background(plain), 0);
  }
}

std::vector<Cell> cells() {
  std::vector<Cell> result;
  for (const DType dtype : {DType::f64, DType::f32}) {
    for (const Layout layout : {Layout{2, 1}, {3, 1}, {4, 1}, {1, 2}, {2, 2}}) result.push_back({layout, dtype});
  }
  return result;
}

INSTANTIATE_TEST_SUITE_P(Layouts, Overlap, testing::ValuesIn(of_today(cells(), 3)), [](const auto& cell) {
  return fmt::format("{}x{}_{}", cell.param.layout.data, cell.param.layout.tensor, name(cell.param.dtype));
});

// Does not read parameters between steps, so that their gathers are still in flight when the next step begins.
std::vector<Trace> train_without_a_look(Layout layout, const TrainingOptions& options) {
  std::vector<Trace> traces(static_cast<std::size_t>(layout.ranks()));
  run_threads(layout.ranks(), [&](const Communicator& world) {
    Trainer trainer(Mesh(world, {{Axis::tensor, layout.tensor}, {Axis::data, layout.data}}), options);
    Trace& trace = traces[static_cast<std::size_t>(world.rank())];
    const std::uint64_t since = world.job().ledger().next_sequence();
    for (std::int64_t step = 0; step < 5; ++step) {
      const StepResult result = trainer.step(text_of_step(options, step), 3e-3);
      trace.losses.push_back(result.loss);
      trace.norms.push_back(result.gradient_norm);
    }
    trace.parameters = pieces_of(trainer, trainer.sharded().whole_values());
    trace.records = world.job().ledger().records(since);
  });
  return traces;
}

class ZeroStages : public testing::TestWithParam<Cell> {};

// With one microbatch all stages add the same numbers in the same order. With several, stages 2 and 3 add ranks before
// microbatches. Neither prefetch, overlap nor a second copy of the parameters changes a bit.
TEST_P(ZeroStages, AgreeBitForBit) {
  const auto& [layout, dtype] = GetParam();
  for (const int microbatches : {1, 3}) {
    TrainingOptions options = tiny(layout, dtype);
    options.global_batch = static_cast<std::int64_t>(microbatches) * layout.data;
    std::map<ZeroStage, std::vector<Trace>> traces;
    for (const ZeroStage stage : zero_stages) {
      options.sharding.zero = stage;
      traces[stage] = train_without_a_look(layout, options);
    }
    EXPECT_EQ(divergence(traces[ZeroStage::none], traces[ZeroStage::optimizer]), "") << microbatches;
    EXPECT_EQ(divergence(traces[ZeroStage::gradients], traces[ZeroStage::values]), "") << microbatches;
    if (microbatches == 1) {
      EXPECT_EQ(divergence(traces[ZeroStage::optimizer], traces[ZeroStage::gradients]), "");
    }
    for (const int prefetch : {0, 3}) {
      options.sharding.prefetch = prefetch;
      EXPECT_EQ(divergence(traces[ZeroStage::values], train_without_a_look(layout, options)), "") << prefetch;
    }
    if (layout.data % 2 == 0) {
      options.sharding.hpz_size = 2;
      EXPECT_EQ(divergence(traces[ZeroStage::values], train_without_a_look(layout, options)), "") << "hpZ";
      options.sharding.hpz_size = 1;
    }
    options.sharding.overlap = false;
    for (const ZeroStage stage : zero_stages) {
      options.sharding.zero = stage;
      EXPECT_EQ(divergence(traces[stage], train_without_a_look(layout, options)), "") << "without overlap";
    }
    options.seed = 5;
    EXPECT_NE(divergence(traces[ZeroStage::values], train_without_a_look(layout, options)), "") << "the control";
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, ZeroStages,
                         testing::ValuesIn(of_today({Cell{{2, 1}, DType::f64},
                                                     {{3, 1}, DType::bf16},
                                                     {{2, 2}, DType::f16},
                                                     {{4, 1}, DType::f32},
                                                     {{4, 2}, DType::bf16}})),
                         [](const auto& cell) {
                           return fmt::format("{}x{}_{}", cell.param.layout.data, cell.param.layout.tensor,
                                              name(cell.param.dtype));
                         });

// The link delivers the parameters later than forward needs them, so forward must wait.
TEST(ZeroStages, WaitForParametersThatAreLate) {
  for (const ZeroStage stage : {ZeroStage::optimizer, ZeroStage::values}) {
    TrainingOptions options = tiny({2, 1}, DType::f32);
    options.sharding.zero = stage;
    options.sharding.overlap = false;
    const std::vector<Trace> expected = train_without_a_look({2, 1}, options);
    options.sharding.overlap = true;
    const Variable nodes("STRETTO_RANKS_PER_NODE", "1");
    const Variable links("STRETTO_LINKS", "intra=100MB/s,300us;inter=100MB/s,300us");
    const std::vector<Trace> late = train_without_a_look({2, 1}, options);
    EXPECT_EQ(divergence(expected, late), "");
    double waited = 0;
    for (const Record& record : late.front().records) waited += record.tag == "parameters" ? record.times.waited : 0;
    EXPECT_GT(waited, 0);
  }
}

// On a link that is as slow as computation, it pays to gather some values in the next forward. That changes no bit.
TEST(ZeroStages, WhatIsGatheredWhenIsMeasuredAtStage0) {
  const Variable nodes("STRETTO_RANKS_PER_NODE", "1");
  const Variable links("STRETTO_LINKS", "intra=20MB/s,300us;inter=20MB/s,300us");
  const Layout layout{2, 1};
  TrainingOptions options = tiny(layout, DType::f32);
  options.sharding.zero = ZeroStage::none;
  const auto gathered_values = [](const std::vector<Trace>& traces) {
    return std::ranges::count(traces.front().records, "parameters", &Record::tag);
  };
  const std::vector<Trace> measured = train_without_a_look(layout, options);
  options.sharding.measured_steps = 0;
  const std::vector<Trace> plain = train_without_a_look(layout, options);
  EXPECT_EQ(divergence(plain, measured), "");
  EXPECT_GT(gathered_values(measured), 0);
  EXPECT_EQ(gathered_values(plain), 0) << "the control";
}

// Calls two functions at every use that the layers announce.
class WatchedUse : public ParameterUse {
 public:
  std::function<void(const Parameter&, Pass)> begins, ends;
  void begin(const UsedParameters& used, Pass pass) override {
    for (const Parameter* parameter : used.parameters) begins(*parameter, pass);
  }
  void end(const UsedParameters& used, Pass pass) override {
    for (const Parameter* parameter : used.parameters) ends(*parameter, pass);
  }
};

class Uses : public testing::Test {
 protected:
  // A model on two tensor-parallel ranks, and one sequence.
  static void on_ranks(const std::function<void(Trainer&, const Batch&)>& body) {
    run_threads(2, [&](const Communicator& world) {
      const TrainingOptions options = tiny({1, 2});
      Trainer trainer(Mesh(world, {{Axis::tensor, 2}}), options);
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(options.model.sequence));
      std::vector<std::int32_t> targets(tokens.size());
      text_of_step(options, 0)(0, tokens.data(), targets.data());
      body(trainer, Batch::of(tokens, targets, options.model.sequence));
    });
  }
};

// Values are NaN outside a use, in both passes, so the loss and the gradients are right only if every read lies within a
// use. The control: the use of one parameter is not told.
TEST_F(Uses, EveryReadOfAValueLiesWithinOne) {
  on_ranks([](Trainer& trainer, const Batch& batch) {
    std::map<std::string, Tensor> values;
    for (const auto& parameter : trainer.parameters().all()) values[parameter->name] = parameter->value.clone();
    const auto run = [&](ParameterUse& use) {
      for (const auto& parameter : trainer.parameters().all()) parameter->gradient.zero();
      const double loss = loss_with_gradients(trainer.model(), batch, 1.0, use);
      Pieces gradients;
      for (const auto& parameter : trainer.parameters().all()) {
        gradients[parameter->name] = piece_of(*parameter, parameter->gradient);
      }
      return std::pair{loss, gradients};
    };
    ParameterUse untold;
    const auto [expected_loss, expected_gradients] = run(untold);
    std::vector<std::string> forgotten{"", "wte.weight", "wpe.weight", "ln_f.bias"};
    for (const char* layer : {"ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"}) {
      forgotten.push_back(std::string("h.1.") + layer + ".weight");
    }
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      for (const std::string& name : forgotten) {
        if (pass == Pass::backward && (name == "wpe.weight" || name == "ln_f.bias"))
          continue;  // backward does not read them
        const auto leave = [](const Parameter& parameter) {
          for (std::int64_t i = 0; i < parameter.value.size(); ++i) parameter.value.set(i, NAN);
        };
        for (const auto& parameter : trainer.parameters().all()) leave(*parameter);
        WatchedUse use;
        use.begins = [&](const Parameter& parameter, Pass its) {
          if (parameter.name != name || its != pass) parameter.value.copy_from(values[parameter.name]);
        };
        use.ends = [&](const Parameter& parameter, Pass) { leave(parameter); };
        const auto [loss, gradients] = run(use);
        const bool same = loss == expected_loss && Comparer(equal_bits).pieces(expected_gradients, gradients, "").empty();
        EXPECT_EQ(same, name.empty()) << name << " in " << stretto::name(pass);
      }
    }
  });
}

// A gradient whose last use has ended may travel at once, so backward must not change it again.
TEST_F(Uses, GradientsAreLeftAloneAfterTheLast) {
  on_ranks([](Trainer& trainer, const Batch& batch) {
    Pieces when_ended;
    WatchedUse use;
    use.begins = [](const Parameter&, Pass) {};
    use.ends = [&](const Parameter& parameter, Pass pass) {
      if (pass == Pass::backward) when_ended[parameter.name] = piece_of(parameter, parameter.gradient);
    };
    loss_with_gradients(trainer.model(), batch, 1.0, use);
    Pieces at_last;
    for (const auto& parameter : trainer.parameters().all()) {
      at_last[parameter->name] = piece_of(*parameter, parameter->gradient);
    }
    EXPECT_EQ(Comparer(equal_bits).pieces(at_last, when_ended, "the gradient of"), "");
  });
}

// The comparison sees the smallest change of a single number.
TEST(OverlapControl, FailsOnOneBit) {
  const TrainingOptions options = tiny({2, 1}, DType::f32);
  const auto nudged = train({2, 1}, options, [](Trainer& trainer) {
    const Tensor& value = trainer.parameters().all().front()->value;
    value.set(3, std::nextafter(static_cast<float>(value.at(3)), 2.0F));
  });
  EXPECT_NE(divergence(train({2, 1}, options), nudged), "");
}

TEST(Transports, UcxAndSharedMemoryGiveTheSameBits) {
  const TrainingOptions options = tiny({2, 2}, DType::f32);
  setenv("STRETTO_TRANSPORT", "shm", 1);
  const std::vector<Trace> over_shm = train({2, 2}, options);
  setenv("STRETTO_TRANSPORT", "ucx", 1);
  std::vector<Trace> over_ucx;
  std::string unavailable;
  try {
    over_ucx = train({2, 2}, options);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unavailable) throw;
    unavailable = error.what();
  }
  unsetenv("STRETTO_TRANSPORT");
  if (!unavailable.empty()) GTEST_SKIP() << unavailable;
  EXPECT_EQ(divergence(over_shm, over_ucx), "");
}

TEST(Processes, GiveTheSameBitsAsThreads) {
  const TemporaryDirectory directory;
  const std::string path = directory / "losses";
  const TrainingOptions options = tiny({2, 1}, DType::f32);
  const int status = launch(2, [&](const Communicator& world) {
    Trainer trainer(Mesh(world, {{Axis::tensor, 1}, {Axis::data, 2}}), options);
    const Trace trace = advance(trainer, 0, trained_steps);
    std::ofstream file(path + std::to_string(world.rank()));
    for (std::size_t i = 0; i < trace.losses.size(); ++i)
      file << fmt::format("{:a} {:a}\n", trace.losses[i], trace.norms[i]);
  });
  ASSERT_EQ(status, 0);
  const std::vector<Trace> threads = train({2, 1}, options);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    std::string expected;
    for (std::size_t i = 0; i < threads[rank].losses.size(); ++i) {
      expected += fmt::format("{:a} {:a}\n", threads[rank].losses[i], threads[rank].norms[i]);
    }
    std::ifstream file(path + std::to_string(rank));
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), expected) << "rank " << rank;
  }
}

// Rounding to 16 bits changes the losses by less than 1%; the control, which does not learn, changes them by more.
TEST(Bf16, LossesStayNearThoseOfF32) {
  const auto learning = [](Layout layout, DType dtype, bool learns = true) {
    TrainingOptions options = tiny(layout, dtype);
    options.global_batch = 4;
    std::vector<double> losses;
    run_threads(layout.ranks(), [&](const Communicator& world) {
      Trainer trainer(Mesh(world, {{Axis::tensor, layout.tensor}, {Axis::data, layout.data}}), options);
      std::vector<double> own;
      for (int step = 0; step < 3; ++step) {
        own.push_back(trainer.step(text_of_step(options, step), learns ? 3e-2 : 0).loss);
      }
      if (world.rank() == 0) losses = own;
    });
    return losses;
  };
  const std::vector<double> expected = learning({1, 1}, DType::f32);
  for (const Layout layout : {Layout{1, 1}, {2, 1}, {1, 2}}) {
    Comparer comparer(1e-2);
    EXPECT_EQ(comparer.numbers(expected, learning(layout, DType::bf16), "loss"), "") << layout.data << "x" << layout.tensor;
    RecordProperty(fmt::format("worst_{}x{}", layout.data, layout.tensor), fmt::format("{:.2g}", comparer.worst()));
  }
  EXPECT_NE(Comparer(1e-2).numbers(expected, learning({1, 1}, DType::bf16, false), "loss"), "") << "the control";
}

}  // namespace
}  // namespace parity
