#include "server/parts/served_range.hpp"

#include <cstring>
#include <utility>

#include "core/fail.hpp"
#include "server/parts/tensor_bytes.hpp"

namespace stretto {
ServedRange::ServedRange(const Tensor& values, int workers, Consistency consistency, ServerFunction function,
                         bool acknowledges, std::int64_t first)
    : ServedPart(workers, consistency, acknowledges), function_(std::move(function)), first_(first), versions_{values} {
  for (int slot = 0; slot < function_.slots; ++slot) state_.push_back(Tensor::zeros(values.shape(), values.dtype()));
}

void ServedRange::check(int worker, const KeyedRows& pushed) const {
  const Tensor& values = versions_.back();
  require(pushed.keys.empty() && pushed.rows.size() == values.size() && pushed.rows.dtype() == values.dtype(),
          "Worker {} pushes {} elements of {} to a part of {} of {}.", worker, pushed.rows.size(), name(pushed.rows.dtype()),
          values.size(), name(values.dtype()));
}

KeyedRows ServedRange::sum(const std::vector<KeyedRows>& pushes) const {
  const Tensor& sum = pushes.front().rows;
  for (std::size_t w = 1; w < pushes.size(); ++w) {
    kernels::reduce(ReduceOp::sum, sum.dtype(), sum.raw(), pushes[w].rows.raw(), sum.raw(), sum.size());
  }
  return pushes.front();
}

void ServedRange::apply(const PartUpdate& update) {
  const bool keeps = consistency().kind == Consistency::Kind::exact;
  if (keeps || answered_) {
    versions_.push_back(versions_.back().clone());
    if (!keeps) versions_.pop_front();
    answered_ = false;
  }
  function_.update({.first = first_,
                    .values = versions_.back(),
                    .state = state_,
                    .pushed = update.pushed.rows,
                    .updates = update.number,
                    .pushes = update.pushes});
  const std::int64_t newest = update.number + 1;
  while (versions_.size() > 1 && newest - std::ssize(versions_) + 1 < oldest_version()) versions_.pop_front();
}

void ServedRange::read(Answer& answer, std::int64_t versions_before_last) {
  ensure(versions_before_last < std::ssize(versions_), "The version {} before the last one is gone.", versions_before_last);
  answered_ = answered_ || versions_before_last == 0;
  answer.values = versions_[static_cast<std::size_t>(std::ssize(versions_) - 1 - versions_before_last)];
}

void ServedRange::save_to(std::vector<Bytes>& pieces) const {
  for (const Tensor& state : state_) pieces.push_back(bytes_in(state));
  for (const Tensor& version : versions_) pieces.push_back(bytes_in(version));
}

void ServedRange::load_from(const std::vector<Bytes>& pieces) {
  const Tensor like = versions_.back();
  versions_.clear();
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    ensure(pieces[i].size() == like.bytes(), "A copy of a part of {} bytes came with {}.", like.bytes(), pieces[i].size());
    const bool is_state = i < state_.size();
    const Tensor to = is_state ? state_[i] : Tensor(like.shape(), like.dtype());
    to.copy_from_host(pieces[i].data());
    if (!is_state) versions_.push_back(to);
  }
  ensure(!versions_.empty(), "A copy of a part came without values.");
  answered_ = false;
}

}  // namespace stretto
