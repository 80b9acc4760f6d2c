#include "apps/train/run/training_run.hpp"

#include <algorithm>
#include <cstring>
#include <memory>

#include "apps/common/size_text.hpp"
#include "apps/train/data/hf_tokenizer.hpp"
#include "apps/train/measure/matrix_rate.hpp"
#include "apps/train/report/comm_report.hpp"
#include "apps/train/report/printable.hpp"
#include "apps/train/report/report.hpp"
#include "apps/train/report/step_traffic.hpp"
#include "apps/train/report/training_plan.hpp"
#include "apps/train/run/beginning.hpp"
#include "apps/train/run/between_steps.hpp"
#include "apps/train/run/description.hpp"
#include "apps/train/run/directory_lock.hpp"
#include "apps/train/run/first_step_timeout.hpp"
#include "apps/train/run/laid_out.hpp"
#include "apps/train/run/layout_changes.hpp"
#include "apps/train/run/resuming.hpp"
#include "apps/train/run/run_notes.hpp"
#include "apps/train/run/sampling.hpp"
#include "stretto/layers/replicas.hpp"
#include "stretto/layers/state_move.hpp"
#include "stretto/models/adapter_files.hpp"
#include "stretto/overlap/trace.hpp"
#include "stretto/stretto.hpp"

namespace apps {

using namespace stretto;

namespace {

class TrainingRun {
 public:
  TrainingRun(const Communicator& world, const CommandLine& line, StopRequest& stop, JobProgress& progress,
              ElasticParts elastic, ServerSet* servers, std::int64_t layouts_asked)
      : line_(line),
        stop_(stop),
        layouts_(line.relayouts, stop, layouts_asked),
        progress_(progress),
        memory_(elastic.memory),
        rejoin_(elastic.rejoin),
        carried_(std::move(elastic.carried)),
        world_(world),
        replicas_(line.trainer.diloco.any() ? split_into_replicas(world, line.trainer.diloco.replicas)
                                            : ReplicaGroups{world, {}}),
        data_(line.training_data()),
        contents_(data_ ? data_->contents() : std::vector<NamedValue>()),
        run_(run_notes(line.values, contents_)),
        tokenizer_(line.tokenizer(data_)),
        layout_(std::make_unique<LaidOut>(line_, world, replicas_, servers)),
        rank0_(world.rank() == 0),
        reporter_(rank0_ ? line.log_dir : "", line.log_interval),
        traffic_(world.job().ledger()) {
    note_pipemare();
    if (line.save.empty()) return;
    if (rank0_) save_lock_ = std::make_unique<DirectoryLock>("--save", line.save);
    layout_->saver->check_directory();  // not after hours of training
  }

  std::unique_ptr<CarriedTraining> run() {
    FirstStepTimeout first_step(world_, line_.first_step_timeout);
    require_same(world_, contents_);
    const bool is_carried = carried_ != nullptr;
    load();
    trainer().sharded().store();
    if (line_.sample_only) {
      show_sample();
      return nullptr;
    }
    if (memory_ != nullptr) memory_->begin(world_);
    if (memory_ != nullptr && is_carried) {  // no checkpoint has this state
      memory_->keep(trainer().sharded(), trainer().optimizer(), first_step_, notes(samples_));
      memory_->wait();
    }
    rate_ = matrix_rate(world_, line_.trainer.sharding.dtype);
    delay_ = line_.trainer.sharding.delay;
    if (!trainer().flushes()) delay_ = std::ranges::max(simulate(trainer().pipeline().schedule()).delay);
    if (rank0_) reporter_.begin_after(first_step_);
    if (rank0_) progress_.begin(first_step_, trainer().pipeline().schedule().all_microbatches());
    describe();
    say_of_layouts();
    if (!line_.trace.empty()) {
      trace_ = std::make_unique<Trace>(world_);
      if (mesh().size(Axis::pipeline) > 1) trainer().pipeline().record_in(trace_.get());
    }
    const std::uint64_t first_operation = world_.job().ledger().next_sequence();
    std::int64_t done = first_step_;
    int stopped_by = 0;
    while (done < line_.steps && (stopped_by = stop_.agree(world_)) == 0) {
      const std::int64_t count = steps_in_turn(line_, done, trainer().meets_each_step());
      train(done, count);
      done += count;
      first_step.end();
      if (done < line_.steps) change_layout(done);
      if (rejoin_ != nullptr && done < line_.steps && rejoin_->is_complete(world_)) return carry(done);
    }
    const std::vector<Record> records = world_.job().ledger().records(first_operation);
    if (!line_.save.empty() && saved_at_ != done) save(done, samples_);
    finish_saving();
    if (stopped_by == 0) {
      export_model();
      if (sampled_at_ != line_.steps || line_.steps == 0) show_sample();
    }
    if (rank0_) reporter_.finish(records);
    if (rank0_ && trainer().speculation() != nullptr) {
      reporter_.say(fmt::format("Of {} updates that began before the norm was known, {} were taken back.",
                                done - first_step_, taken_back()));
    }
    if (trace_) write_trace();
    if (stopped_by != 0) {
      if (rank0_) reporter_.say(fmt::format("Stopped after step {} by SIG{}.", done, sigabbrev_np(stopped_by)));
    } else if (line_.comm_report) {
      report_communication();
    }
    if (rank0_ && stopped_by == 0 && line_.steps > 0) reporter_.say(next_command(line_));
    return nullptr;
  }

