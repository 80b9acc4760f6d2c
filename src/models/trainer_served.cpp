// Steps of a worker of parameter servers: workers meet at the servers only, and reports follow when all have made a step.
#include <cmath>
#include <deque>
#include <vector>

#include "stretto/models/trainer.hpp"

namespace stretto {
namespace {

struct Report {
  std::int64_t step = 0, counted = 0;
  std::vector<double> numbers;  // the sum of losses, the square of the norm
  Work summed;
  double ended = 0;
};

}  // namespace

void Trainer::run_served(const TrainedSteps& steps) {
  const Communicator& alone = mesh_.over(Axes());
  // Since workers met, they have values of later steps than a repeated run may read.
  if (options_.servers.consistency.kind == Consistency::Kind::exact) sharded_->update([](std::size_t) {});
  std::deque<Report> reports;
  const Stream stream("reports", Priority::background);  // waits for its tasks before the reports are freed
  const auto take_report = [&] {
    const Report& first = reports.front();
    first.summed.wait();
    StepResult result;
    result.loss = first.numbers[0] / static_cast<double>(first.counted);
    result.gradient_norm = std::sqrt(first.numbers[1]);
    result.ended = first.ended;
    if (steps.done) steps.done(first.step, result);
    reports.pop_front();
  };
  for (std::int64_t step = 0; step < steps.count; ++step) {
    const CountedBatch batch = slots_of_step(steps.fill_of(step), optimizer_->steps());
    sharded_->begin_step();
    const std::vector<Decoder::Loss> losses = run_microbatches(batch);
    sharded_->finish_sums();
    optimizer_->step(0, 1);  // the servers' rate
    double loss = 0;
    for (const Decoder::Loss& each : losses) loss += each.loss();
    const double norm = gradient_norm(*sharded_, alone);
    Report& report =
        reports.emplace_back(Report{step, batch.counted, {loss, norm * norm * reports_.size()}, {}, now_seconds()});
    report.summed = reports_.all_reduce(report.numbers.data(), report.numbers.data(), 2, DType::f64, ReduceOp::sum, stream,
                                        {.tag = "loss"});
    // The last one's receiver may want all workers to have made all steps.
    while (reports.size() > 1 && reports.front().summed.done()) take_report();
  }
  if (options_.servers.consistency.kind == Consistency::Kind::bounded && options_.servers.consistency.delay == 0) {
    sharded_->wait_for_values();  // they have all pushes already
  } else {
    sharded_->settle();
  }
  while (!reports.empty()) take_report();
}

}  // namespace stretto
