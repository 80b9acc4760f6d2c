// Training in f64 in pipelines of every schedule against one rank that accumulates over the same global batch. The controls
// show that each comparison can fail.
#include <gmock/gmock.h>

#include "by_hand.hpp"
#include "support/temporary_directory.hpp"
#include "support/tiers.hpp"
#include "support/variables.hpp"

namespace parity {
namespace {

constexpr const char* tied = "wte.weight";

struct PipelineCell {
  Layout layout;
  ScheduleKind schedule;
  int microbatches;
  ZeroStage zero = ZeroStage::optimizer;
  Recompute recompute = Recompute::none;
};

// Layers do not divide evenly into the parts of the model.
TrainingOptions options_of(const PipelineCell& cell) {
  TrainingOptions options = tiny(cell.layout);
  options.model.layers = cell.layout.pipeline * usual_chunks(cell.schedule) + 1;
  options.stages.schedule_name = name(cell.schedule);
  options.global_batch = std::int64_t{cell.microbatches} * cell.layout.data;
  options.sharding.zero = cell.zero;
  options.recompute.level = cell.recompute;
  options.clip_norm = 0;
  return options;
}

// The same training without a pipeline, on a layout.
TrainingOptions accumulating(TrainingOptions options) {
  options.stages = {};
  return options;
}

std::string text_of(const PipelineCell& cell) {
  return fmt::format("dp {} tp {} pp {}, {} with {} microbatches, zero {}, recompute {}", cell.layout.data,
                     cell.layout.tensor, cell.layout.pipeline, name(cell.schedule), cell.microbatches,
                     static_cast<int>(cell.zero), static_cast<int>(cell.recompute));
}

// Compares a pipeline with gradient accumulation on the same data- and tensor-parallel ranks: the first step's loss and
// gradients bit by bit. A weight's gradient takes microbatches up in their order in both. The tied table's does not: its
// gradients from the head and from the embeddings are summed apart, so that it differs by rounding, and so does all that
// comes after its first update.
std::string divergence_from_accumulation(const std::vector<Trace>& expected, const std::vector<Trace>& traces) {
  std::string text = missing(expected.front(), traces);
  for (std::size_t rank = 0; rank < traces.size(); ++rank) {
    const Trace& same = expected[rank % expected.size()];
    Comparer bits(equal_bits, Has::those_of_its_stage), rounded(1e-12, Has::those_of_its_stage);
    text += bits.values(same.losses[0], traces[rank].losses[0], 1, "loss", 0);
    Pieces gradients = traces[rank].gradients[0];
    const Pieces::node_type of_table = gradients.extract(tied);
    text += bits.pieces(same.gradients[0], gradients, "the gradient of");
    if (of_table) text += rounded.pieces(same.gradients[0], {{tied, of_table.mapped()}}, "the gradient of");
    text += compare(same, traces[rank], parity_tolerance, Has::those_of_its_stage).all();
  }
  return text;
}

TEST(PipelineBits, AreThoseOfGradientAccumulation) {
  for (const ScheduleKind schedule : all_schedule_kinds()) {
    for (const Layout layout : of_today({Layout{1, 1, 2}, {2, 1, 2}, {1, 2, 2}, {1, 1, 4}, {2, 2, 2}}, 3)) {
      for (const ZeroStage zero : {ZeroStage::none, ZeroStage::optimizer}) {
        const PipelineCell cell{layout, schedule, 8, zero};
        const TrainingOptions options = options_of(cell);
        const std::vector<Trace> expected = train({layout.data, layout.tensor}, accumulating(options));
        EXPECT_EQ(divergence_from_accumulation(expected, train(layout, options)), "") << text_of(cell);
      }
    }
  }
}

// Backwards in the other order round gradients otherwise.
TEST(PipelineBits, ControlSeesMicrobatchesInAnotherOrder) {
  const TemporaryDirectory directory;
  const PipelineCell cell{{1, 1, 2}, ScheduleKind::gpipe, 4};
  TrainingOptions options = options_of(cell);
  Schedule schedule{.name = "backwards", .stages = 2, .microbatches = 4};
  std::vector<ActionGroup> list;
  for (int i = 0; i < 4; ++i) list.push_back({{ActionKind::forward, i, 0}});
  for (int i = 4; i-- > 0;) list.push_back({{ActionKind::backward, i, 0}});
  schedule.lists = {list, list};
  options.stages.schedule_name = directory.write("schedule", to_text(with_messages(schedule)));
  const std::vector<Trace> expected = train({}, accumulating(options));
  const std::vector<Trace> traces = train(cell.layout, options);
  EXPECT_THAT(divergence_from_accumulation(expected, traces), testing::StartsWith("the gradient of"));
  for (const Trace& trace : traces) {
    EXPECT_EQ(compare(expected.front(), trace, parity_tolerance, Has::those_of_its_stage).all(), "");
  }
}

// Between nodes, tensor-parallel ranks send a share of a message's rows each, and gather them. A sequence of one token has
// fewer rows than ranks.
TEST(PipelineBits, AreTheSameBetweenNodes) {
  const Layout layout{1, 2, 2};
  for (const ScheduleKind schedule : {ScheduleKind::one_forward_one_backward, ScheduleKind::interleaved}) {
    for (const bool overlap : {true, false}) {
      for (const std::int64_t sequence : {48, 1}) {
        TrainingOptions options = options_of({layout, schedule, 4});
        options.sharding.overlap = overlap;
        options.model.sequence = sequence;
        const auto gathers = [](const Trace& trace) {
          return std::ranges::count(trace.records, "scattered messages", &Record::tag);
        };
        const std::vector<Trace> in_a_node = train(layout, options);
        const Variable nodes("STRETTO_RANKS_PER_NODE", "2");
        const std::vector<Trace> between = train(layout, options);
        EXPECT_EQ(divergence(in_a_node, between), "")
            << name(schedule) << ", " << sequence << " tokens, overlap " << overlap;
        for (std::size_t rank = 0; rank < between.size(); ++rank) {
          EXPECT_EQ(gathers(in_a_node[rank]), 0);
          EXPECT_GT(gathers(between[rank]), 0);
        }
      }
    }
  }
}

class PipelineControls : public testing::Test {
 protected:
  static Comparison with(ScheduleKind schedule, const Fault& fault) {
    const PipelineCell cell{{1, 1, 2}, schedule, 4};
    const TrainingOptions options = options_of(cell);
    const Trace& expected = of_one_rank(options);
    std::vector<Comparison> results(2);
    run_threads(2, [&](const Communicator& world) {
      results[static_cast<std::size_t>(world.rank())] =
          compare(expected, train_by_hand(world, cell.layout, options, fault), parity_tolerance, Has::those_of_its_stage);
    });
    results[0].gradient += results[1].gradient;
    return results[0];
  }
};

TEST_F(PipelineControls, PassWithoutAFault) {
  EXPECT_EQ(with(ScheduleKind::one_forward_one_backward, {}).all(), "");
  EXPECT_EQ(with(ScheduleKind::zb_h1, {}).all(), "");
}

TEST_F(PipelineControls, FailWithoutAParameterOnAnyRank) {
  const PipelineCell cell{{1, 1, 2}, ScheduleKind::gpipe, 2};
  const TrainingOptions options = options_of(cell);
  const Trace& expected = of_one_rank(options);
  std::vector<Trace> traces = train(cell.layout, options);
  EXPECT_EQ(missing(expected, traces), "");
  traces[1].gradients[2].erase("ln_f.bias");
  EXPECT_EQ(missing(expected, traces), "no rank has the gradient of ln_f.bias in step 2");
  traces[0].parameters.erase("h.0.mlp.c_fc.weight");
  EXPECT_EQ(missing(expected, traces), "no rank has h.0.mlp.c_fc.weight");
  EXPECT_THAT(compare(expected, traces[0], parity_tolerance).all(), testing::HasSubstr("are not as many"));
}

TEST_F(PipelineControls, FailWithoutTheSumOfTheTiedGradient) {
  const Comparison comparison = with(ScheduleKind::one_forward_one_backward, {.in_records = [](Parameters& parameters) {
                                       for (const auto& parameter : parameters.all()) {
                                         if (parameter->name == tied) leave_out_of_sum(*parameter, Axis::pipeline);
                                       }
                                     }});
  EXPECT_THAT(comparison.gradient, testing::HasSubstr(tied));
  EXPECT_NE(comparison.norm, "");
}

TEST_F(PipelineControls, FailWithAWeightGradientLeftOut) {
  const Comparison comparison =
      with(ScheduleKind::zb_h1, {.in_stage = [](PipelineStage& stage, const Action& action, Tensor input) {
             if (action.kind == ActionKind::backward_weight && action.microbatch == 2) return Tensor();
             return stage.compute(action, std::move(input));
           }});
  EXPECT_THAT(comparison.gradient, testing::HasSubstr("h.0."));
}

TEST_F(PipelineControls, FailWithAMessageOfAnotherMicrobatch) {
  const Comparison comparison = with(ScheduleKind::one_forward_one_backward, {.in_stage = with_message_of_another});
  EXPECT_NE(comparison.loss, "");
  EXPECT_NE(comparison.gradient, "");
}

}  // namespace
}  // namespace parity
