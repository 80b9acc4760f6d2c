#include "server/served_part.hpp"

#include <algorithm>
#include <utility>

#include "core/fail.hpp"

namespace stretto {

ServedPart::ServedPart(const Tensor& values, int workers, Consistency consistency, ServerUpdate update)
    : consistency_(consistency), update_(std::move(update)), versions_{values}, pushes_(workers) {}

void ServedPart::push(int worker, std::int64_t clock, const Tensor& pushed) {
  require(pushed.size() == versions_.back().size() && pushed.dtype() == versions_.back().dtype(),
          "Worker {} pushes {} elements of {} to a part of {} of {}.", worker, pushed.size(), name(pushed.dtype()),
          versions_.back().size(), name(versions_.back().dtype()));
  pushes_.count(worker, clock);
  if (consistency_.kind == Consistency::Kind::eventual) {
    apply(pushed);
  } else {
    pushes_.keep(worker, pushed);
    while (pushes_.has_whole_clock()) apply_all(pushes_.take_whole_clock());
  }
  forget_versions();
}

void ServedPart::apply_all(const std::vector<Tensor>& pushed) {
  const Tensor& sum = pushed.front();
  for (std::size_t w = 1; w < pushed.size(); ++w) {
    kernels::reduce(ReduceOp::sum, sum.dtype(), sum.raw(), pushed[w].raw(), sum.raw(), sum.size());
  }
  apply(sum);
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
  const std::int64_t oldest = *std::ranges::min_element(clocks()) - consistency_.delay;
  while (versions_.size() > 1 && version_ - std::ssize(versions_) + 1 < oldest) versions_.pop_front();
}

std::vector<ServedPart::Answer> ServedPart::answers() {
  std::vector<Answer> result;
  std::erase_if(waiting_, [&](const Pull& pull) {
    const std::int64_t needed = least_version(consistency_, pull.clock);
    if (version_ < needed) return false;
    const std::int64_t given = consistency_.kind == Consistency::Kind::exact ? needed : version_;
    result.push_back({pull, versions_[static_cast<std::size_t>(std::ssize(versions_) - 1 - (version_ - given))], given});
    answered_ = answered_ || given == version_;
    return true;
  });
  pushes_.check_waiting(waiting_.size());
  return result;
}

}  // namespace stretto
