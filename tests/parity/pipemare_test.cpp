// Training under PipeMare has the bits of a loop that corrects weights and lowers rates as the paper says.
#include "window_loop.hpp"

namespace parity {
namespace {

// A loop over a pipeline that flushes behind each microbatch, whose weights are overwritten before each forward by the
// version that it lacks updates to, before each backward by the corrected ones, and before each update by the latest.
class PipeMareLoop {
 public:
  PipeMareLoop(int stage, int stages, double decay) : lacks_(stages - 1 - stage) {
    if (lacks_ > 0) gamma_ = PipeMareOptions{.decay = decay}.keeping(static_cast<double>(lacks_));
  }
  bool corrects = true;

  Fault as_fault(const PipeMareOptions& rates) {
    return {.in_records = [this](Parameters& parameters) { parameters_ = &parameters; },
            .in_sums = [this](ShardedParameters&) { give(versions_.back()); },
            .in_stage =
                [this](PipelineStage& stage, const Action& action, Tensor input) {
                  if (action.kind == ActionKind::forward) {
                    begin_update();
                    give(versions_[std::max<std::size_t>(versions_.size() - 1, lacks_) - lacks_]);
                  } else {
                    give(corrects ? corrected_ : versions_.back());
                  }
                  return stage.compute(action, std::move(input));
                },
            .rate = [this, rates](std::int64_t step) { return window_lr * rates.rate_factor(lacks_, step / microbatches); }};
  }
  static constexpr int microbatches = 4;

 private:
  using Values = std::vector<std::vector<double>>;  // by parameter
  void begin_update() {
    Values now;
    for (const auto& parameter : parameters_->all()) {
      std::vector<double>& its = now.emplace_back();
      for (std::int64_t i = 0; parameter->is_here && i < parameter->value.size(); ++i) its.push_back(parameter->value.at(i));
    }
    if (versions_.empty()) delta_ = now;
    corrected_ = now;
    for (std::size_t k = 0; k < now.size(); ++k) {
      for (std::size_t i = 0; i < now[k].size(); ++i) {
        double& delta = delta_[k][i];
        delta = versions_.empty() ? 0 : gamma_ * delta + (1 - gamma_) * (now[k][i] - versions_.back()[k][i]);
        if (lacks_ > 0) corrected_[k][i] = now[k][i] + -static_cast<double>(lacks_) * delta;
      }
    }
    versions_.push_back(now);
  }
  void give(const Values& values) {
    for (const auto& parameter : parameters_->all()) {
      const std::vector<double>& its = values[parameter->index];
      for (std::size_t i = 0; i < its.size(); ++i) parameter->value.set(static_cast<std::int64_t>(i), its[i]);
    }
  }

  std::size_t lacks_;
  double gamma_ = 0;
  Parameters* parameters_ = nullptr;
  std::vector<Values> versions_;
  Values delta_, corrected_;
};

std::vector<WindowsAndLoop> train_pipemare(int stages, Recompute recompute, const PipeMareOptions& pipemare,
                                           const std::function<void(PipeMareLoop&, PipeMareOptions&)>& change = {}) {
  const WindowCell cell{{1, 1, stages},  "pipemare",       PipeMareLoop::microbatches,
                        ZeroStage::none, AdamW::Options(), recompute};
  TrainingOptions options = options_of(cell);
  options.mesh = cell.layout.mesh();
  options.pipemare = pipemare;
  std::vector<WindowsAndLoop> found(static_cast<std::size_t>(stages));
  run_threads(stages, [&](const Communicator& world) {
    WindowsAndLoop& mine = found[static_cast<std::size_t>(world.rank())];
    mine.windows = run_windows(Mesh(world, cell.layout.mesh()), options, cell.microbatches);
    PipeMareLoop loop(world.rank(), stages, pipemare.decay);
    PipeMareOptions rates = pipemare;
    if (change) change(loop, rates);
    mine.loop =
        train_by_hand(world, cell.layout, flushing(options, true), loop.as_fault(rates), trained_windows * cell.microbatches)
            .parameters;
  });
  return found;
}

TEST(PipeMareTraining, HasTheBitsOfTheLoop) {
  for (const int stages : {1, 2, 3, 4}) {
    for (const Recompute recompute : {Recompute::none, Recompute::full}) {
      const PipeMareOptions options{.annealing_steps = stages > 2 ? 3 : 0, .decay = stages > 3 ? 0.5 : 0.135};
      EXPECT_EQ(divergence(train_pipemare(stages, recompute, options)), "") << stages << " stages";
    }
  }
}

TEST(PipeMareTraining, ControlsWithoutCorrectionOrLowerRatesDiffer) {
  const PipeMareOptions options{.annealing_steps = 3};
  const auto changed = [&](const std::function<void(PipeMareLoop&, PipeMareOptions&)>& change) {
    return divergence(train_pipemare(3, Recompute::none, options, change));
  };
  EXPECT_NE(changed([](PipeMareLoop& loop, PipeMareOptions&) { loop.corrects = false; }), "");
  EXPECT_NE(changed([](PipeMareLoop&, PipeMareOptions& rates) { rates.annealing_steps = 0; }), "");
}

// In one layout: the division of states, and groups that are summed over otherwise, change no bit.
TEST(PipeMareTraining, HasTheSameBitsAtBothZeroStages) {
  std::vector<Pieces> found[2];
  for (const ZeroStage zero : {ZeroStage::none, ZeroStage::optimizer}) {
    const WindowCell cell{{2, 2, 2}, "pipemare", 2, zero};
    TrainingOptions options = options_of(cell);
    options.pipemare.annealing_steps = 2;
    std::vector<Pieces>& its = found[zero == ZeroStage::none ? 0 : 1];
    its.resize(8);
    run_threads(8, [&](const Communicator& world) {
      its[static_cast<std::size_t>(world.rank())] = run_windows(Mesh(world, cell.layout.mesh()), options, cell.microbatches);
    });
  }
  for (std::size_t rank = 0; rank < 8; ++rank) {
    Comparer bits(equal_bits);
    EXPECT_EQ(bits.pieces(found[0][rank], found[1][rank], "parameter"), "");
  }
}

}  // namespace
}  // namespace parity
