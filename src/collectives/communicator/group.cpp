#include "collectives/communicator/group.hpp"

#include <unistd.h>

#include <exception>

#include "core/fail.hpp"

namespace stretto {

Communicator::Group::Group(std::shared_ptr<RankContext> context, Membership membership, int area_members, std::string name)
    : context_(std::move(context)),
      links_(context_->network(), std::move(membership), area_members),
      name_(std::move(name)),
      turns_(context_->job(), name_),
      call_check_(links_, name_),
      fast_path_log_(std::make_shared<FastPathLog>(context_->ledger().most_records())),
      planner_(context_->selector(), links_, *fast_path_log_, name_) {
  if (links_.shares_memory()) shared_memory_ = std::make_unique<SharedMemory>(links_);
  context_->ledger().add(fast_path_log_, this->membership().id);
}

std::shared_ptr<Communicator::Group> Communicator::Group::make(std::shared_ptr<RankContext> context, Membership membership,
                                                               int area_members, std::string name) {
  count_forks();
  return {new Group(std::move(context), std::move(membership), area_members, std::move(name)), [](const Group* group) {
            if (group->forks_ == forks) delete group;
          }};
}

Communicator::Group::Place Communicator::Group::reserve_place(RankContext& context, int area_members) {
  return {context.job().rank(), context.next_group++, context.network().segment().reserve(Links::area_bytes(area_members))};
}

std::shared_ptr<Communicator::Group> Communicator::Group::at_places(std::shared_ptr<RankContext> context,
                                                                    const std::vector<Place>& places, int area_members,
                                                                    std::string name) {
  Membership membership;
  for (const Place& place : places) {
    if (place.job_rank == context->job().rank()) membership.rank = static_cast<int>(membership.job_ranks.size());
    membership.job_ranks.push_back(static_cast<int>(place.job_rank));
    membership.areas.push_back(place.area);
  }
  // Several threads may make groups at once, on different ranks in different orders. So the number of the first member alone
  // counts, and its rank makes it unique in the job.
  const int ranks = context->job().size();
  membership.id =
      places.front().number * static_cast<std::uint64_t>(ranks) + static_cast<std::uint64_t>(places.front().job_rank);
  require(membership.id < Links::most_ids, "A job of {} ranks has made {} communicators, and cannot tell more apart.", ranks,
          places.front().number);
  return make(std::move(context), std::move(membership), area_members, std::move(name));
}

InlineFastPath* Communicator::Group::make_fast_path() {
  if (!shared_memory_ || context_->checks_calls()) return nullptr;
  fast_path_ = std::make_unique<InlineFastPath>(links_, *shared_memory_, turns_, *fast_path_log_, context_->ledger());
  return fast_path_.get();
}

void Communicator::Group::refuse_process() const {
  fail(ErrorCode::invalid_argument,
       "Communicator '{}' belongs to the process that called fork(), not to its child {}; call it in the parent, or start a "
       "job in the child.",
       name_, getpid());
}

Communicator::Group::OnlyCaller::OnlyCaller(Group& group, Collective call) {
  if (!group.context_->checks_calls()) return;
  std::thread::id inside;
  if (group.caller_.compare_exchange_strong(inside, std::this_thread::get_id())) {
    entered_ = &group;
  } else if (inside != std::this_thread::get_id()) {
    const std::string sentence = fmt::format(
        "Two threads of rank {} call communicator '{}' at the same time, the second one {}; let one thread at a time call "
        "it, "
        "or give each thread a communicator of its own (Communicator::duplicate).",
        group.context_->job().rank(), group.name_, stretto::name(call));
    group.context_->job().abort(sentence);
    throw Error(ErrorCode::invalid_argument, sentence);
  }
}

Communicator::Group::OnlyCaller::~OnlyCaller() {
  if (entered_ != nullptr) entered_->caller_.store({});
}

// The destruction of GPU links is collective. A rank that leaves after an error must not wait there for ranks that wait for
// it.
Communicator::Group::~Group() {
  if (!gpu_links_ || !ends_in_trouble()) return;
  gpu_watch_->give_up(std::make_exception_ptr(
      Error(ErrorCode::peer_gave_up,
            fmt::format("Communicator '{}' was left by rank {} after an error.", name_, context_->job().rank()))));
}

bool Communicator::Group::ends_in_trouble() {
  if (turns_.gave_up() || std::uncaught_exceptions() > exceptions_at_start_) return true;
  try {
    context_->job().check();
  } catch (const std::exception&) {
    return true;
  }
  return false;
}

void Communicator::Group::join_gpus(const ExchangeBytes& exchange_bytes) {
  const std::lock_guard lock(joining_);
  if (gpu_links_) return;
  const RehearsalModeScope as_always({});  // the exchange must take place, also if the first call is one of a rehearsal
  std::unique_ptr<GpuLinks> links = make_gpu_links(links_, gpu(), exchange_bytes);
  std::vector<int> others = membership().job_ranks;
  std::erase(others, context_->job().rank());
  gpu_watch_ = std::make_unique<GpuWatch>(gpu(), context_->job(), *links, std::move(others), context_->network().timeout(),
                                          [this] { turns_.give_up(); });
  gpu_links_ = std::move(links);
  planner_.join_gpus(gpu_links_->collectives());
}

Communicator world_of(std::shared_ptr<JobControl> job, bool may_pin, const std::string& name) {
  auto context = std::make_shared<RankContext>(std::move(job), may_pin, name);
  const Membership& members = context->world();
  const auto size = static_cast<int>(members.job_ranks.size());
  return Communicator(Communicator::Group::make(std::move(context), members, size, name));
}

}  // namespace stretto
