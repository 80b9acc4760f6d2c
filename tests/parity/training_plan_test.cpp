// What training_plan says before training, beside what training then does.
#include "training_plan.hpp"

#include <gmock/gmock.h>

#include "parity.hpp"

namespace parity {
namespace {

// Of 7.5 billion parameters on 64 ranks, each keeps 120, 31.4, 16.6 and 1.9 GB in bf16 (Rajbhandari et al. 2020, figure 1).
TEST(TrainingPlan, SaysWhatThePaperOfZeroSays) {
  gpt::TrainerOptions options;
  options.model = {.layers = 37, .hidden = 4096, .heads = 32, .sequence = 1024, .vocabulary = 10924};
  options.sharding.dtype = DType::bf16;
  options.sharding.gradient_dtype = DType::bf16;
  options.global_batch = 64 * options.micro_batch;
  std::vector<double> gigabytes;
  for (const ZeroStage stage : zero_stages) {
    options.sharding.zero = stage;
    const gpt::TrainingPlan plan = gpt::plan_training(options, {.data = 64});
    EXPECT_NEAR(static_cast<double>(plan.parameters), 7.5e9, 1e6);
    gigabytes.push_back(1e-9 * static_cast<double>(plan.memory.values + plan.memory.gradients + plan.memory.optimizer));
    EXPECT_THAT(gpt::memory_table(plan.memory), testing::HasSubstr(fmt::format("model state {:.1f} GB", gigabytes.back())));
  }
  EXPECT_THAT(gigabytes, testing::Pointwise(testing::DoubleNear(0.05), {120.0, 31.4, 16.64, 1.88}));
}

// The bytes that a rank sends in a step, by group; "dp parameters" counts as "dp". Without norm and loss.
std::map<std::string, std::int64_t> sent_by(const std::vector<Trace>& traces) {
  std::map<std::string, std::int64_t> sent;
  for (const Trace& trace : traces) {
    for (const Record& record : trace.records) {
      if (record.tag == "gradient norm" || record.tag == "loss") continue;
      const std::string group = record.group.substr(0, record.group.find(' '));
      sent[group] += static_cast<std::int64_t>(record.bytes_sent);
    }
  }
  for (auto& entry : sent) entry.second /= static_cast<std::int64_t>(traces.size());
  return sent;
}

TEST(TrainingPlan, TellsTheBytesThatAStepSends) {
  const Variable ring("STRETTO_ALGO", "all_reduce:ring;reduce_scatter:ring;all_gather:ring");
  for (const Layout layout : {Layout{2, 1}, {4, 1}, {1, 2}, {2, 2}}) {
    for (const ZeroStage stage : zero_stages) {
      gpt::TrainerOptions options = tiny(layout, DType::f32);
      options.model.vocabulary = 64;  // even shares
      options.sharding.zero = stage;
      options.sharding.measured_steps = 0;
      options.recompute = {.level = Recompute::full, .partition = layout.tensor > 1};
      const std::map<std::string, std::int64_t> plan =
          gpt::plan_training(options, {.tensor = layout.tensor, .data = layout.data}).sent;
      std::map<std::string, std::int64_t> sent = sent_by(train(layout, options));
      if (stage == ZeroStage::values && layout.data > 1) {  // an estimate
        EXPECT_NEAR(static_cast<double>(sent["dp"]) / static_cast<double>(plan.at("dp")), 1, 0.15);
        sent["dp"] = plan.at("dp");
      }
      EXPECT_EQ(sent, plan) << layout.data << "x" << layout.tensor << ", stage " << static_cast<int>(stage);
    }
  }
}

// bf16 values, gradients in f32 or bf16, and no even shares. A ring would send partial sums of bf16 in f32.
TEST(TrainingPlan, TellsTheBytesOfOtherTypes) {
  const Variable direct("STRETTO_ALGO", "reduce_scatter:direct;all_gather:ring");
  const Layout layout{4, 1};
  for (const bool narrow : {false, true}) {
    for (const ZeroStage stage : {ZeroStage::none, ZeroStage::optimizer, ZeroStage::gradients}) {
      gpt::TrainerOptions options = tiny(layout, DType::bf16);
      options.sharding.zero = stage;
      options.sharding.measured_steps = 0;
      if (narrow) options.sharding.gradient_dtype = DType::bf16;
      EXPECT_EQ(sent_by(train(layout, options)), gpt::plan_training(options, {.data = 4}).sent) << static_cast<int>(stage);
    }
  }
}

TEST(TrainingPlan, CountsSecondCopiesAndQuantizedBytes) {
  gpt::TrainerOptions options = tiny({4, 1}, DType::bf16);
  options.sharding.zero = ZeroStage::values;
  const gpt::TrainingPlan plain = gpt::plan_training(options, {.data = 4});
  options.sharding.hpz_size = 2;
  const gpt::TrainingPlan second = gpt::plan_training(options, {.data = 4});
  EXPECT_EQ(second.memory.values, 3 * plain.memory.values);  // a quarter, and half
  EXPECT_EQ(plain.sent.count("hpz"), 0U);
  EXPECT_LT(second.sent.at("dp"), plain.sent.at("dp"));
  options.sharding.qgz = QuantizedFormat::int4;
  EXPECT_LT(gpt::plan_training(options, {.data = 4}).sent.at("dp"), second.sent.at("dp"));
}

}  // namespace
}  // namespace parity
