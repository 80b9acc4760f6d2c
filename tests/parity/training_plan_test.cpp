// What training_plan says before training, beside what training then does.
#include "apps/train/report/training_plan.hpp"

#include <gmock/gmock.h>

#include "parity.hpp"
#include "support/tiers.hpp"
#include "support/variables.hpp"
#include "traffic.hpp"

namespace parity {
namespace {

// Of 7.5 billion parameters on 64 ranks, each keeps 120, 31.4, 16.6 and 1.9 GB in bf16 (Rajbhandari et al. 2020, figure 1).
TEST(TrainingPlan, SaysWhatThePaperOfZeroSays) {
  TrainingOptions options;
  options.model = {.layers = 37, .hidden = 4096, .heads = 32, .sequence = 1024, .vocabulary = 10924};
  options.sharding.dtype = DType::bf16;
  options.sharding.gradient_dtype = DType::bf16;
  options.global_batch = 64 * options.micro_batch;
  std::vector<double> gigabytes;
  for (const ZeroStage stage : zero_stages) {
    options.sharding.zero = stage;
    const apps::TrainingPlan plan = apps::plan_training(options.on({{Axis::data, 64}}));
    const TrainingMemory& memory = plan.stages.front().memory;
    EXPECT_NEAR(static_cast<double>(plan.parameters), 7.5e9, 1e6);
    gigabytes.push_back(1e-9 * static_cast<double>(memory.values + memory.gradients + memory.optimizer));
    EXPECT_THAT(apps::memory_table(plan),
                testing::HasSubstr(fmt::format("model state {:.2f} GiB", gigabytes.back() * 1e9 / (1 << 30))));
  }
  EXPECT_THAT(gigabytes, testing::Pointwise(testing::DoubleNear(0.05), {120.0, 31.4, 16.64, 1.88}));
}

// Each stage of a model has the records of all of it, as many elements as the formula says.
TEST(TrainingPlan, CountsTheModelsParameters) {
  for (const std::int64_t kv_heads : {4, 2, 1}) {
    const DecoderShape shape{.layers = 5, .hidden = 12, .heads = 4, .sequence = 8, .vocabulary = 17, .kv_heads = kv_heads};
    for (int stage = 0; stage < 3; ++stage) {
      Parameters parameters;
      const Decoder model(parameters, shape, TensorParallel{}, {}, ModelCut{{2, 1, 1, 1}, {0, 1, 2, 0}, stage});
      EXPECT_EQ(parameters.global_elements(), parameters_of(shape));
    }
  }
}

StagePlan planned(const TrainingOptions& options, Layout layout) {
  return apps::plan_training(options.on(layout.mesh())).stages.front();
}

TEST(TrainingPlan, TellsTheBytesThatAStepSends) {
  const Variable ring("STRETTO_ALGO", "all_reduce:ring;reduce_scatter:ring;all_gather:ring");
  for (const Layout layout : of_today({Layout{2, 1}, {4, 1}, {1, 2}, {2, 2}}, 3)) {
    for (const ZeroStage stage : zero_stages) {
      TrainingOptions options = tiny(layout, DType::f32);
      options.model.vocabulary = 64;  // even shares
      options.sharding.zero = stage;
      options.sharding.measured_steps = 0;
      options.recompute = {.level = Recompute::full, .partition = layout.tensor > 1};
      const std::map<std::string, std::int64_t> plan = planned(options, layout).sent;
      std::map<std::string, std::int64_t> sent = sent_by(train(layout, options));
      if (stage == ZeroStage::values && layout.data > 1) {  // an estimate
        EXPECT_NEAR(static_cast<double>(sent["dp"]) / static_cast<double>(plan.at("dp")), 1, 0.15);
        sent["dp"] = plan.at("dp");
      }
      EXPECT_EQ(sent, plan) << layout.data << "x" << layout.tensor << ", stage " << static_cast<int>(stage);
    }
  }
}

// Of the steps in which something else travels than sums of gradients. The control: the step before.
TEST(TrainingPlan, TellsTheBytesOfMethodsForSlowLinks) {
  const Variable ring("STRETTO_ALGO", "all_reduce:ring;reduce_scatter:ring;all_gather:ring");
  for (const Layout layout : of_today({Layout{2, 1}, {4, 1}, {2, 2}}, 3)) {
    for (const ZeroStage stage : {ZeroStage::none, ZeroStage::optimizer, ZeroStage::gradients}) {
      for (const std::string method : {"onebit", "demo", "powersgd"}) {
        TrainingOptions options = tiny(layout, DType::f32);
        options.model.vocabulary = 64;
        options.sharding.zero = stage;
        if (method == "onebit") options.optimizer = OneBitAdam::Options{.freeze_step = 1};
        if (method == "demo") options.optimizer = DeMo::Options{.compression_chunk = 16, .compression_topk = 4};
        if (method == "powersgd") options.sharding.powersgd.rank = 2;
        const auto plan = static_cast<double>(planned(options, layout).sent.at("dp"));
        const auto sent = static_cast<double>(sent_by({train(layout, options).front()}).at("dp"));
        if (method == "onebit") {
          EXPECT_THAT(apps::traffic_table(apps::plan_training(options.on(layout.mesh()))),
                      testing::StartsWith("Sent by a rank in a step after the freeze of the variance by formula: dp "));
        }
        EXPECT_NEAR(sent / plan, 1, 0.01) << layout.data << "x" << layout.tensor << ", stage " << static_cast<int>(stage);
        options.optimizer = AdamW::Options{};
        options.sharding.powersgd = {};
        EXPECT_GT(static_cast<double>(planned(options, layout).sent.at("dp")), 1.3 * plan);
      }
    }
  }
}

// Of a rank of every stage: messages go forwards and backwards, and the table lies at both ends.
TEST(TrainingPlan, TellsTheBytesOfAPipeline) {
  const Variable ring("STRETTO_ALGO", "all_reduce:ring;reduce_scatter:ring;all_gather:ring");
  for (const Layout layout : of_today({Layout{2, 1, 2}, {1, 1, 2}, {1, 2, 2}, {2, 1, 3}, {1, 1, 3}})) {
    for (const ScheduleKind schedule : of_today(
             {ScheduleKind::one_forward_one_backward, ScheduleKind::interleaved, ScheduleKind::zb_h1, ScheduleKind::zb_v},
             3)) {
      for (const ZeroStage stage : zero_stages) {
        TrainingOptions options = tiny(layout, DType::f32);
        options.model.vocabulary = 64;
        options.model.layers = 6;
        options.global_batch = 6L * layout.data;
        options.sharding.zero = stage;
        options.sharding.measured_steps = 0;
        options.stages.schedule_name = name(schedule);
        const apps::TrainingPlan plan = apps::plan_training(options.on(layout.mesh()));
        const std::vector<Trace> traces = train(layout, options);
        ASSERT_EQ(plan.stages.size(), static_cast<std::size_t>(layout.pipeline));
        for (std::size_t number = 0; number < plan.stages.size(); ++number) {
          std::map<std::string, std::int64_t> sent = sent_by({traces[number * traces.size() / plan.stages.size()]});
          std::map<std::string, std::int64_t> its = plan.stages[number].sent;
          const bool splits = schedule == ScheduleKind::zb_h1 || schedule == ScheduleKind::zb_v;
          const bool estimated = splits && stage >= ZeroStage::gradients && layout.data > 1;
          if (estimated) {
            EXPECT_NEAR(static_cast<double>(sent["dp"]) / static_cast<double>(its.at("dp")), 1, 0.1);
            its["dp"] = sent["dp"];
          }
          EXPECT_EQ(sent, its) << name(schedule) << " " << layout.data << "x" << layout.tensor << "x" << layout.pipeline
                               << ", ZeRO " << static_cast<int>(stage) << ", stage " << number;
        }
      }
    }
  }
}

// The stage with the head has most logits, the first one most microbatches.
TEST(TrainingPlan, NamesTheStagesThatNeedAndSendMost) {
  const Layout layout{2, 1, 3};
  TrainingOptions options = tiny(layout);
  options.model.layers = 6;
  options.global_batch = 6L * layout.data;
  const auto stage_of_most = [&](std::int64_t vocabulary) {
    options.model.vocabulary = vocabulary;
    return apps::plan_training(options.on(layout.mesh())).needs_most_memory();
  };
  EXPECT_EQ(stage_of_most(8), 0U);
  EXPECT_EQ(stage_of_most(4000), 2U);
  const apps::TrainingPlan plan = apps::plan_training(options.on(layout.mesh()));
  EXPECT_THAT(apps::memory_table(plan),
              testing::StartsWith("Memory of a rank of stage 2, which needs most, by formula: values "));
  for (const StagePlan& stage : plan.stages) EXPECT_LE(stage.all_sent(), plan.stages[plan.sends_most()].all_sent());
  EXPECT_THAT(apps::traffic_table(plan), testing::StartsWith(fmt::format(
                                             "Sent by a rank of stage {}, which sends most, in a step", plan.sends_most())));
}

// What own rows cost: gathers, again in backward unless they are kept, in halves and with recomputation; and in a pipeline
// smaller messages.
TEST(TrainingPlan, TellsTheBytesOfOwnRows) {
  const Variable ring("STRETTO_ALGO", "all_reduce:ring;reduce_scatter:ring;all_gather:ring");
  for (const Layout layout : of_today({Layout{1, 2}, {2, 2}, {1, 4}, {1, 2, 2}, {2, 2, 2}}, 3)) {
    for (const char* schedule : {"1f1b", "zb-h1"}) {
      if (layout.pipeline == 1 && schedule[0] == 'z') continue;
      for (const Recompute level : {Recompute::none, Recompute::full}) {
        for (const bool keeps : {false, true}) {
          TrainingOptions options = tiny(layout, DType::f32);
          options.model.vocabulary = 64;
          options.model.layers = 4;
          options.global_batch = 4L * layout.data;
          options.sharding.measured_steps = 0;
          options.divides_rows = true;
          options.keeps_gathered = keeps;
          options.recompute.level = level;
          options.stages.schedule_name = schedule;
          EXPECT_EQ(sent_by({train(layout, options).front()}), planned(options, layout).sent)
              << schedule << " " << layout.data << "x" << layout.tensor << "x" << layout.pipeline << ", recompute "
              << static_cast<int>(level) << (keeps ? ", kept" : "");
        }
      }
    }
  }
}

// Korthikanti et al. (2022), table 2: 34 s b h / t bytes in 16 bits, of which 2 are dropout's masks, and statistics.
TEST(TrainingPlan, KeepsWhatThePaperOfSequenceParallelismSays) {
  constexpr std::int64_t b = 2, s = 512, h = 256, a = 8;
  const DecoderShape shape{.hidden = h, .heads = a};
  const auto kept = [&](const TensorParallel& tensor_parallel, Recompute level) {
    return decoder_cost(shape, tensor_parallel, {.level = level}, {.count = b * s, .dtype = DType::bf16}).block.kept;
  };
  for (const int t : {1, 2, 4, 8}) {
    const std::int64_t sbh = s * b * h, statistics = 16 * s * b, scores = 4 * s * b * a;
    const TensorParallel whole{.planned_ranks = t};
    const TensorParallel own{.planned_ranks = t, .divides_rows = true};
    const TensorParallel keeps{.planned_ranks = t, .divides_rows = true, .keeps_gathered = true};
    EXPECT_EQ(kept(own, Recompute::none), (32 * sbh + statistics + scores) / t);
    EXPECT_EQ(kept(own, Recompute::selective), (20 * sbh + statistics + scores) / t);
    EXPECT_EQ(kept(own, Recompute::full), 2 * sbh / t);
    EXPECT_EQ(kept(keeps, Recompute::none), 4 * sbh + (28 * sbh + statistics + scores) / t);
    EXPECT_EQ(kept(whole, Recompute::none), 8 * sbh + statistics + (24 * sbh + scores) / t);
  }
}

// Attention over divided sequences: rank 0's, where all hops are made and where a mask leaves some out.
TEST(TrainingPlan, TellsTheBytesOfDividedSequences) {
  const Variable ring("STRETTO_ALGO", "all_reduce:ring;reduce_scatter:ring;all_gather:ring");
  for (const Layout layout : of_today({Layout{.ring = 2}, {.ulysses = 2}, {.ring = 2, .ulysses = 2}, {.ring = 4}}, 3)) {
    for (const char* mask : {"dense", "window:5"}) {
      for (const Recompute level : {Recompute::none, Recompute::full}) {
        TrainingOptions options = tiny(layout, DType::f32);
        options.model.vocabulary = 64;
        options.model.sequence = 64;
        options.sharding.zero = ZeroStage::optimizer;
        options.mask = attention_mask_from_text(mask);
        options.sequence_layout = SequenceLayout::contiguous;
        options.recompute.level = level;
        EXPECT_EQ(sent_by({train(layout, options).front()}), planned(options, layout).sent)
            << "ring " << layout.ring << ", ulysses " << layout.ulysses << ", " << mask;
      }
    }
  }
}

// bf16 values, gradients in f32 or bf16, and no even shares. A ring would send partial sums of bf16 in f32.
TEST(TrainingPlan, TellsTheBytesOfOtherTypes) {
  const Variable direct("STRETTO_ALGO", "reduce_scatter:direct;all_gather:ring");
  const Layout layout{4, 1};
  for (const bool narrow : {false, true}) {
    for (const ZeroStage stage : {ZeroStage::none, ZeroStage::optimizer, ZeroStage::gradients}) {
      TrainingOptions options = tiny(layout, DType::bf16);
      options.sharding.zero = stage;
      options.sharding.measured_steps = 0;
      if (narrow) options.sharding.gradient_dtype = DType::bf16;
      EXPECT_EQ(sent_by(train(layout, options)), planned(options, layout).sent) << static_cast<int>(stage);
    }
  }
}

TEST(TrainingPlan, CountsSecondCopiesAndQuantizedBytes) {
  const Layout layout{4, 1};
  TrainingOptions options = tiny(layout, DType::bf16);
  options.sharding.zero = ZeroStage::values;
  const StagePlan plain = planned(options, layout);
  options.sharding.hpz_size = 2;
  const StagePlan second = planned(options, layout);
  EXPECT_EQ(second.memory.values, 3 * plain.memory.values);  // a quarter, and half
  EXPECT_EQ(plain.sent.count("hpz"), 0U);
  EXPECT_LT(second.sent.at("dp"), plain.sent.at("dp"));
  options.sharding.qgz = QuantizedFormat::int4;
  EXPECT_LT(planned(options, layout).sent.at("dp"), second.sent.at("dp"));
}

}  // namespace
}  // namespace parity
