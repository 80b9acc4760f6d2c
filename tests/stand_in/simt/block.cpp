#undef _FORTIFY_SOURCE  // its longjmp() refuses to jump to another stack
#include "stand_in/simt/block.hpp"

#include <fmt/format.h>
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

constinit thread_local uint3 threadIdx = {}, blockIdx = {};
constinit thread_local dim3 blockDim = {}, gridDim = {};

namespace stretto::simt {
namespace {

constexpr std::size_t stack_bytes = std::size_t{128} << 10;

// Threads that wait for each other: a block's threads at a barrier, or the lanes of one mask. Values are kept twice, because
// the first lane may give its next value while the last one still reads.
struct Meeting {
  unsigned generation = 0;
  unsigned arrived = 0;  // a block's number of threads, or a warp's mask of lanes
  Values values[2];
};

struct Warp {
  std::map<unsigned, Meeting> meetings;  // by mask
  unsigned ended = 0, there = 0;         // masks of lanes
};

// A stack for one fiber at a time; any thread of the host may run it. Contexts only start a stack, because swapping them
// takes a system call; setjmp() and longjmp() do the switches.
class Stack {
 public:
  Stack() : memory_(new std::byte[stack_bytes]) {
    getcontext(&beginning_);
    beginning_.uc_stack.ss_sp = memory_.get();
    beginning_.uc_stack.ss_size = stack_bytes;
    makecontext(&beginning_, &Stack::work, 0);
  }
  // Runs the stack's fiber until it leaves; the first time from its beginning.
  void enter() {
    entered_ = this;
    if (_setjmp(outside) != 0) return;
    if (std::exchange(begun_, true)) _longjmp(inside_, 1);
    setcontext(&beginning_);
  }
  // Must not be inlined: a function computes the address of thread-local variables once, but may continue on another thread.
  [[gnu::noinline]] static void leave() {
    if (_setjmp(entered_->inside_) == 0) _longjmp(outside, 1);
  }

 private:
  static void work();

  static thread_local jmp_buf outside;
  static thread_local Stack* entered_;
  std::unique_ptr<std::byte[]> memory_;
  ucontext_t beginning_;
  jmp_buf inside_;
  bool begun_ = false;
};
thread_local jmp_buf Stack::outside;
thread_local Stack* Stack::entered_ = nullptr;

// Stacks that no block uses at the moment.
class SpareStacks {
 public:
  std::vector<std::unique_ptr<Stack>> take(std::size_t count) {
    std::vector<std::unique_ptr<Stack>> taken(count);
    const std::lock_guard lock(mutex_);
    for (auto& each : taken) {
      if (spare_.empty()) {
        each = std::make_unique<Stack>();
      } else {
        each = std::move(spare_.back());
        spare_.pop_back();
      }
    }
    return taken;
  }
  void give_back(std::vector<std::unique_ptr<Stack>> stacks) {
    const std::lock_guard lock(mutex_);
    std::move(stacks.begin(), stacks.end(), std::back_inserter(spare_));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Stack>> spare_;
};
SpareStacks spare_stacks;

struct Fiber {
  uint3 index;
  int number = 0;
  Meeting* meeting = nullptr;  // the meeting that the fiber waits at, and the generation whose end it waits for
  unsigned generation = 0;
  bool ended = false;

  bool can_go_on() const { return !ended && (meeting == nullptr || meeting->generation != generation); }
};

class Block;
thread_local Block* running = nullptr;

class Block {
 public:
  // blockDim gives the size, blockIdx the block.
  Block(const std::function<void()>& thread, std::mt19937_64& chance)
      : thread_(thread), fibers_(blockDim.x * blockDim.y * blockDim.z) {
    warps_.resize((fibers_.size() + warp_size - 1) / warp_size);
    for (std::size_t i = 0; i < fibers_.size(); ++i) order_.push_back(i);
    std::shuffle(order_.begin(), order_.end(), chance);
  }

  // The stacks can be reused unless this throws: then some fibers have not ended.
  void run(const std::vector<std::unique_ptr<Stack>>& stacks) {
    running = this;
    for (std::size_t i = 0; i < fibers_.size(); ++i) begin(static_cast<int>(i));
    live_ = static_cast<unsigned>(fibers_.size());
    while (live_ > 0) {
      bool any = false;
      for (const std::size_t i : order_) {
        if (!fibers_[i].can_go_on()) continue;
        any = true;
        current_ = &fibers_[i];
        threadIdx = current_->index;
        stacks[i]->enter();
        if (!error_.empty()) throw std::runtime_error(error_);
      }
      if (!any) throw std::runtime_error(stuck());
    }
  }