 private:
  Trainer& trainer() const { return layout_->trainer; }
  const Mesh& mesh() const { return layout_->mesh; }

  void load() {
    if (carried_) return take_carried();
    const Beginning begun = begin_training(world_, line_, run_, replica(), trainer());
    samples_ = begun.samples;
    if (begun.resumed) first_step_ = saved_at_ = begun.step;
    if (!rank0_) return;
    for (const std::string& line : begun.to_say) reporter_.say(line);
  }

  // The number itself, which follows from --train-iters where it is left out.
  void note_pipemare() {
    if (!trainer().pipeline().schedule().stashes) {
      run_["--pipemare-annealing"] = std::to_string(line_.trainer.pipemare.annealing_steps);
      return;
    }
    for (const char* const flag : {"--pipemare-annealing", "--pipemare-decay"}) run_.erase(flag);
  }

  int replica() const { return replicas_.peers ? replicas_.peers.rank() : 0; }

  // Of the first replica, as samples.
  void export_model() {
    if (replica() != 0) return;
    if (const std::string& adapter = line_.weights.save_adapter; !adapter.empty()) {
      save_adapters(trainer(), adapter, line_.weights.load_hf);
      if (rank0_) reporter_.say(fmt::format("Saved the adapter to {} for Hugging Face's peft.", adapter));
    }
    const std::string& to = line_.weights.export_hf;
    if (to.empty()) return;
    export_hf(trainer(), to, tokenizer_->end_of_text(), [&](const std::string& directory) {
      write_hf_tokenizer(directory, line_.data, tokenizer_->end_of_text(), line_.trainer.model.sequence);
    });
    if (rank0_) reporter_.say(fmt::format("Exported {} for Hugging Face's transformers.", to));
  }

  void train(std::int64_t first, std::int64_t count) {
    const std::int64_t samples = samples_;
    std::optional<Trace::Span> span;
    const auto begin_step = [&](std::int64_t step, double now) {
      traffic_.begin();
      if (trace_) span.emplace(trace_->step(step + 1));
      step_began_ = now;
    };
    begin_step(first, now_seconds());
    const auto lr_of = [&](std::int64_t i) { return lr_at(first + i); };
    trainer().run({.count = count,
                   .fill_of =
                       [&](std::int64_t i) {
                         if (rank0_) progress_.begin_step(first + i);
                         return data_->training_slots(samples + i * line_.trainer.global_batch);
                       },
                   .lr_of = line_.trainer.servers.any() ? std::function<double(std::int64_t)>() : lr_of,
                   .saves = [&](std::int64_t i) { return saves_in_flight(line_, first + i); },
                   .updated = [&](std::int64_t i) { save(first + i + 1, samples + (i + 1) * line_.trainer.global_batch); },
                   .done =
                       [&](std::int64_t i, const StepResult& result) {
                         span.reset();
                         end_step(first + i, result, i + 1 == count);
                         if (i + 1 < count) begin_step(first + i + 1, result.ended);
                       }});
  }

  double lr_at(std::int64_t step) const { return line_.rates().at(step); }

