#include "collectives/communicator/operation.hpp"

#include <algorithm>

#include "collectives/communicator/group.hpp"
#include "collectives/communicator/inline_fast_path.hpp"
#include "collectives/communicator/launched_group.hpp"
#include "collectives/communicator/operation_group.hpp"
#include "core/fail.hpp"
#include "device/memory/heap.hpp"

namespace stretto {

const PlanVariant& Operation::State::variant() const {
  if (!planned->depends_on_memory()) return planned->ordinary;
  const PlanRequest& request = planned->ordinary.plan->request;
  const auto elsewhere = [](const void* buffer, std::int64_t count) {
    return count > 0 && !Heap::mine().offset_of(buffer).has_value();
  };
  const bool ordinary = elsewhere(call.input, input_count(request)) || elsewhere(call.output, output_count(request));
  return ordinary ? planned->ordinary : planned->symmetric;
}

bool Operation::State::is_to_self() const { return is_message(call.collective) && call.root == group->rank(); }

std::shared_ptr<const Quantizing> Operation::State::quantizing() const {
  const Quantization& how = options.quantization;
  auto quantizing = std::make_shared<Quantizing>();
  quantizing->rounding = how.rounding;
  quantizing->seed = how.seed;
  if (how.errors == nullptr) return quantizing;
  for (int i = 0; i < hops; ++i) {
    const std::int64_t count =
        std::max(planned->ordinary.plan->residual_counts[i], planned->symmetric.plan->residual_counts[i]);
    if (count > 0) quantizing->residuals[i] = how.errors->state(how.tensor, static_cast<Hop>(i), count);
  }
  return quantizing;
}

Work Operation::start(const Stream& stream) const {
  require(state_ != nullptr, "This operation was never prepared.");
  state_->group->check_process();
  const Call& call = state_->call;
  require(
      state_->device == Device::cpu || stream.device() == Device::cuda,
      "{} of buffers in a GPU's memory got stream '{}', which is the host's; give one of the GPU, such as computation().",
      name(call.collective), stream.name());
  Work work;  // the only one that is returned, so it is constructed in the caller's variable: see InlineFastPath::perform()
  if (in_operation_group()) {
    work = collect_in_group({state_, stream});
    return work;
  }
  if (InlineFastPath* const fast_path = state_->group->fast_path(stream)) {
    if (fast_path->run(*state_, work)) return work;
  }
  require(!state_->is_to_self(), "Rank {} cannot {} a message to or from itself outside a group of operations.",
          state_->group->rank(), name(call.collective));
  const Communicator::Group::OnlyCaller caller(*state_->group, call.collective);
  work = Work::reserve();
  launch({{state_, stream}}, work);
  return work;
}

const Method& Operation::method() const {
  require(state_ != nullptr, "This operation was never prepared.");
  return state_->variant().record->method;
}
const Plan& Operation::plan() const {
  require(state_ != nullptr, "This operation was never prepared.");
  return *state_->variant().plan;
}

}  // namespace stretto
