// Steps of a schedule without a flush: stages update their weights inside the schedule's windows.
#include <cmath>
#include <deque>
#include <map>

#include "core/fail.hpp"
#include "overlap/schedule/actions.hpp"
#include "stretto/models/trainer.hpp"

namespace stretto {

// The computations and updates of this rank's stage. A window of the schedule is a step of the trainer.
class Trainer::Windows final : public PipelineStage {
 public:
  Windows(Trainer& trainer, const TrainedSteps& steps)
      : trainer_(trainer),
        steps_(steps),
        schedule_(trainer.pipeline_->schedule()),
        delay_(mean_delay(schedule_, trainer.mesh_.rank(Axis::pipeline))),
        stage_(trainer.mesh_.over(token_axes | Axis::tensor)) {}

  void run() {
    Trainer& its = trainer_;
    its.sharded_->begin_versions();
    const bool goes_on = its.sharded_->in_flight();
    its.sharded_->set_in_flight(false);
    if (its.pipemare_) its.pipemare_->begin();
    its.sharded_->begin_step();
    const SequenceDivision division = its.options_.division();
    const std::int64_t length = division.rows(its.options_.model.sequence);
    its.pipeline_->run_windows(*this, static_cast<int>(steps_.count), its.model_->message(its.options_.micro_batch * length),
                               its.options_.sharding.dtype, goes_on ? 1 - its.sharded_->options().versions : 0);
    finish_update();
    its.sharded_->begin_versions();
    take_reports();
  }

  Tensor compute(const Action& action, Tensor input) override {
    if (action.kind == ActionKind::sum) sum(action.microbatch);
    if (action.kind == ActionKind::update) jointly_ ? update_jointly(action.microbatch) : update(action.microbatch);
    if (is_of_step(action.kind)) return {};
    finish_update();
    trainer_.sharded_->read_version(version_for(action));
    Action of_window = action;
    of_window.microbatch %= schedule_.all_microbatches();
    return window_of(action.microbatch / schedule_.all_microbatches()).microbatches->compute(of_window, std::move(input));
  }

 private:
  struct Window {
    std::int64_t counted = 0;
    double loss_scale = 1;
    std::unique_ptr<Microbatches> microbatches;
  };
  struct Report {
    std::int64_t step, counted;
    double loss_scale;
    std::vector<double> numbers;  // the sum of losses, the square of the norm, updates that were left out
    Work summed;
    double ended;
    bool updated;  // of stages that update jointly

    double norm() const { return std::sqrt(numbers[1]) / loss_scale; }
  };

  // Corrected weights lie where the version before the latest would.
  int version_for(const Action& action) const {
    const bool corrected = trainer_.pipemare_ && trainer_.pipemare_->corrects() && action.kind != ActionKind::forward;
    return corrected ? action.version - 1 : action.version;
  }

  double rate(std::int64_t step) const {
    const double lr = steps_.lr_of(step);
    return trainer_.pipemare_ ? lr * trainer_.options_.pipemare.rate_factor(delay_.forward, first_step_ + step) : lr;
  }

  // An update's gradients are means over the tokens of its microbatches, which are all of a window's divided by its steps.
  Window& window_of(std::int64_t step) {
    const auto [place, is_new] = windows_.try_emplace(step);
    Window& window = place->second;
    if (!is_new) return window;
    const CountedBatch slots = trainer_.slots_of_step(steps_.fill_of(step), first_step_ + step);
    require(schedule_.steps == 1 || !slots.batch.starts,
            "Schedule {} updates after each microbatch, of which each would count other tokens of documents; choose 2bw.",
            schedule_.name);
    window.counted = slots.counted;
    window.loss_scale = trainer_.loss_scale_.value();
    window.microbatches = std::make_unique<Microbatches>(
        *trainer_.model_, *trainer_.sharded_, slots.batch, trainer_.options_.micro_batch,
        window.loss_scale * static_cast<double>(schedule_.steps) / static_cast<double>(slots.counted));
    return window;
  }

  // The sums and the norm travel while the stage computes on. A rank's squares are there when its sums are.
  void sum(std::int64_t step) {
    trainer_.sharded_->finish_sums();
    Report& its = begin_report(step);
    trainer_.sharded_->square_sums(stream_, its.numbers[1]);
    send(its);
    sums_ = step + 1;
    is_between_ = true;
  }

  // All stages have the same norm of the step, and decide alike.
  void update_jointly(std::int64_t step) {
    Trainer& its = trainer_;
    Report& report = reports_.back();
    report.summed.wait();
    its.sharded_->take_sums();
    its.sharded_->keep_version();
    const double norm = report.norm();
    const double most = its.options_.clip_norm;
    report.updated = its.loss_scale_.update(norm);
    if (report.updated) its.optimizer_->step(rate(step), (most > 0 && norm > most ? most / norm : 1.0) / report.loss_scale);
    report.ended = now_seconds();
  }