  // is_empty: no step has begun that is not reported; what is collective comes then only.
  void end_step(std::int64_t step, const StepResult& result, bool is_empty) {
    const std::int64_t batch = line_.trainer.global_batch;
    samples_ += batch;
    if (rank0_) check_step(line_, result, trainer().loss_scale(), step);  // all ranks have the same numbers
    const bool last = step + 1 == line_.steps;
    const bool is_late = !trainer().flushes() || trainer().sharded().has_late();
    if (last) finish(step);

    StepReport report;
    report.seconds = result.ended - step_began_;
    report.traffic = traffic_.end();
    report.delay = is_late ? delay_ : 0;
    report.step = step + 1;
    report.steps = line_.steps;
    report.loss = result.loss;
    report.gradient_norm = result.gradient_norm;
    if (line_.scales_loss()) report.loss_scale = result.loss_scale;
    report.skipped = result.arrived && !result.updated;
    if (result.updated) report.merged_fragment = line_.trainer.diloco.merged_at(trainer().optimizer().steps());
    report.lr = lr_at(step);
    const double tokens = static_cast<double>(batch * line_.trainer.model.sequence);
    report.tokens_per_second = tokens / report.seconds;
    const double rate =
        report.tokens_per_second / world_.size() * flops_per_token(line_.trainer.model, line_.trainer.adapters);
    rate_ = std::max(rate_, rate);  // products may have been measured in a slow moment
    report.mfu = rate / rate_;
    report.memory_bytes = memory_use(current_device()).peak_bytes;
    if (due(line_.check_replicas, step)) check_replicas(trainer().sharded());  // before anything is saved
    if (memory_ != nullptr) memory_->wait();  // at most the step that is reported now may be lost
    const bool shows_memory = rank0_ && step == first_step_ && !layout_->plan.stages.empty();
    const std::string memory =
        shows_memory ? memory_table_with_measured(layout_->plan.stages.front().memory) : std::string();
    if (last || due(line_.eval_interval, step)) report.validation_loss = validate();
    const bool listed = step == 0 || due(line_.log_interval, step) || report.validation_loss || report.skipped;
    if (listed && is_empty && mesh().size(Axis::pipeline) > 1) report.pipeline = trainer().pipeline().times();
    // Otherwise ranks do not begin a step together.
    if (trainer().meets_each_step())
      report.slowest = layout_->stragglers.step(report.seconds, report.traffic.exposed_seconds);
    if (rank0_) reporter_.step(report);
    // After the report: a job that goes on from this state does not repeat the step, which would then be missing in
    // metrics.jsonl.
    if (memory_ != nullptr) memory_->keep(trainer().sharded(), trainer().optimizer(), step + 1, notes(samples_));
    if (shows_memory) reporter_.say(memory);
    if (due(line_.save_interval, step) && !saves_in_flight(line_, step)) save(step + 1, samples_);
    if (due(line_.sample_interval, step)) {
      sampled_at_ = step + 1;
      show_sample();
    }
  }

  // With --delay, applies the gradients of the last step.
  void finish(std::int64_t step) {
    const StepResult result = trainer().finish();
    if (!rank0_ || !result.arrived) return;
    check_step(line_, result, trainer().loss_scale(), step);
    if (!result.updated) reporter_.say("The gradients of the last step overflowed, and were left out.");
  }

  FillSlot next_slots() const { return data_->training_slots(samples_); }

  void write_trace() {
    trace_->write(line_.trace);
    trainer().pipeline().record_in(nullptr);
    trace_.reset();
    if (rank0_) reporter_.say(fmt::format("Wrote {}.", line_.trace));
  }

  Trace::Span part(const char* name) const { return trace_ ? trace_->part(name) : Trace::Span(); }

  double validate() {
    const Trace::Span span = part("validate");
    return trainer().evaluate(data_->validation_slots(), data_->validation_windows());
  }

  Notes notes(std::int64_t samples) {
    Notes result = run_;
    result.merge(trainer().notes());
    result[consumed_samples_note] = std::to_string(samples);
    if (line_.saves_adapters_only) result[base_note] = line_.weights.flag();
    return result;
  }

  void save(std::int64_t step, std::int64_t samples) {
    const Trace::Span span = part("save");
    finish_saving();
    if (trainer().diloco() != nullptr) trainer().diloco()->settle();
    layout_->saver->save(step, notes(samples));
    saved_at_ = step;
    is_saving_ = true;
    if (!line_.trainer.saves_in_background) finish_saving();
  }

  // Waits for a checkpoint that is being written in the background.
  void finish_saving() {
    if (!std::exchange(is_saving_, false)) return;
    layout_->saver->wait();
    if (rank0_) reporter_.say(fmt::format("Saved {}/step_{:08}.", line_.save, saved_at_));
  }

  void show_sample() {
    const bool needs_all = line_.trainer.sharding.zero == ZeroStage::values;  // to gather the parameters
    if (replica() != 0 || (mesh().rank(sequence_axes) != 0 && !needs_all)) return;
    const Trace::Span span = part("sample");
    const std::string text = sample(trainer(), *tokenizer_, line_.prompt, line_.sample);
    if (!rank0_) return;
    reporter_.say(line_.sample_only ? printable(text) : "\n--- a sample ---\n" + printable(text) + "\n----------------\n");
  }

  // Speculative updates, in all layouts.
  std::int64_t taken_back() const {
    const SpeculativeUpdate* const update = trainer().speculation();
    return taken_back_ + (update != nullptr ? update->taken_back() : 0);
  }

  void change_layout(std::int64_t done) {
    if (std::optional<Relayout> next = layouts_.behind(done, world_)) relayout(*std::move(next));
    say_of_layouts();
  }

  void say_of_layouts() {
    if (!rank0_) return;
    for (const std::string& sentence : layouts_.said()) reporter_.say(sentence);
  }

