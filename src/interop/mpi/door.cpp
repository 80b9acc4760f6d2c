#include "door.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "stretto/mpi.hpp"
#include "stretto/settings.hpp"

namespace stretto::mpi_door {

Door& door() {
  static auto& the_door = *new Door;
  return the_door;
}

// MPI promises that each of its calls also progresses all other operations in flight. A rank that waits in Stretto for a
// second rank must not delay a message for which that second rank waits in MPI. This probe never finds a message, so the MPI
// has to progress everything before it returns.
void keep_mpi_going() {
  if (door().silent_ == MPI_COMM_NULL) return;
  int found = 0;
  PMPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, door().silent_, &found, MPI_STATUS_IGNORE);
}

void give_up(const std::string& sentence) {
  int rank = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::fprintf(stderr, "error: stretto-mpi, rank %d: %s\n", rank, sentence.c_str());
  std::fflush(stderr);
  if (door().is_inherited()) _exit(1);  // MPI is the parent's, and waits here for ever
  // MPICH's launcher ends all ranks at once, and drops the output that it has not yet read from them.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  PMPI_Abort(MPI_COMM_WORLD, 1);
  std::abort();
}

bool Door::is_inherited() const { return process_ != 0 && process_ != getpid(); }

Served::Served(Communicator blocking_calls, Communicator other_calls)
    : blocking(std::move(blocking_calls)), beside(std::move(other_calls)), rank(blocking.rank()), size(blocking.size()) {
  const std::vector<int>& nodes = blocking.nodes();
  one_host = std::all_of(nodes.begin(), nodes.end(), [&](int node) { return node == nodes.front(); });
}

const Stream& Served::stream() const {
  std::call_once(made_, [&] { stream_.emplace("mpi"); });
  return *stream_;
}

// All ranks are in MPI_Init. Only here may the door wait for all ranks of MPI_COMM_WORLD: the first call on it may be
// non-blocking, and must not wait.
void Door::open() {
  int size = 0;
  process_ = getpid();
  PMPI_Comm_size(MPI_COMM_WORLD, &size);
  PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, detach, &keyval_, nullptr);
  PMPI_Comm_dup(MPI_COMM_SELF, &own_rank);
  PMPI_Comm_dup(MPI_COMM_WORLD, &silent_);
  guarded([&] {
    check_settings();
    if (size == 1) return;
    const Communicator world = connect(MPI_COMM_WORLD);
    attach(MPI_COMM_WORLD, std::make_shared<Served>(world, world.duplicate("MPI_COMM_WORLD beside")));
    serves_ = true;
  });
  open_.store(true, std::memory_order_release);
}

// The end of Stretto's last communicator blocks until all ranks have come, and does not progress the MPI meanwhile. So the
// ranks first wait for each other in the MPI.
void Door::close() {
  if (!is_open()) return;
  requests.finish_all();
  if (setting("STRETTO_MPI_REPORT") == "1") report.print();
  PMPI_Barrier(MPI_COMM_WORLD);
  open_.store(false, std::memory_order_release);
  while (!served_.empty()) {
    Served* const served = served_.begin()->first;
    const MPI_Comm comm = served_.begin()->second.first;
    PMPI_Comm_delete_attr(comm, keyval_);
    detach(comm, keyval_, served, nullptr);  // does nothing, unless the MPI has not called it
  }
  freed_.clear();
  PMPI_Comm_free_keyval(&keyval_);
  PMPI_Comm_free(&silent_);
  PMPI_Comm_free(&own_rank);
}

void Door::attach(MPI_Comm comm, std::shared_ptr<Served> served) {
  PMPI_Comm_set_attr(comm, keyval_, served.get());
  const std::lock_guard lock(mutex_);
  Served* const key = served.get();
  served_.emplace(key, std::make_pair(comm, std::move(served)));
  generation_.fetch_add(1, std::memory_order_release);
}

// The attribute's delete callback. Operations in flight keep their communicator alive.
int Door::detach(MPI_Comm, int, void* served, void*) {
  Door& self = door();
  std::shared_ptr<Served> freed;
  {
    const std::lock_guard lock(self.mutex_);
    const auto found = self.served_.find(static_cast<Served*>(served));
    if (found == self.served_.end()) return MPI_SUCCESS;
    freed = std::move(found->second.second);
    self.served_.erase(found);
    self.generation_.fetch_add(1, std::memory_order_release);
  }
  const ServedPool::Members members = freed->blocking.job_ranks();
  if (self.is_open()) self.freed_.put(members, {std::move(freed)});
  return MPI_SUCCESS;
}

