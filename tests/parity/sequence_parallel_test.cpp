// Training in f64 with own rows between layers (--sp) against one rank, with everything that it goes together with, and what
// it sends and keeps. The controls show that each comparison can fail.
#include <gmock/gmock.h>

#include "apps/train/run/sampling.hpp"
#include "by_hand.hpp"
#include "support/error.hpp"
#include "support/tiers.hpp"

namespace parity {
namespace {

struct RowsCell {
  Layout layout;
  ZeroStage zero = ZeroStage::optimizer;
  Recompute recompute = Recompute::none;
  ScheduleKind schedule = ScheduleKind::one_forward_one_backward;
  bool keeps_gathered = false;
};

TrainingOptions options_of(const RowsCell& cell, DType dtype = DType::f64) {
  TrainingOptions options = tiny(cell.layout, dtype);
  options.divides_rows = true;
  options.keeps_gathered = cell.keeps_gathered;
  options.sharding.zero = cell.zero;
  options.recompute.level = cell.recompute;
  if (cell.layout.pipeline > 1) {
    const int chunks = cell.schedule == ScheduleKind::interleaved || cell.schedule == ScheduleKind::zb_v ? 2 : 1;
    options.model.layers = cell.layout.pipeline * chunks + 1;
    options.stages = {.schedule_name = name(cell.schedule), .virtual_stages = chunks};
    options.global_batch = std::int64_t{cell.layout.pipeline} * 2 * cell.layout.data;
  }
  return options;
}

std::string text_of(const RowsCell& cell) {
  return fmt::format("dp {} tp {} pp {} {}, zero {}, recompute {}{}", cell.layout.data, cell.layout.tensor,
                     cell.layout.pipeline, name(cell.schedule), static_cast<int>(cell.zero),
                     static_cast<int>(cell.recompute), cell.keeps_gathered ? ", kept" : "");
}

std::vector<RowsCell> cells_for_bits() {
  return {{{1, 2}}, {{2, 2}, ZeroStage::values}, {{1, 5}}, {{1, 2, 2}, ZeroStage::none, {}, ScheduleKind::zb_h1}};
}

// Neither overlap, nor what is kept, nor what is computed again changes a bit, in any type.
TEST(OwnRowsBits, DoNotDependOnOverlapAndMemory) {
  for (const DType dtype : of_today({DType::f64, DType::bf16, DType::f16}, 3)) {
    for (const RowsCell& cell : of_today(cells_for_bits())) {
      TrainingOptions options = options_of(cell, dtype);
      if (dtype != DType::f64) options.sharding.gradient_dtype = dtype;
      const std::vector<Trace> expected = train(cell.layout, options);
      EXPECT_EQ(divergence(expected, train(cell.layout, options)), "") << text_of(cell) << " in another run";
      const auto same = [&](const char* what, const auto& change) {
        TrainingOptions other = options;
        change(other);
        EXPECT_EQ(divergence(expected, train(cell.layout, other)), "") << text_of(cell) << ", " << what;
      };
      same("kept", [](TrainingOptions& other) { other.keeps_gathered = true; });
      same("selective", [](TrainingOptions& other) { other.recompute.level = Recompute::selective; });
      same("full", [](TrainingOptions& other) { other.recompute.level = Recompute::full; });
      options.sharding.overlap = false;
      const std::vector<Trace> plain = train(cell.layout, options);
      EXPECT_EQ(divergence(expected, plain), "") << text_of(cell) << " without overlap";
      const auto on_the_stream = [](const std::vector<Trace>& traces) {
        return std::ranges::count(traces.front().records, "tp", &Record::stream);
      };
      EXPECT_GT(on_the_stream(expected), 0) << "the control";
      EXPECT_EQ(on_the_stream(plain), 0);
      options.seed = 5;
      EXPECT_NE(divergence(expected, train(cell.layout, options)), "") << "the control";
    }
  }
}

// Text whose first rows are fewer than the ranks.
TEST(OwnRows, MayBeNone) {
  const auto text_of_ranks = [](int tensor, int pipeline) {
    TrainingOptions options = tiny({1, 4});
    options.model.vocabulary = 256;
    options.divides_rows = tensor > 1;
    std::vector<std::string> texts(static_cast<std::size_t>(tensor * pipeline));
    run_threads(tensor * pipeline, [&](const Communicator& world) {
      Trainer trainer(Mesh(world, {{Axis::tensor, tensor}, {Axis::pipeline, pipeline}}), options);
      texts[static_cast<std::size_t>(world.rank())] = apps::sample(trainer, "", {.length = 12, .temperature = 1, .seed = 5});
    });
    EXPECT_EQ(std::ranges::count(texts, texts.front()), tensor * pipeline);
    return texts.front();
  };
  const std::string expected = text_of_ranks(1, 1);
  EXPECT_EQ(text_of_ranks(4, 1), expected);
  EXPECT_EQ(text_of_ranks(4, 2), expected);
}

// The bytes that all ranks send in a step's operations of these names.
std::int64_t bytes_of(const std::vector<Trace>& traces, const std::vector<std::string>& tags) {
  std::int64_t bytes = 0;
  for (const Trace& trace : traces) {
    for (const Record& record : trace.records) {
      if (std::ranges::count(tags, record.tag) > 0) bytes += static_cast<std::int64_t>(record.bytes_sent);
    }
  }
  return bytes;
}

// Per layer and microbatch 8 b s h (t-1)/t elements, with and without own rows; two more for what is gathered again. The
// head gathers and sums as a layer does.
TEST(OwnRowsTraffic, IsThatOfTensorParallelism) {
  for (const int tensor : {2, 4, 5}) {
    RowsCell cell{{1, tensor}};
    TrainingOptions options = options_of(cell);
    const std::int64_t row_bytes = options.micro_batch * options.model.sequence * options.model.hidden * 8;
    const std::int64_t microbatches = options.global_batch / options.micro_batch;
    const auto times = [&](std::int64_t of_a_layer, std::int64_t of_the_ends) {  // over all t ranks
      return (of_a_layer * options.model.layers + of_the_ends) * microbatches * row_bytes * (tensor - 1);
    };
    const std::vector<std::string> tags = {"column-parallel forward",  "row-parallel forward",  "row-parallel backward",
                                           "column-parallel backward", "column-parallel input", "row-parallel gradient"};
    EXPECT_EQ(bytes_of(train(cell.layout, options), tags), times(10, 3));
    options.keeps_gathered = true;
    const std::vector<Trace> kept = train(cell.layout, options);
    EXPECT_EQ(bytes_of(kept, tags), times(8, 2));
    EXPECT_EQ(bytes_of(kept, {"embedding forward", "embedding backward"}), times(0, 2));
    options.divides_rows = options.keeps_gathered = false;
    EXPECT_EQ(bytes_of(train(cell.layout, options), tags), times(8, 2));  // of the head: one sum in backward
    EXPECT_NE(bytes_of(kept, {tags.front()}), times(8, 2)) << "the control";
  }
}

class OwnRowsControls : public testing::TestWithParam<ZeroStage> {
 protected:
  static Comparison with(const Fault& fault) {
    const RowsCell cell{{2, 2}, GetParam()};
    TrainingOptions options = options_of(cell);
    options.clip_norm = 0;
    TrainingOptions one = options;
    one.divides_rows = one.keeps_gathered = false;
    one.sharding.zero = ZeroStage::none;
    const Trace expected = train({}, one).front();
    return with_fault(cell.layout, options, expected, fault, has_of(cell.layout));
  }
};

TEST_P(OwnRowsControls, PassWithoutAFault) { EXPECT_EQ(with({}).all(), ""); }

// What computes from own rows alone: a norm, the bias of a row-parallel layer, and the positions.
TEST_P(OwnRowsControls, FailWithoutTheSumOverTensorRanks) {
  for (const char* const name : {"h.1.ln_2.weight", "ln_f.bias", "h.0.mlp.c_proj.bias", "wpe.weight"}) {
    const Comparison comparison = with({.in_records = [&](Parameters& parameters) {
      for (const auto& parameter : parameters.all()) {
        if (parameter->name != name) continue;
        EXPECT_TRUE(parameter->sum_gradient_over.contains(Axis::tensor)) << name;
        leave_out_of_sum(*parameter, Axis::tensor);
      }
    }});
    EXPECT_THAT(comparison.gradient, testing::HasSubstr(name));
    EXPECT_NE(comparison.norm, "") << name;
    EXPECT_NE(comparison.parameter, "") << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, OwnRowsControls, testing::ValuesIn(zero_stages),
                         [](const auto& stage) { return fmt::format("zero{}", static_cast<int>(stage.param)); });

// A microbatch's activations in the next part's hands are those of another rank's rows.
TEST(OwnRowsControl, FailsWithTheRowsOfAnotherRank) {
  const RowsCell cell{{1, 2, 2}};
  TrainingOptions options = options_of(cell);
  options.clip_norm = 0;
  TrainingOptions one = options;
  one.stages = {};
  one.divides_rows = one.keeps_gathered = false;
  const Trace expected = train({}, one).front();
  run_threads(cell.layout.ranks(), [&](const Communicator& world) {
    const int neighbour = world.rank() ^ 1;
    const Fault fault{.in_stage = [&](PipelineStage& stage, const Action& action, Tensor input) {
      if (action.kind == ActionKind::forward && input) {
        const Tensor mine = input.clone();
        world
            .send_recv(mine.raw(), mine.size(), neighbour, input.raw(), input.size(), neighbour, mine.dtype(),
                       Stream::inline_())
            .wait();
      }
      return stage.compute(action, std::move(input));
    }};
    const Comparison comparison =
        compare(expected, train_by_hand(world, cell.layout, options, fault), parity_tolerance, has_of(cell.layout));
    EXPECT_NE(comparison.loss, "");
    EXPECT_NE(comparison.gradient, "");
  });
}

TEST(OwnRowsOptions, SayWhatDoesNotGoTogether) {
  const auto sentence = [](int tensor, const std::function<void(TrainingOptions&)>& change) {
    TrainingOptions options = tiny({1, tensor});
    options.divides_rows = true;
    change(options);
    return sentence_of([&] { options.on({{Axis::tensor, tensor}}).check(); });
  };
  EXPECT_EQ(sentence(2, [](TrainingOptions&) {}), "");
  EXPECT_THAT(sentence(1, [](TrainingOptions&) {}), testing::HasSubstr("this group has 1"));
  EXPECT_THAT(sentence(2, [](TrainingOptions& options) { options.divides_rows = false, options.keeps_gathered = true; }),
              testing::HasSubstr("divides rows; divide them"));
  EXPECT_THAT(
      sentence(2, [](TrainingOptions& options) { options.recompute = {.level = Recompute::full, .partition = true}; }),
      testing::HasSubstr("already"));
  EXPECT_THAT(sentence(2,
                       [](TrainingOptions& options) {
                         options.keeps_gathered = true;
                         options.recompute.level = Recompute::selective;
                       }),
              testing::HasSubstr("choose one"));
}

}  // namespace
}  // namespace parity
