// Neither overlap of communication with computation nor the transport may change a bit of the results.
#include <cstdlib>
#include <fstream>
#include <optional>

#include "parity.hpp"
#include "temporary_directory.hpp"

namespace parity {
namespace {

std::string divergence(const std::vector<Trace>& expected, const std::vector<Trace>& actual) {
  for (std::size_t rank = 0; rank < expected.size(); ++rank) {
    const std::string text = compare(expected[rank], actual[rank], equal_bits).all();
    if (!text.empty()) return fmt::format("rank {}: {}", rank, text);
  }
  return {};
}

struct Cell {
  Layout layout;
  DType dtype;
};

class Overlap : public testing::TestWithParam<Cell> {};

TEST_P(Overlap, ChangesNoBit) {
  const auto in_background = [](const std::vector<Trace>& traces) {
    return std::ranges::count_if(traces.front().records, [](const Record& record) {
      return record.stream == "dp" || (record.stream == "tp" && record.tag == "column-parallel backward");
    });
  };
  // With one gradient in each bucket, a gradient that is declared ready too early travels at once and gives wrong bits.
  for (const std::size_t bucket_bytes : {std::size_t{1}, std::size_t{16} << 10}) {
    gpt::TrainerOptions options = tiny(GetParam().layout, GetParam().dtype);
    options.bucket_bytes = bucket_bytes;
    const std::vector<Trace> overlapped = train(GetParam().layout, options);
    EXPECT_EQ(divergence(overlapped, train(GetParam().layout, options)), "") << "in another run";
    options.overlap = false;
    const std::vector<Trace> plain = train(GetParam().layout, options);
    EXPECT_EQ(divergence(overlapped, plain), "") << bucket_bytes;
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

INSTANTIATE_TEST_SUITE_P(Layouts, Overlap, testing::ValuesIn(cells()), [](const auto& cell) {
  return fmt::format("{}x{}_{}", cell.param.layout.data, cell.param.layout.tensor, name(cell.param.dtype));
});

// Does not read parameters between steps, so that their gathers are still in flight when the next step begins.
std::vector<Trace> train_without_a_look(Layout layout, const gpt::TrainerOptions& options) {
  constexpr std::int64_t steps = 7;  // steps two to four measure the choice; three more use it
  std::vector<Trace> traces(static_cast<std::size_t>(layout.ranks()));
  run_threads(layout.ranks(), [&](const Communicator& world) {
    gpt::Trainer trainer(Mesh::create(world, layout.data, layout.tensor), options);
    Trace& trace = traces[static_cast<std::size_t>(world.rank())];
    const std::uint64_t since = world.ledger().next_sequence();
    for (std::int64_t step = 0; step < steps; ++step) {
      const auto [loss, norm] = trainer.step(text_of_step(options, step), 3e-3);
      trace.losses.push_back(loss);
      trace.norms.push_back(norm);
    }
    for (const auto& parameter : trainer.parameters().all()) {
      trace.parameters[parameter->name] = piece_of(*parameter, parameter->value);
    }
    trace.records = world.ledger().records(since);
  });
  return traces;
}

std::size_t gathers_of(const std::vector<Trace>& traces) {
  return static_cast<std::size_t>(std::ranges::count(traces.front().records, "parameters", &Record::tag));
}

// Any number of postponed buckets, and the measured choice, give the same bits.
TEST(Postponement, ChangesNoBit) {
  for (const auto& [layout, dtype] :
       {Cell{{2, 1}, DType::f64}, Cell{{3, 1}, DType::bf16}, Cell{{2, 2}, DType::f32}, Cell{{4, 1}, DType::f32}}) {
    gpt::TrainerOptions options = tiny(layout, dtype);
    options.bucket_bytes = std::size_t{8} << 10;
    options.postponed_buckets = 0;
    const std::vector<Trace> expected = train_without_a_look(layout, options);
    EXPECT_EQ(gathers_of(expected), 0U);
    for (const std::size_t postponed : {1, 4, 1000}) {
      options.postponed_buckets = postponed;
      const std::vector<Trace> traces = train_without_a_look(layout, options);
      EXPECT_EQ(divergence(expected, traces), "") << layout.data << "x" << layout.tensor << ", " << postponed;
      EXPECT_GE(gathers_of(traces), 4 * std::min<std::size_t>(postponed, 5));
    }
    options.postponed_buckets.reset();
    for (const bool overlap : {true, false}) {
      options.overlap = overlap;
      EXPECT_EQ(divergence(expected, train_without_a_look(layout, options)), "") << layout.data << "x" << layout.tensor;
    }
  }
}

// The link delivers the parameters later than forward needs them, so forward must wait.
TEST(Postponement, WaitsForParametersThatAreLate) {
  gpt::TrainerOptions options = tiny({2, 1}, DType::f32);
  options.postponed_buckets = 1000;
  options.overlap = false;
  const std::vector<Trace> expected = train_without_a_look({2, 1}, options);
  options.overlap = true;
  const Variable nodes("STRETTO_RANKS_PER_NODE", "1");
  const Variable links("STRETTO_LINKS", "intra=100MB/s,300us;inter=100MB/s,300us");
  const std::vector<Trace> late = train_without_a_look({2, 1}, options);
  EXPECT_EQ(divergence(expected, late), "");
  double waited = 0;
  for (const Record& record : late.front().records) waited += record.tag == "parameters" ? record.times.waited : 0;
  EXPECT_GT(waited, 0);
}

// Parameters are NaN until forward asks for them, so the loss is right only if it asks for each in time. The control: one
// parameter never arrives.
TEST(Postponement, ForwardAsksForEveryParameterBeforeItUsesIt) {
  const Layout layout{1, 2};
  run_threads(layout.ranks(), [&](const Communicator& world) {
    const gpt::TrainerOptions options = tiny(layout);
    gpt::Trainer trainer(Mesh::create(world, layout.data, layout.tensor), options);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(options.model.sequence));
    std::vector<std::int32_t> targets(tokens.size());
    text_of_step(options, 0)(0, tokens.data(), targets.data());
    const auto loss = [&](const ParametersNeeded& needed) {
      const auto batch = gpt::Batch::of(tokens, targets, options.model.sequence);
      return trainer.model().loss(batch, std::nullopt, {}, needed).loss();
    };
    const double expected = loss({});
    std::map<std::string, Tensor> values;
    for (const auto& parameter : trainer.parameters().all()) values[parameter->name] = parameter->value.clone();
    std::vector<std::string> forgotten{"", "wte.weight", "wpe.weight", "ln_f.bias"};
    for (const char* layer : {"ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"}) {
      forgotten.push_back(std::string("h.1.") + layer + ".weight");
    }
    for (const std::string& name : forgotten) {
      for (const auto& parameter : trainer.parameters().all()) {
        for (std::int64_t i = 0; i < parameter->value.size(); ++i) parameter->value.set(i, NAN);
      }
      const double found = loss([&](const Parameter& parameter) {
        if (parameter.name != name) parameter.value.copy_from(values[parameter.name]);
      });
      EXPECT_EQ(found == expected, name.empty()) << name;
    }
  });
}

// A gradient that was reported ready may travel at once, so backward must not change it again. Every parameter is reported
// once.
TEST(Backward, LeavesGradientsAloneThatAreReady) {
  const Layout layout{1, 2};
  run_threads(layout.ranks(), [&](const Communicator& world) {
    const gpt::TrainerOptions options = tiny(layout);
    gpt::Trainer trainer(Mesh::create(world, layout.data, layout.tensor), options);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(options.model.sequence));
    std::vector<std::int32_t> targets(tokens.size());
    text_of_step(options, 0)(0, tokens.data(), targets.data());
    Pieces when_ready;
    const auto batch = gpt::Batch::of(tokens, targets, options.model.sequence);
    trainer.model().loss(batch, 1.0, [&](const Parameter& parameter) {
      EXPECT_TRUE(when_ready.emplace(parameter.name, piece_of(parameter, parameter.gradient)).second) << parameter.name;
    });
    Pieces at_last;
    for (const auto& parameter : trainer.parameters().all()) {
      at_last[parameter->name] = piece_of(*parameter, parameter->gradient);
    }
    EXPECT_EQ(Comparer(equal_bits).pieces(at_last, when_ready, "the gradient of"), "");
  });
}

// The comparison sees the smallest change of a single number.
TEST(OverlapControl, FailsOnOneBit) {
  const gpt::TrainerOptions options = tiny({2, 1}, DType::f32);
  const auto nudged = train({2, 1}, options, [](gpt::Trainer& trainer) {
    const Tensor& value = trainer.parameters().all().front()->value;
    value.set(3, std::nextafter(static_cast<float>(value.at(3)), 2.0F));
  });
  EXPECT_NE(divergence(train({2, 1}, options), nudged), "");
}

TEST(Transports, UcxAndSharedMemoryGiveTheSameBits) {
  const gpt::TrainerOptions options = tiny({2, 2}, DType::f32);
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
  const gpt::TrainerOptions options = tiny({2, 1}, DType::f32);
  const int status = launch(2, [&](const Communicator& world) {
    gpt::Trainer trainer(Mesh::create(world, 2, 1), options);
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
    gpt::TrainerOptions options = tiny(layout, dtype);
    options.global_batch = 4;
    std::vector<double> losses;
    run_threads(layout.ranks(), [&](const Communicator& world) {
      gpt::Trainer trainer(Mesh::create(world, layout.data, layout.tensor), options);
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
