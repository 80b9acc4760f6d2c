#include "stretto/models/microbatches.hpp"

namespace stretto {

Microbatches::Microbatches(const Decoder& model, ParameterUse& use, const Batch& all, std::int64_t micro_batch,
                           std::optional<double> factor, std::function<void()> ended)
    : model_(model), use_(use), all_(all), micro_batch_(micro_batch), factor_(factor), ended_(std::move(ended)) {}

Tensor Microbatches::compute(const Action& action, Tensor input) {
  use_.set_microbatch(action.microbatch);
  switch (action.kind) {
    case ActionKind::forward: return forward(action, std::move(input));
    case ActionKind::backward_weight: {
      under_way_.at({action.microbatch, action.chunk}).saved.later.compute(use_);
      end(action);
      return {};
    }
    default: return backward(action, std::move(input));
  }
}

Tensor Microbatches::forward(const Action& action, Tensor input) {
  const Batch batch = batch_of(action.microbatch);
  UnderWay& here = under_way_[{action.microbatch, action.chunk}];
  Tensor result = model_.forward(action.chunk, batch, std::move(input), here.saved, use_);
  const bool is_last = model_.is_last(action.chunk);
  if (is_last && !batch.targets) logits_ = result;
  if (is_last && batch.targets) {
    losses_.resize(static_cast<std::size_t>(all_.sequences / micro_batch_));
    losses_[static_cast<std::size_t>(action.microbatch)] = model_.loss(result, batch);
  }
  if (is_last && factor_) here.logits = result;
  if (!factor_) under_way_.erase({action.microbatch, action.chunk});
  return result;
}

Tensor Microbatches::backward(const Action& action, Tensor gradient) {
  const Batch batch = batch_of(action.microbatch);
  UnderWay& here = under_way_.at({action.microbatch, action.chunk});
  if (model_.is_last(action.chunk)) {
    gradient = std::exchange(here.logits, {});
    model_.loss_backward(gradient, batch, losses_[static_cast<std::size_t>(action.microbatch)], *factor_);
  }
  const bool weights_later = action.kind == ActionKind::backward_input;
  Tensor result = model_.backward(action.chunk, batch, std::move(gradient), here.saved, use_, weights_later);
  if (!weights_later) end(action);
  return result;
}

void Microbatches::end(const Action& action) {
  under_way_.erase({action.microbatch, action.chunk});
  ended_();
}

}  // namespace stretto
