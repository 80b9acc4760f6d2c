#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/train/report/curve.hpp"
#include "apps/train/report/metrics_file.hpp"
#include "apps/train/run/directory_lock.hpp"
#include "apps/train/run/stragglers.hpp"
#include "stretto/ledger.hpp"
#include "stretto/overlap/pipeline.hpp"

namespace apps {

struct StepReport {
  std::int64_t step = 0, steps = 0;
  double loss = 0, gradient_norm = 0, lr = 0;
  double seconds = 0;
  double tokens_per_second = 0;  // over all ranks
  double mfu = 0;                // model FLOP utilisation, relative to the largest rate that was seen
  stretto::Traffic traffic;      // this rank's
  std::size_t memory_bytes = 0;  // the most bytes that tensors of this process held on the device
  std::optional<double> validation_loss;
  std::optional<double> loss_scale;                  // of the step, with fp16
  int delay = 0;                                     // the most updates that the weights lacked that it computed with
  bool skipped = false;                              // gradients overflowed, and nothing was updated
  std::optional<stretto::Pipeline::Times> pipeline;  // of steps with a line of their own, in a pipeline of several stages
  std::optional<int> merged_fragment;                // of the weights of replicas (DiLoCo), in this step
  std::optional<SlowRank> slowest;                   // at the end of an interval
};

// Makes the directory unless it exists. Throws Error(io) if that fails, or if this process may not write there.
void make_log_directory(const std::string& path);

// The reports of rank 0: lines on stdout, a progress bar if stdout is a terminal, metrics.jsonl, and loss.svg at each
// validation and at the end.
class Reporter {
 public:
  // log_directory: empty for none. Throws Error(io) if metrics.jsonl there cannot be written, or another job writes it.
  Reporter(const std::string& log_directory, std::int64_t log_interval);

  // Call it before the first step. Keeps the metrics of steps up to `step`, after which training goes on: an earlier run may
  // have come further before it died, even into the middle of a line.
  void begin_after(std::int64_t step);

  void say(const std::string& line);
  void step(const StepReport& report);
  // Prints a table of the communication in the records, and where the metrics and the picture are.
  void finish(const std::vector<stretto::Record>& records);

 private:
  void draw_bar();
  void draw_losses() const;
  double seconds_left() const;
  void add_to_curves(std::int64_t step, double loss, std::optional<double> validation_loss);
  bool terminal_;
  std::int64_t log_interval_;
  std::string log_directory_;
  std::unique_ptr<DirectoryLock> lock_;  // with a log directory
  std::unique_ptr<MetricsFile> metrics_;
  Curve losses_, validation_losses_;
  StepReport last_;
  std::int64_t begins_after_ = 0;  // step
  double began_;                   // seconds
};

}  // namespace apps
