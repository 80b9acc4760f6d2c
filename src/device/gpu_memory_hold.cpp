#include <algorithm>
#include <atomic>
#include <functional>
#include <iterator>
#include <list>
#include <mutex>
#include <utility>

#include "device/memory.hpp"

namespace stretto {
namespace {

using Part = GpuMemoryHold::Part;

struct Waiting {
  Part block;
  std::function<void()> release;
};

std::mutex mutex;
std::atomic<int> holds = 0;  // in all; mostly there are none
auto& held = *new std::list<const std::vector<Part>*>;
auto& waiting = *new std::list<Waiting>;

bool meet(const Part& a, const Part& b) {
  const std::less<> before;
  return before(a.data, b.data + b.bytes) && before(b.data, a.data + a.bytes);
}

bool is_held(const Part& block) {
  return std::any_of(held.begin(), held.end(), [&](const std::vector<Part>* parts) {
    return std::any_of(parts->begin(), parts->end(), [&](const Part& part) { return meet(part, block); });
  });
}

}  // namespace

GpuMemoryHold::GpuMemoryHold(std::vector<Part> parts) : parts_(std::move(parts)) {
  const std::lock_guard lock(mutex);
  held.push_back(&parts_);
  ++holds;
}

GpuMemoryHold::~GpuMemoryHold() {
  std::list<Waiting> free;
  {
    const std::lock_guard lock(mutex);
    held.remove(&parts_);
    --holds;
    for (auto each = waiting.begin(); each != waiting.end();) {
      const auto next = std::next(each);
      if (!is_held(each->block)) free.splice(free.end(), waiting, each);
      each = next;
    }
  }
  for (const Waiting& each : free) each.release();
}

void release_when_nobody_holds(const std::byte* block, std::size_t bytes, std::function<void()> release) {
  if (holds.load() > 0) {
    const std::lock_guard lock(mutex);
    if (is_held({block, bytes})) {
      waiting.push_back({{block, bytes}, std::move(release)});
      return;
    }
  }
  release();
}

}  // namespace stretto
