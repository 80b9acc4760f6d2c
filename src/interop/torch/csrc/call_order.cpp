#include "call_order.hpp"

#include <algorithm>

namespace stretto_torch {
namespace {

thread_local CallOrder::Callbacks* running = nullptr;

}  // namespace

CallOrder::Callbacks::Callbacks(const CallOrder& order, const Place& place) : order_(order), place_(place) {
  running = this;
}

CallOrder::Callbacks::~Callbacks() { running = nullptr; }

CallOrder::Callbacks* CallOrder::own() const { return running != nullptr && &running->order_ == this ? running : nullptr; }

bool CallOrder::is_inside(const Place& place, const Place& callbacks) {
  return place.size() > callbacks.size() && std::equal(callbacks.begin(), callbacks.end(), place.begin());
}

CallOrder::Place CallOrder::take_place() {
  Callbacks* const callbacks = own();
  if (callbacks == nullptr) return {++last_};
  Place place = callbacks->place_;
  place.push_back(++callbacks->last_);
  return place;
}

CallOrder::Place CallOrder::open(const Place& operation) {
  Place place = take_place();
  if (place < operation) {  // callbacks took the future of a later operation, which would then wait for its own callbacks
    place = operation;
    place.push_back(1);
  }
  open_.emplace(place, Holds::later_operations);
  return place;
}

void CallOrder::close(const Place& callbacks) { open_.erase(callbacks); }

bool CallOrder::must_wait(const Place& operation) const {
  for (const auto& [callbacks, holds] : open_) {
    if (operation < callbacks) return false;
    if (holds == Holds::later_operations && !is_inside(operation, callbacks)) return true;
  }
  return false;
}

void CallOrder::pass(const Place& operation) {
  for (auto& [callbacks, holds] : open_) {
    if (operation < callbacks) return;
    if (holds == Holds::later_operations && !is_inside(operation, callbacks)) holds = Holds::nothing_since_late;
  }
}

void CallOrder::wait_for(const Place& operation) {
  const Callbacks* const callbacks = own();
  if (callbacks == nullptr) return;
  for (auto& [each, holds] : open_) {
    if (operation < each) return;
    const bool runs_here = each == callbacks->place_ || is_inside(callbacks->place_, each);
    if (runs_here && holds == Holds::later_operations && !is_inside(operation, each)) holds = Holds::nothing;
  }
}

bool CallOrder::is_late() const {
  const Callbacks* const callbacks = own();
  if (callbacks == nullptr) return false;
  const auto found = open_.find(callbacks->place_);
  return found != open_.end() && found->second == Holds::nothing_since_late;
}

}  // namespace stretto_torch
