#include "server/served_part.hpp"

#include <algorithm>
#include <utility>

#include "core/fail.hpp"

namespace stretto {

ServedPart::ServedPart(const Tensor& values, int workers, Consistency consistency, ServerUpdate update)
    : consistency_(consistency),
      update_(std::move(update)),
      versions_{values},
      clocks_(static_cast<std::size_t>(workers)),
      pushed_(static_cast<std::size_t>(workers)) {}

void ServedPart::push(int worker, std::int64_t clock, const Tensor& pushed) {
  const auto w = static_cast<std::size_t>(worker);
  require(clock == clocks_[w], "Worker {} pushes clock {} behind {}; pushes come once each, in order.", worker, clock,
          clocks_[w] - 1);
  require(pushed.size() == versions_.back().size() && pushed.dtype() == versions_.back().dtype(),
          "Worker {} pushes {} elements of {} to a part of {} of {}.", worker, pushed.size(), name(pushed.dtype()),
          versions_.back().size(), name(versions_.back().dtype()));
  ++clocks_[w];
  if (consistency_.kind == Consistency::Kind::eventual) {
    apply(pushed);
  } else {
    pushed_[w].push_back(pushed);
    apply_whole_clocks();
  }
  forget_versions();
}

// Sums are formed in the order of workers, whoever came first: a repeated run has the same bits.
void ServedPart::apply_whole_clocks() {
  while (std::ranges::none_of(pushed_, [](const auto& of_worker) { return of_worker.empty(); })) {
    const Tensor sum = pushed_.front().front();
    for (std::size_t w = 1; w < pushed_.size(); ++w) {
      kernels::reduce(ReduceOp::sum, sum.dtype(), sum.raw(), pushed_[w].front().raw(), sum.raw(), sum.size());
    }
    apply(sum);
    for (auto& of_worker : pushed_) of_worker.pop_front();
  }
}

void ServedPart::apply(const Tensor& pushed) {
  const bool keeps = consistency_.kind == Consistency::Kind::exact;
  if (keeps || answered_) {
    versions_.push_back(versions_.back().clone());
    if (!keeps) versions_.pop_front();
    answered_ = false;
  }
  update_(versions_.back(), pushed, version_++);
}

// A worker at clock t may still pull version t - delay, and none before.
void ServedPart::forget_versions() {
  const std::int64_t oldest = *std::ranges::min_element(clocks_) - consistency_.delay;
  while (versions_.size() > 1 && version_ - std::ssize(versions_) + 1 < oldest) versions_.pop_front();
}

std::vector<ServedPart::Answer> ServedPart::answers() {
  std::vector<Answer> result;
  std::erase_if(waiting_, [&](const Pull& pull) {
    const std::int64_t needed =
        consistency_.kind == Consistency::Kind::eventual ? 0 : std::max<std::int64_t>(0, pull.clock - consistency_.delay);
    if (version_ < needed) return false;
    const std::int64_t given = consistency_.kind == Consistency::Kind::exact ? needed : version_;
    result.push_back({pull, versions_[static_cast<std::size_t>(std::ssize(versions_) - 1 - (version_ - given))], given});
    answered_ = answered_ || given == version_;
    return true;
  });
  return result;
}

}  // namespace stretto