  void update(int number) {
    Trainer& its = trainer_;
    const std::int64_t step = number / schedule_.steps;
    its.sharded_->finish_sums();
    const double norm = gradient_norm(*its.sharded_, stage_);
    const double most = its.options_.clip_norm;
    const double clipped = norm_to_clip(norm);
    its.sharded_->keep_version();
    if (std::isfinite(norm)) {
      its.optimizer_->step(rate(step), most > 0 && clipped > most ? most / clipped : 1.0);
    } else {
      ++left_out_;
    }
    if (its.pipemare_) its.pipemare_->updated();
    updates_ = number + 1;
    if (updates_ % schedule_.steps == 0) report(step, norm);
    is_between_ = true;
  }

  // Stages have begun the sum of the step before a step ago.
  double norm_to_clip(double of_stage) {
    if (!trainer_.options_.clips_by_step_before) return of_stage;
    take_norm();
    const double norm = trainer_.norm_before_.value_or(of_stage);
    return std::isfinite(norm) ? norm : of_stage;
  }
  void take_norm() {
    if (reports_.empty()) return;
    reports_.back().summed.wait();
    trainer_.norm_before_ = std::sqrt(reports_.back().numbers[1]);
  }

  bool saves_behind(std::int64_t step) const {
    return trainer_.options_.saves_in_flight && steps_.updated && (!steps_.saves || steps_.saves(step));
  }

  // Before the stage computes on, and behind the last update: messages that others wait for have begun by then.
  void finish_update() {
    if (!std::exchange(is_between_, false)) return;
    ShardedParameters& sharded = *trainer_.sharded_;
    if (jointly_) {
      if (sums_ < steps_.count) sharded.begin_step();
      return;
    }
    const std::int64_t step = updates_ / schedule_.steps - 1;
    if (updates_ % schedule_.steps == 0 && saves_behind(step)) {
      sharded.read_version(updates_);  // what a receiver of the last report may evaluate
      take_reports();
      sharded.set_in_flight(true);
      steps_.updated(step);
      sharded.set_in_flight(false);
    }
    if (updates_ < schedule_.steps * steps_.count) sharded.begin_step();
  }

  // Tensor-parallel ranks have the same losses.
  Report& begin_report(std::int64_t step) {
    const auto window = windows_.extract(step);
    double loss = 0;
    for (const Decoder::Loss& each : window.mapped().microbatches->losses()) loss += each.loss();
    loss = trainer_.mesh_.rank(Axis::tensor) == 0 ? loss : 0;
    return reports_.emplace_back(
        Report{step, window.mapped().counted, window.mapped().loss_scale, {loss, 0, 0}, {}, now_seconds(), true});
  }
  void send(Report& report) {
    report.summed = trainer_.reports_.all_reduce(report.numbers.data(), report.numbers.data(), 3, DType::f64, ReduceOp::sum,
                                                 stream_, {.tag = "loss"});
    // The newest may be the last, behind which its receiver may want an empty pipeline.
    while (reports_.size() > 1 && reports_.front().summed.done()) take_report();
  }

  // Ranks of one stage have the same norm.
  void report(std::int64_t step, double norm) {
    Report& next = begin_report(step);
    if (stage_.rank() == 0) {
      next.numbers[1] = norm * norm;
      next.numbers[2] = std::exchange(left_out_, 0);
    }
    send(next);
  }

  void take_reports() {
    while (!reports_.empty()) take_report();
  }
  void take_report() {
    const Report& first = reports_.front();
    first.summed.wait();
    StepResult result;
    result.loss = first.numbers[0] / static_cast<double>(first.counted);
    result.gradient_norm = first.norm();
    result.loss_scale = first.loss_scale;
    result.updated = first.updated && first.numbers[2] == 0;
    result.ended = first.ended;
    if (trainer_.options_.clips_by_step_before) trainer_.norm_before_ = result.gradient_norm;
    if (steps_.done) steps_.done(first.step, result);
    reports_.pop_front();
  }

  Trainer& trainer_;
  const TrainedSteps& steps_;
  const Schedule& schedule_;
  const MeanDelay delay_;                           // of this stage
  Communicator stage_;                              // the ranks of this stage
  std::map<std::int64_t, Window> windows_;          // under way
  std::deque<Report> reports_;                      // of steps whose updates have been made here
  Stream stream_{"reports", Priority::background};  // which writes into them, and so ends first
  const std::int64_t first_step_ = trainer_.optimizer_->steps() / schedule_.steps;
  const bool jointly_ = updates_jointly(schedule_);
  int left_out_ = 0;  // updates, since the last report
  std::int64_t updates_ = 0, sums_ = 0;
  bool is_between_ = false;  // an update, or the sum of a joint one, and the next computation
};

void Trainer::run(const TrainedSteps& steps) {
  require(steps.count >= 1 && steps.fill_of && bool(steps.lr_of) != options_.servers.any(),
          "{} steps cannot be trained; give at least 1, with their slots and, unless servers have them, learning rates.",
          steps.count);
  kept_.clear();  // an update changes keys and values
  if (options_.servers.any()) return run_served(steps);
  if (!flushes()) return Windows(*this, steps).run();
  for (std::int64_t i = 0; i < steps.count; ++i) {
    StepResult result = step(steps.fill_of(i), steps.lr_of(i));
    result.ended = now_seconds();
    if (steps.done) steps.done(i, result);
  }
}

}  // namespace stretto