Served* Door::find(MPI_Comm comm) {
  struct Remembered {
    std::uint64_t generation = 0;
    MPI_Comm comm = MPI_COMM_NULL;
    Served* served = nullptr;
  };
  static thread_local Remembered last;
  const std::uint64_t generation = generation_.load(std::memory_order_acquire);
  if (last.generation == generation && last.comm == comm) return last.served;
  if (!is_open() || comm == MPI_COMM_NULL) return nullptr;
  if (last.generation == 0) while_waiting({keep_mpi_going});  // the first call in this thread
  void* attribute = nullptr;
  int found = 0;
  PMPI_Comm_get_attr(comm, keyval_, static_cast<void*>(&attribute), &found);
  last = {generation, comm, found != 0 ? static_cast<Served*>(attribute) : nullptr};
  return last.served;
}

std::shared_ptr<Served> Door::owner_of(Served* served) {
  const std::lock_guard lock(mutex_);
  return served_.at(served).second;
}

Outcome Door::why_unserved(MPI_Comm comm) const {
  if (comm == MPI_COMM_NULL || !is_open()) return Outcome::arguments;
  int between = 0;
  int size = 0;
  PMPI_Comm_test_inter(comm, &between);
  PMPI_Comm_size(comm, &size);
  if (between != 0) return Outcome::inter_communicator;
  return size == 1 ? Outcome::alone : Outcome::unfollowed;
}

void Door::follow(MPI_Comm parent, MPI_Comm made) {
  Served* const whole = find(parent);
  if (whole == nullptr) return;
  ServedPool::Members members;
  int rank = 0;
  int size = 0;
  if (made != MPI_COMM_NULL) PMPI_Comm_size(made, &size);
  if (size > 1) {
    MPI_Group old_group = MPI_GROUP_NULL;
    MPI_Group new_group = MPI_GROUP_NULL;
    PMPI_Comm_group(parent, &old_group);
    PMPI_Comm_group(made, &new_group);
    std::vector<int> ranks(static_cast<std::size_t>(size));
    std::iota(ranks.begin(), ranks.end(), 0);
    members.resize(ranks.size());
    PMPI_Group_translate_ranks(new_group, size, ranks.data(), old_group, members.data());
    PMPI_Group_free(&old_group);
    PMPI_Group_free(&new_group);
    PMPI_Comm_rank(made, &rank);
    for (int& member : members) member = whole->blocking.job_ranks()[static_cast<std::size_t>(member)];
  }
  guarded([&] {
    if (auto served = counterpart(whole->blocking, members, rank)) attach(made, std::move(served));
  });
}

std::shared_ptr<Served> Door::counterpart(const Communicator& parent, const ServedPool::Members& members, int rank) {
  ServedPool::Offers offers = freed_.take(members);
  Wish mine;
  if (!members.empty()) mine.color = members.front();  // communicators that are made together have no ranks in common
  for (std::size_t i = 0; i < offers.size(); ++i) mine.ids[i] = offers[i]->blocking.id();
  std::vector<Wish> wishes(static_cast<std::size_t>(parent.size()));
  parent.all_gather(&mine, wishes.data(), sizeof mine / sizeof(std::int64_t), DType::i64, Stream::inline_()).wait();
  const std::map<std::int64_t, std::int64_t> agreed = agree(wishes);

  std::shared_ptr<Served> served;
  const auto id = agreed.find(mine.color);
  const bool found = id != agreed.end() && id->second != Wish::none;
  for (auto& offer : offers) {
    if (found && offer->blocking.id() == static_cast<std::uint64_t>(id->second)) served = std::exchange(offer, nullptr);
  }
  std::erase(offers, nullptr);
  if (!offers.empty()) freed_.put(members, std::move(offers));

  const auto lacks_one = [](const auto& color) { return color.second == Wish::none; };
  if (std::none_of(agreed.begin(), agreed.end(), lacks_one)) return served;
  const int color = found ? -1 : static_cast<int>(mine.color);
  // Both are split from the parent, which has been used: a communicator's first operation opens its shared memory.
  const Communicator blocking = parent.split(color, rank, "MPI communicator");
  const Communicator beside = parent.split(color, rank, "MPI communicator beside");
  if (blocking) served = std::make_shared<Served>(blocking, beside);
  return served;
}

}  // namespace stretto::mpi_door