  void be_thread() {
    try {
      thread_();
    } catch (const std::exception& error) {
      error_ = error.what();
    }
    current_->ended = true;
    warps_[current_->number / warp_size].ended |= 1U << (current_->number % warp_size);
    --live_;
    release_barrier();  // the barrier waits only for threads that have not ended
  }

  int lane() const { return current_->number % warp_size; }

  void wait_for_block() {
    ++barrier_.arrived;
    if (!release_barrier()) wait(barrier_, barrier_.generation);
  }

  const Values& exchange(unsigned mask, const void* value, std::size_t bytes) {
    const int lane = this->lane();
    Warp& warp = warps_[current_->number / warp_size];
    const unsigned mine = 1U << lane;
    const auto where = [&] { return fmt::format("Thread {} of block {}", current_->number, blockIdx.x); };
    if ((mask & mine) == 0) throw std::runtime_error(fmt::format("{} is not in its own mask {:#x}.", where(), mask));
    if ((mask & ~warp.there) != 0)
      throw std::runtime_error(
          fmt::format("{} waits for lanes {:#x}, which its warp has not.", where(), mask & ~warp.there));
    if ((mask & warp.ended) != 0)
      throw std::runtime_error(fmt::format("{} waits for lanes {:#x}, which have ended.", where(), mask & warp.ended));
    Meeting& meeting = warp.meetings[mask];
    const unsigned generation = meeting.generation;
    if (bytes > 0) std::memcpy(meeting.values[generation % 2][lane].data(), value, bytes);
    meeting.arrived |= mine;
    if (meeting.arrived == mask) {
      meeting.arrived = 0;
      ++meeting.generation;
    } else {
      wait(meeting, generation);
    }
    return meeting.values[generation % 2];
  }

 private:
  void begin(int i) {
    Fiber& fiber = fibers_[i];
    fiber.number = i;
    const unsigned row = i / blockDim.x;
    fiber.index = {i % blockDim.x, row % blockDim.y, row / blockDim.y};
    warps_[i / warp_size].there |= 1U << (i % warp_size);
  }

  bool release_barrier() {
    if (barrier_.arrived == 0 || barrier_.arrived != live_) return false;
    barrier_.arrived = 0;
    ++barrier_.generation;
    return true;
  }

  void wait(Meeting& meeting, unsigned generation) {
    Fiber& mine = *current_;
    mine.meeting = &meeting;
    mine.generation = generation;
    Stack::leave();
    mine.meeting = nullptr;
  }

  std::string stuck() const {
    std::string masks;
    for (const Warp& warp : warps_) {
      for (const auto& [mask, meeting] : warp.meetings) {
        if (meeting.arrived != 0) masks += fmt::format("; lanes {:#x} of the mask {:#x}", meeting.arrived, mask);
      }
    }
    return fmt::format("Block {} of {} threads is stuck: {} of {} that have not ended are at the barrier{}.", blockIdx.x,
                       fibers_.size(), barrier_.arrived, live_, masks);
  }

  const std::function<void()>& thread_;
  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  std::vector<std::size_t> order_;
  Meeting barrier_;
  unsigned live_ = 0;
  Fiber* current_ = nullptr;
  std::string error_;
};

[[gnu::noinline]] void be_thread_of_running() { running->be_thread(); }

void Stack::work() {
  while (true) {
    be_thread_of_running();
    leave();
  }
}

}  // namespace

void run(dim3 grid, dim3 block, const std::function<void()>& before_block, const std::function<void()>& thread,
         const std::function<void()>& after_block) {
  static std::atomic<std::uint64_t> launches;
  std::mt19937_64 chance(++launches);
  std::vector<uint3> blocks;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) blocks.push_back({x, y, z});
    }
  }
  std::shuffle(blocks.begin(), blocks.end(), chance);
  std::vector<std::unique_ptr<Stack>> stacks = spare_stacks.take(block.x * block.y * block.z);
  gridDim = grid;
  blockDim = block;
  for (const uint3& each : blocks) {
    blockIdx = each;
    before_block();
    Block(thread, chance).run(stacks);
    after_block();
  }
  spare_stacks.give_back(std::move(stacks));
}

int lane() { return running->lane(); }
void wait_for_block() { running->wait_for_block(); }
const Values& exchange(unsigned mask, const void* value, std::size_t bytes) { return running->exchange(mask, value, bytes); }

}  // namespace stretto::simt