  // The old layout is gone before there is a new one; meanwhile each rank has its part of the state in a copy.
  void relayout(Relayout to) {
    const double began = now_seconds();
    finish_saving();
    StateMove state(trainer().sharded(), trainer().optimizer());
    const auto notes = trainer().notes();
    taken_back_ = taken_back();
    layout_.reset();
    line_ = line_.laid_out(to.trainer);
    layout_ = std::make_unique<LaidOut>(line_, world_, replicas_, nullptr);  // servers stay with one layout
    const std::int64_t bytes = state.into(trainer().sharded(), trainer().optimizer());
    trainer().restore(notes);
    if (!rank0_) return;
    progress_.begin(to.step, trainer().pipeline().schedule().all_microbatches());
    reporter_.say(fmt::format("Changes the layout behind step {} in {:.3f} s; rank 0 has received {}.", to.step,
                              now_seconds() - began, size_text(static_cast<double>(bytes))));
    for (const std::string& sentence : layout_description(line_, trainer(), world_.size())) reporter_.say(sentence);
  }

  std::unique_ptr<CarriedTraining> carry(std::int64_t step) {
    finish_saving();
    if (memory_ != nullptr) memory_->wait();
    auto carried = std::make_unique<CarriedTraining>(trainer());
    carried->step = step;
    carried->samples = samples_;
    return carried;
  }

  void take_carried() {
    carried_->state.into(trainer().sharded(), trainer().optimizer());
    trainer().restore(carried_->notes);
    first_step_ = carried_->step;
    samples_ = carried_->samples;
    carried_.reset();
  }

  // Must come last: its steps do not train.
  void report_communication() {
    const OverlapTimes times =
        measure_overlap(mesh().world(), [&] { trainer().rehearse(next_slots()); }, {.warmup = 1, .steps = 2, .rounds = 3});
    if (!rank0_) return;
    reporter_.say(comm_report(times));
    if (!line_.log_dir.empty()) write_comm_report(times, line_.log_dir);
  }

  void describe() {
    if (!rank0_) return;
    const auto say = [&](const std::vector<std::string>& sentences) {
      for (const std::string& sentence : sentences) reporter_.say(sentence);
    };
    say(model_description(line_, trainer()));
    say(layout_description(line_, trainer(), world_.size()));
    if (data_) reporter_.say(data_->description());
    reporter_.say(fmt::format(
        "MFU counts {} and 12 layers width sequence FLOP a token against {:.1f} GFLOP/s, the rate of a rank's "
        "matrix products measured now, or against the fastest step where that is faster",
        line_.trainer.adapters.any() ? "4 FLOP a frozen weight, 6 a trained one," : "6 FLOP a weight", rate_ * 1e-9));
    if (!layout_->plan.stages.empty()) reporter_.say(memory_table(layout_->plan));
    say(file_description(trainer()));
    if (first_step_ > 0) reporter_.say(fmt::format("Continues after step {}.", first_step_));
  }

  CommandLine line_;
  StopRequest& stop_;
  LayoutChanges layouts_;
  JobProgress& progress_;
  ReplicatedState* memory_;
  Rejoin* rejoin_;
  std::unique_ptr<CarriedTraining> carried_;
  Communicator world_;
  ReplicaGroups replicas_;
  std::shared_ptr<const TrainingData> data_;
  std::vector<NamedValue> contents_;
  Notes run_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<LaidOut> layout_;
  bool rank0_;
  Reporter reporter_;
  StepTraffic traffic_;
  std::unique_ptr<Trace> trace_;
  double rate_ = 0, step_began_ = 0;
  int delay_ = 0;                             // the most updates that weights lack
  std::unique_ptr<DirectoryLock> save_lock_;  // with --save, on rank 0
  bool is_saving_ = false;
  std::int64_t samples_ = 0;  // consumed
  std::int64_t first_step_ = 0;
  std::int64_t saved_at_ = -1;
  std::int64_t sampled_at_ = -1;
  std::int64_t taken_back_ = 0;  // in layouts before this one
};

}  // namespace

std::unique_ptr<CarriedTraining> run_training(const Communicator& ranks, const CommandLine& line, StopRequest& stop,
                                              JobProgress& progress, ElasticParts elastic, ServerSet* servers) {
  std::int64_t done = 0, asked = 0;
  if (line.relayouts_on_signal()) {
    asked = stop.agree_on_layouts(ranks);  // more than 0 behind a restart
  } else if (line.resume == Resume::yes && !line.relayouts.empty()) {
    rank0_first(ranks, [&] { done = newest_step(line); });
  }
  return TrainingRun(ranks, line.after(done, asked), stop, progress, std::move(elastic), servers, asked).run();
}

}  // namespace apps
