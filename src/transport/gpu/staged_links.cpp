#include "transport/gpu/staged_links.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "core/fail.hpp"
#include "core/log.hpp"
#include "transport/gpu/own_messages.hpp"
#include "transport/wait.hpp"

namespace stretto {
namespace {

// The longest time for which the end of a copy may go unnoticed.
constexpr std::int64_t nanoseconds_between_looks_at_the_gpu = 50'000;

// The messages of one direction between this rank and one peer.
class OneWay {
 public:
  OneWay(Staging& staging, SideCopies& copies) : staging_(&staging), copies_(&copies) {}
  void add(const GpuMessage& message) { waiting_.push_back(message); }

  bool finished() const { return current_ == nullptr && waiting_.empty(); }
  bool waits_for_gpu() const { return current_ != nullptr && current_->waits_for_gpu(); }
  bool advance() {
    if (finished()) return false;
    if (current_ == nullptr) {
      current_ = staging_->begin(waiting_.front(), *copies_);
      waiting_.pop_front();
    }
    const bool moved = current_->advance();
    if (current_->complete()) current_.reset();
    return moved;
  }

 private:
  Staging* staging_;
  SideCopies* copies_;
  std::deque<GpuMessage> waiting_;
  std::unique_ptr<StagedMessage> current_;
};

}  // namespace

StagedLinks::StagedLinks(Gpu& gpu, Links& links, std::unique_ptr<Staging> staging)
    : gpu_(gpu), links_(links), staging_(std::move(staging)), copies_(gpu), ready_(gpu.create_event()) {}

StagedLinks::~StagedLinks() {
  try {
    if (failure().empty()) settle();
  } catch (const std::exception& error) {
    log().error("A communicator of GPUs ends before its ranks have taken what was sent to them: {}", error.what());
  }
  gpu_.destroy(ready_);
}

void StagedLinks::exchange(const std::vector<GpuMessage>& messages, GpuStream stream) {
  if (const std::string failed = failure(); !failed.empty()) fail(ErrorCode::peer_gave_up, "{}", failed);
  const Membership& members = links_.membership();
  const std::vector<GpuMessage> others =
      without_own(messages, members.rank, static_cast<int>(members.job_ranks.size()), gpu_, stream);
  if (others.empty()) return;
  if (gpu_.is_capturing(stream)) {
    fail(ErrorCode::unavailable,
         "GPUs that reach each other {} cannot communicate in a graph; make the calls without one, or give each rank a GPU "
         "of its own, where NCCL serves.",
         staging_->means());
  }
  try {
    gpu_.record(ready_, stream);
    wait([&] { return gpu_.reached(ready_) ? Look::finished : Look::at_gpu; });
    carry(others);
  } catch (const std::exception& error) {
    note_failure(error.what());
    throw;
  }
}

std::string StagedLinks::failure() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void StagedLinks::note_failure(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = why;
}

void StagedLinks::abort() {
  note_failure(fmt::format("Rank {} has aborted the communicator.", links_.network().job().rank()));
  aborted_ = true;
}

void StagedLinks::check_going_on() {
  if (aborted_) fail(ErrorCode::peer_gave_up, "{}", failure());
  links_.network().job().check();
}

// Returns when look() finds that all is finished; between looks other threads get the core.
void StagedLinks::wait(const std::function<Look()>& look) {
  forget_looks();
  const WaitPolicy policy = links_.wait_policy();
  Waiter waiter(policy, links_.network().segment().bell());
  while (true) {
    const Look found = look();
    if (found == Look::finished) return;
    if (found == Look::moved) {
      waiter.moved();
      continue;
    }
    if (waiter.pause_briefly()) continue;
    check_going_on();
    if (found == Look::at_gpu) look_again_by(steady_nanoseconds() + nanoseconds_between_looks_at_the_gpu);
    waiter.pause();
  }
}

void StagedLinks::carry(const std::vector<GpuMessage>& messages) {
  std::map<std::pair<bool, int>, OneWay> ways;
  for (const GpuMessage& message : messages) {
    ways.try_emplace({message.sends, message.peer}, *staging_, copies_).first->second.add(message);
  }
  wait([&] {
    bool moved = false;
    bool finished = true;
    bool at_gpu = false;
    for (auto& [where, way] : ways) {
      moved |= way.advance();
      finished &= way.finished();
      at_gpu |= way.waits_for_gpu();
    }
    return finished ? Look::finished : moved ? Look::moved : at_gpu ? Look::at_gpu : Look::at_peers;
  });
}

// The communicator cannot end before peers have taken the messages that were sent.
void StagedLinks::settle() {
  const double from = now_seconds();
  wait([&] {
    if (staging_->settled()) return Look::finished;
    const double waited = now_seconds() - from;
    if (waited <= links_.network().timeout()) return Look::at_peers;
    log().error("Rank {} ends a communicator whose ranks have not taken in {:.0f} s what it sent to their GPUs.",
                links_.network().job().rank(), waited);
    return Look::finished;
  });
}

}  // namespace stretto
