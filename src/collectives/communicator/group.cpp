#include "collectives/communicator/group.hpp"

#include <chrono>
#include <cstring>
#include <exception>
#include <numeric>

#include "collectives/communicator/inline_fast_path.hpp"
#include "core/fail.hpp"

namespace stretto {

Communicator::Group::Group(std::shared_ptr<RankContext> context, Membership membership, int area_members, std::string name)
    : context_(std::move(context)),
      links_(context_->network(), std::move(membership), area_members),
      call_check_(context_->network(), links_),
      name_(std::move(name)),
      fast_path_log_(std::make_shared<FastPathLog>(context_->ledger().most_records())),
      nodes_(numbered_nodes(context_->network(), links_.membership().job_ranks)),
      node_sizes_(node_sizes(context_->network(), links_.membership().job_ranks, context_->job().size())) {
  if (links_.shares_memory()) shared_memory_ = std::make_unique<SharedMemory>(links_);
  if (shared_memory_ && !context_->checks_calls()) fast_path_ = std::make_unique<InlineFastPath>(*this);
  context_->ledger().add(fast_path_log_);
}

// The links' end is collective: who leaves in trouble must not wait there for those who wait for him.
Communicator::Group::~Group() {
  if (!gpu_links_ || !ends_in_trouble()) return;
  gpu_watch_->give_up(std::make_exception_ptr(
      Error(ErrorCode::peer_gave_up,
            fmt::format("Communicator '{}' was left by rank {} after an error.", name_, context_->job().rank()))));
}

bool Communicator::Group::ends_in_trouble() {
  if (broken_ || std::uncaught_exceptions() > exceptions_at_start_) return true;
  try {
    context_->job().check();
  } catch (const std::exception&) {
    return true;
  }
  return false;
}

void Communicator::Group::give_up() {
  const std::lock_guard lock(mutex_);
  broken_ = true;
  turn_changed_.notify_all();
}

void Communicator::Group::check_usable() const {
  context_->job().check();  // says more, if that is why
  if (broken_) fail(ErrorCode::internal, "Communicator '{}' is unusable since an earlier operation on it failed.", name_);
}

// The members tell each other by operations of their own, which have their places in the order of calls.
void Communicator::Group::join_gpus() {
  const std::lock_guard lock(joining_);
  if (gpu_links_) return;
  const Communicator members(std::shared_ptr<Group>(std::shared_ptr<Group>(), this));
  const OutsideOperationGroups alone;
  const ExchangeBytes exchange_bytes = [&](const Bytes& mine) {
    std::int64_t bytes = static_cast<std::int64_t>(mine.size());
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(size()));
    members.all_gather(&bytes, sizes.data(), 1, DType::i64, Stream::inline_(), {.tag = "join GPUs"});
    Bytes all(static_cast<std::size_t>(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0})));
    members.all_gather_v(mine.data(), all.data(), sizes, DType::u8, Stream::inline_(), {.tag = "join GPUs"});
    std::vector<Bytes> result;
    auto from = all.begin();
    for (const std::int64_t each : sizes) {
      result.emplace_back(from, from + each);
      from += each;
    }
    return result;
  };
  std::unique_ptr<GpuLinks> links = make_gpu_links(links_, gpu(), exchange_bytes);
  gpu_watch_ =
      std::make_unique<GpuWatch>(gpu(), context_->job(), *links, context_->network().timeout(), [this] { give_up(); });
  gpu_links_ = std::move(links);
}

Communicator::Group::Turn::Turn(std::shared_ptr<Group> group) : group_(std::move(group)) {
  const std::lock_guard lock(group_->mutex_);
  number_ = group_->next_turn_++;
}

Communicator::Group::Turn::~Turn() {
  if (!done_) finish(true);
}

void Communicator::Group::Turn::wait() {
  const auto is_now = [&] { return group_->current_turn_ == number_ || group_->broken_; };
  std::unique_lock lock(group_->mutex_);
  // What it waits for ends by itself, in time or with an error; the job may also end before.
  while (!group_->turn_changed_.wait_for(lock, std::chrono::milliseconds(200), is_now)) {
    lock.unlock();
    group_->context_->job().check();
    lock.lock();
  }
  if (group_->broken_) {
    lock.unlock();
    group_->check_usable();
  }
}

void Communicator::Group::Turn::finish(bool failed) {
  done_ = true;
  const std::lock_guard lock(group_->mutex_);
  if (failed) group_->broken_ = true;
  ++group_->current_turn_;
  group_->turn_changed_.notify_all();
}

Communicator world_of(std::unique_ptr<Job> job, bool may_pin, const std::string& name) {
  const int rank = job->rank();
  const int size = job->size();
  auto context = std::make_shared<RankContext>(std::move(job), may_pin);
  Membership membership;
  membership.rank = rank;
  const std::uint64_t area = context->network().segment().reserve(Links::area_bytes(size));
  const auto* bytes = reinterpret_cast<const std::byte*>(&area);
  for (const Bytes& part : context->job().exchange(Bytes(bytes, bytes + sizeof area))) {
    std::uint64_t theirs = 0;
    std::memcpy(&theirs, part.data(), sizeof theirs);
    membership.areas.push_back(theirs);
    membership.job_ranks.push_back(static_cast<int>(membership.job_ranks.size()));
  }
  return Communicator(std::make_shared<Communicator::Group>(std::move(context), std::move(membership), size, name));
}

}  // namespace stretto
