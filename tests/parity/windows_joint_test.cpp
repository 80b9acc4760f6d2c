// Stages that update together without a flush: a tied table has one gradient of both ends, all clip by the norm of all, and
// all leave out the updates of the same steps. Weights have the bits of a loop at delay 1.
#include <gmock/gmock.h>

#include "stretto/planning/stage_plan.hpp"
#include "support/tiers.hpp"
#include "window_loop.hpp"

namespace parity {
namespace {

constexpr std::int64_t joint_steps = 6;

// A rank's gradient of a step is infinite on the last stage. There, the first microbatch of a step begins when the gradients
// of the step before lie aside.
struct Overflow {
  std::vector<std::int64_t> steps = {};

  bool is_of(const Trainer& trainer, std::int64_t step) const {
    const Mesh& mesh = trainer.mesh();
    return mesh.rank(Axis::pipeline) + 1 == mesh.size(Axis::pipeline) && std::ranges::find(steps, step) != steps.end();
  }
  static void happen(const Trainer& trainer) {
    const auto& all = trainer.parameters().all();
    const auto added = std::ranges::find_if(
        all, [](const auto& each) { return each->is_here && !each->overwrites_gradient && !each->name.starts_with("wte"); });
    (*added)->gradient.set(0, std::numeric_limits<double>::infinity());
  }
};

// NaN and infinity alike, so that equal vectors compare equal.
double finite_or_0(double norm) { return std::isfinite(norm) ? norm : 0; }

struct JointResult {
  Pieces weights;
  std::vector<double> norms, scales;
  std::vector<bool> updated;
  double last_scale = 0;
};

JointResult run_jointly(const Mesh& mesh, const TrainingOptions& options, const Overflow& overflow) {
  Trainer trainer(mesh, options);
  EXPECT_EQ(trainer.pipeline().schedule().name, "2bw-joint");
  JointResult result;
  trainer.run({.count = joint_steps,
               .fill_of =
                   [&](std::int64_t step) {
                     if (overflow.is_of(trainer, step)) Overflow::happen(trainer);
                     return text_of_step(options, step);
                   },
               .lr_of = [](std::int64_t) { return window_lr; },
               .done =
                   [&](std::int64_t step, const StepResult& its) {
                     EXPECT_EQ(step, std::ssize(result.norms));
                     result.norms.push_back(finite_or_0(its.gradient_norm));
                     result.scales.push_back(its.loss_scale);
                     result.updated.push_back(its.updated);
                   }});
  EXPECT_FALSE(trainer.sharded().has_late());
  result.weights = pieces_of(trainer, trainer.sharded().whole_values());
  result.last_scale = trainer.loss_scale().value();
  return result;
}

struct JointFaults {
  bool stages_decide_alone = false;  // by the norms of their own gradients
  bool mixed_ages = false;           // the last stage reads the latest version, as under PipeDream
  bool scale_of_step_before = false;
};

JointResult by_joint_loop(Trainer& trainer, const TrainingOptions& options, const Overflow& overflow,
                          const JointFaults& faults) {
  const Mesh& mesh = trainer.mesh();
  const int stages = mesh.size(Axis::pipeline);
  const bool is_last = mesh.rank(Axis::pipeline) + 1 == stages;
  const std::int64_t lacks = stages > 1 && !(faults.mixed_ages && is_last) ? 1 : 0;
  const std::int64_t late = stages > 1 && !faults.scale_of_step_before ? 1 : 0;
  JointResult result;
  std::vector<double> norms;
  std::vector<WeightsOfRank> versions = {weights_of(trainer)};
  for (std::int64_t t = 0; t < joint_steps; ++t) {
    set_weights(trainer, versions[static_cast<std::size_t>(std::max<std::int64_t>(0, t - lacks))]);
    const std::int64_t known = t - 1 - late;  // the last step whose norm the scale follows from
    if (known >= 0) trainer.loss_scale().update(norms[static_cast<std::size_t>(known)]);
    const double scale = trainer.loss_scale().value();
    trainer.compute_gradients(text_of_step(options, t));
    if (overflow.is_of(trainer, t)) Overflow::happen(trainer);
    const double norm = (faults.stages_decide_alone ? gradient_norm(trainer.sharded(), mesh.over(token_axes | Axis::tensor))
                                                    : gradient_norm(trainer.sharded())) /
                        scale;
    set_weights(trainer, versions.back());
    const bool updates = std::isfinite(norm);
    const double clip = options.clip_norm > 0 && norm > options.clip_norm ? options.clip_norm / norm : 1;
    if (updates) trainer.optimizer().step(window_lr, clip / scale);
    versions.push_back(weights_of(trainer));
    result.norms.push_back(finite_or_0(norm));
    norms.push_back(norm);
    result.scales.push_back(scale);
    result.updated.push_back(updates);
  }
  for (std::int64_t t = joint_steps - 1 - late; t < joint_steps; ++t) {
    trainer.loss_scale().update(norms[static_cast<std::size_t>(t)]);
  }
  result.last_scale = trainer.loss_scale().value();
  result.weights = pieces_of(trainer, trainer.sharded().whole_values());
  return result;
}

struct JointCell {
  Layout layout;
  int microbatches;
  bool tied = true;
  DType dtype = DType::f64;
  ZeroStage zero = ZeroStage::optimizer;
  OptimizerOptions optimizer = AdamW::Options();
  double clip = 0.1;
  double scale = 1;  // of the loss, at first
  std::vector<std::int64_t> overflows = {};
};

TrainingOptions options_of(const JointCell& cell) {
  TrainingOptions options = tiny(cell.layout, cell.dtype);
  options.mesh = cell.layout.mesh();
  options.model.layers = cell.layout.pipeline + 1;
  options.model.tied = cell.tied;
  options.stages.schedule_name = "2bw";
  options.global_batch = std::int64_t{cell.microbatches} * cell.layout.data;
  options.sharding.zero = cell.zero;
  options.optimizer = cell.optimizer;
  options.clip_norm = cell.clip;
  options.loss_scale.initial = cell.scale;
  options.loss_scale.window = 2;
  return options;
}

struct JointAndLoop {
  JointResult joint, loop;
};

std::vector<JointAndLoop> train_jointly(const JointCell& cell, const JointFaults& faults = {}) {
  std::vector<JointAndLoop> found(static_cast<std::size_t>(cell.layout.ranks()));
  const TrainingOptions options = options_of(cell);
  run_threads(cell.layout.ranks(), [&](const Communicator& world) {
    const Mesh mesh(world, cell.layout.mesh());
    JointAndLoop& mine = found[static_cast<std::size_t>(world.rank())];
    mine.joint = run_jointly(mesh, options, {cell.overflows});
    Trainer trainer(mesh, flushing(options, false));
    mine.loop = by_joint_loop(trainer, options, {cell.overflows}, faults);
  });
  return found;
}

std::string divergence(const std::vector<JointAndLoop>& found) {
  Comparer bits(equal_bits);
  std::string text;
  for (const JointAndLoop& each : found) {
    if (text.empty()) text = bits.pieces(each.loop.weights, each.joint.weights, "after the steps, parameter");
  }
  return text;
}

const std::vector<JointCell> joint_cells = {
    {{1, 1, 2}, 2, true, DType::f64, ZeroStage::none, SGD::Options{.momentum = 0}, 0},
    {{1, 1, 2}, 3, true, DType::f64, ZeroStage::none, SGD::Options{.momentum = 0.9}},
    {{1, 1, 3}, 3},
    {{1, 1, 4}, 4},
    {{1, 1, 4}, 6, true, DType::f32, ZeroStage::none},
    {{2, 1, 2}, 2, true, DType::f64, ZeroStage::optimizer, Muon::Options()},
    {{2, 1, 2}, 3, true, DType::f64, ZeroStage::none},
    {{2, 2, 2}, 2},
    {{1, 2, 2, 2}, 2},
    {{1, 1, 1}, 2, true, DType::f16, ZeroStage::none, AdamW::Options(), 0.1, 1024, {2}},
    {{1, 1, 2}, 2, false, DType::f16, ZeroStage::optimizer, AdamW::Options(), 0.1, 1024, {2}},
    {{1, 1, 3}, 3, true, DType::f16, ZeroStage::optimizer, SGD::Options{.momentum = 0.9}, 0, 1024, {1, 2}},
    {{1, 1, 4}, 5, true, DType::f16, ZeroStage::none, AdamW::Options(), 0.1, 1024, {0, 3}},
    {{2, 2, 2}, 2, true, DType::f16, ZeroStage::optimizer, AdamW::Options(), 0.1, 1024, {2}},
    {{1, 1, 2}, 2, true, DType::f16, ZeroStage::none, AdamW::Options(), 0.1, 0x1p23},
};

class TrainingWindowsJoint : public testing::TestWithParam<JointCell> {};

TEST_P(TrainingWindowsJoint, HaveTheBitsOfTheLoop) {
  const JointCell& cell = GetParam();
  const std::vector<JointAndLoop> found = train_jointly(cell);
  EXPECT_EQ(divergence(found), "");
  for (const JointAndLoop& each : found) {
    EXPECT_EQ(each.joint.norms, each.loop.norms);
    EXPECT_EQ(each.joint.scales, each.loop.scales);
    EXPECT_EQ(each.joint.updated, each.loop.updated);
    EXPECT_EQ(each.joint.last_scale, each.loop.last_scale);
    for (const std::int64_t step : cell.overflows) EXPECT_FALSE(each.joint.updated[static_cast<std::size_t>(step)]);
    const bool overflows = !cell.overflows.empty() || cell.scale > 1024;
    EXPECT_EQ(std::ranges::count(each.joint.updated, false) > 0, overflows);
    EXPECT_GT(std::ranges::count(each.joint.updated, true), 0);
  }
  if (!cell.tied || cell.layout.pipeline == 1) return;
  const auto table_of = [](const JointAndLoop& rank) {
    Pieces result = rank.joint.weights;
    std::erase_if(result, [](const auto& entry) { return !entry.first.starts_with("wte"); });
    return result;
  };
  const Pieces first = table_of(found.front());
  EXPECT_FALSE(first.empty());
  Comparer bits(equal_bits);
  const std::size_t of_last_stage = found.size() - found.size() / static_cast<std::size_t>(cell.layout.pipeline);
  EXPECT_EQ(bits.pieces(first, table_of(found[of_last_stage]), "the table of the last stage, "), "");
}

INSTANTIATE_TEST_SUITE_P(Cells, TrainingWindowsJoint, testing::ValuesIn(of_today(joint_cells, 3)));

TEST(TrainingWindowsJointControl, OtherLoopsDiffer) {
  const JointCell tied{{1, 1, 3}, 3};
  EXPECT_NE(divergence(train_jointly(tied, {.mixed_ages = true})), "");
  EXPECT_NE(divergence(train_jointly(tied, {.stages_decide_alone = true})), "") << "clipping by the norm of each stage";
  JointCell overflows{{1, 1, 3}, 3, true, DType::f16, ZeroStage::none, AdamW::Options(), 0, 1024, {2}};
  EXPECT_NE(divergence(train_jointly(overflows, {.stages_decide_alone = true})), "") << "the first stage updates alone";
  const std::vector<JointAndLoop> found = train_jointly(overflows, {.scale_of_step_before = true});
  EXPECT_NE(found.front().joint.scales, found.front().loop.scales);
}

// The most sums of the step before that are in flight when the last stage takes the tokens of a step.
std::int64_t sums_in_flight(const char* schedule) {
  const Variable nodes("STRETTO_RANKS_PER_NODE", "1");
  const Variable links("STRETTO_LINKS", "intra=4Mb/s,300us;inter=4Mb/s,300us");  // far slower than the computation
  const JointCell cell{{2, 1, 2}, 2, false};
  TrainingOptions options = options_of(cell);
  options.stages.schedule_name = schedule;
  std::int64_t most = 0;
  run_threads(4, [&](const Communicator& world) {
    Trainer trainer(Mesh(world, cell.layout.mesh()), options);
    trainer.run({.count = 3,
                 .fill_of =
                     [&](std::int64_t step) {
                       const std::vector<Record> records = world.job().ledger().records();
                       const std::int64_t count = std::ranges::count_if(records, [](const Record& record) {
                         return record.tag == "gradients" && record.times.done == 0;
                       });
                       if (world.rank() == 3) most = std::max(most, count);
                       return text_of_step(options, step);
                     },
                 .lr_of = [](std::int64_t) { return window_lr; },
                 .done = {}});
  });
  return most;
}

TEST(TrainingWindowsJointTraffic, LetsSumsTravelWhileTheNextStepComputes) {
  EXPECT_GT(sums_in_flight("2bw-joint"), 0);
  EXPECT_EQ(sums_in_flight("2bw"), 0) << "the control";
}

// Gradients of two steps, versions, and the state of a tied table, which both ends update whole.
TEST(TrainingWindowsJointMemory, IsThatOfThePlan) {
  for (const bool tied : {false, true}) {
    for (const ZeroStage zero : {ZeroStage::none, ZeroStage::optimizer}) {
      JointCell cell{{2, 1, 3}, 3, tied};
      cell.zero = zero;
      TrainingOptions options = options_of(cell);
      options.stages.schedule_name = "2bw-joint";
      const std::array kinds{MemoryKind::values, MemoryKind::gradients, MemoryKind::optimizer};
      std::array<std::int64_t, 3> planned{}, held{};
      for (int stage = 0; stage < 3; ++stage) {
        const TrainingMemory its = plan_stage(options, options.check(), stage).memory;
        const TrainingMemory flushed = plan_stage(flushing(options, false), flushing(options, false).check(), stage).memory;
        EXPECT_EQ(its.values, (stage < 2 ? 2 : 1) * flushed.values);
        EXPECT_EQ(its.gradients, 2 * flushed.gradients);
        planned[0] += 2 * its.values;
        planned[1] += 2 * its.gradients;
        planned[2] += 2 * its.optimizer;
      }
      run_threads(6, [&](const Communicator& world) {
        std::array<std::int64_t, 3> before{};
        for (std::size_t i = 0; i < 3; ++i) before[i] = static_cast<std::int64_t>(memory_use(kinds[i]).bytes);
        world.barrier(Stream::inline_()).wait();
        const Trainer trainer(Mesh(world, cell.layout.mesh()), options);
        world.barrier(Stream::inline_()).wait();
        for (std::size_t i = 0; world.rank() == 0 && i < 3; ++i) {
          held[i] = static_cast<std::int64_t>(memory_use(kinds[i]).bytes) - before[i];
        }
        world.barrier(Stream::inline_()).wait();
      });
      EXPECT_EQ(held, planned) << "tied " << tied << ", zero " << static_cast<int>(zero);
    }
  }
}

}  // namespace
}  // namespace parity
