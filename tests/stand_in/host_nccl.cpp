#include "stand_in/host_nccl.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <utility>

#include "core/fail.hpp"

namespace stretto {
namespace {

using host_nccl::Batch;
using host_nccl::Report;

// This thread's calls since group_start(); as in NCCL, one group holds calls on all communicators.
struct OpenGroup {
  struct MemberBatch {
    std::shared_ptr<host_nccl::Member> member;
    Batch batch;
  };
  int depth = 0;
  bool failed = false;  // a call has failed; then the whole group is dropped
  std::vector<MemberBatch> batches;
  std::uint64_t put_before = 0;
  std::shared_ptr<Report> report;

  ~OpenGroup() {
    if (depth > 0) report->note("A thread has ended between group_start() and group_end().");
  }
  Batch& batch_of(const std::shared_ptr<host_nccl::Member>& member, GpuStream stream) {
    for (MemberBatch& each : batches) {
      if (each.member == member) return each.batch;
    }
    batches.push_back({member, {}});
    batches.back().batch.stream = stream;
    return batches.back().batch;
  }
};
thread_local OpenGroup open_group;

std::uintptr_t next_handle() {
  static std::atomic<std::uintptr_t> last = 0;
  return ++last;
}

bool overlap(const std::byte* a, std::size_t a_bytes, const std::byte* b, std::size_t b_bytes) {
  const std::less<> before;
  return before(a, b + b_bytes) && before(b, a + a_bytes);
}

}  // namespace

HostNccl::HostNccl(std::vector<HostGpu*> gpus, double timeout) : gpus_(std::move(gpus)), timeout_(timeout) {}
HostNccl::~HostNccl() = default;

void HostNccl::violate(const std::string& sentence) {
  report_->note(sentence);
  if (open_group.depth > 0) open_group.failed = true;
  throw Error(ErrorCode::internal, sentence);
}

std::size_t HostNccl::functions_put() const {
  const std::lock_guard lock(mutex_);
  return functions_put_;
}

// ---- Communicators

// A call on a communicator. A violation if another thread's call on it has not returned.
class HostNccl::Calling {
 public:
  Calling(HostNccl& nccl, Member member, const char* who) : member_(std::move(member)) {
    bool alone = false;
    {
      const std::lock_guard lock(member_->world->mutex);
      alone = member_->calls == 0 || member_->caller == std::this_thread::get_id();
      if (alone) {
        member_->caller = std::this_thread::get_id();
        ++member_->calls;
      }
    }
    if (!alone)
      nccl.violate(
          fmt::format("Two threads call NCCL with one communicator of rank {}, one of them {}.", member_->rank, who));
    if (nccl.call_us_ > 0) std::this_thread::sleep_for(std::chrono::microseconds(nccl.call_us_));
  }
  ~Calling() {
    const std::lock_guard lock(member_->world->mutex);
    --member_->calls;
  }
  Calling(const Calling&) = delete;
  Calling& operator=(const Calling&) = delete;

 private:
  Member member_;
};

void HostNccl::require_settled(const Member& member, const char* who) {
  bool settled = false;
  {
    const std::lock_guard lock(member->world->mutex);
    settled = member->unsettled.empty();
  }
  if (!settled) violate(fmt::format("{} was called before what rank {} had called was settled.", who, member->rank));
}

NcclId HostNccl::new_id() {
  const std::lock_guard lock(mutex_);
  ++last_id_;
  NcclId id{};
  std::memcpy(id.data(), &last_id_, sizeof last_id_);
  return id;
}

NcclComm HostNccl::join(int size, const NcclId& id, int rank, const std::function<void()>& check) {
  if (rank < 0 || rank >= size) violate(fmt::format("Rank {} is outside a communicator of {}.", rank, size));
  std::uint64_t number = 0;
  std::memcpy(&number, id.data(), sizeof number);
  const auto member = std::make_shared<host_nccl::Member>();
  HostGpu* const own = has_gpu() ? dynamic_cast<HostGpu*>(&gpu()) : nullptr;
  const bool known = std::find(gpus_.begin(), gpus_.end(), own) != gpus_.end();
  const std::uintptr_t handle = next_handle();
  {
    const std::lock_guard lock(mutex_);
    if (number == 0 || number > last_id_) violate("join() got an id that new_id() has not given.");
    auto& world = worlds_[number];
    if (!world) world = std::make_shared<host_nccl::World>(size, timeout_, report_);
    if (world->size != size) violate(fmt::format("Ranks join one communicator of {} and of {}.", world->size, size));
    member->world = world;
    member->rank = rank;
    member->gpu = known ? own : gpus_[static_cast<std::size_t>(rank) % gpus_.size()];
    members_[handle] = member;
  }
  host_nccl::World& world = *member->world;
  std::unique_lock lock(world.mutex);
  if (world.joined[rank]) violate(fmt::format("Rank {} joins a communicator twice.", rank));
  world.joined[rank] = true;
  ++world.joined_count;
  world.changed.notify_all();
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_);
  while (!world.changed.wait_for(lock, std::chrono::milliseconds(20), [&] { return world.joined_count == size; })) {
    if (check) check();
    if (std::chrono::steady_clock::now() < end) continue;
    violate(fmt::format("Rank {} has waited {} s for {} others to join a communicator of {}.", rank, timeout_,
                        size - world.joined_count, size));
  }
  return reinterpret_cast<NcclComm>(handle);
}

HostNccl::Member HostNccl::member_of(NcclComm comm, const char* who) {
  Member member;
  {
    const std::lock_guard lock(mutex_);
    const auto found = members_.find(reinterpret_cast<std::uintptr_t>(comm));
    if (found != members_.end()) member = found->second;
  }
  if (!member) violate(fmt::format("{} got a communicator that join() has not given.", who));
  const std::lock_guard lock(member->world->mutex);
  if (member->destroyed) violate(fmt::format("{} got a communicator that rank {} has destroyed.", who, member->rank));
  if (member->aborted) violate(fmt::format("{} got a communicator that rank {} has aborted.", who, member->rank));
  return member;
}

bool HostNccl::settled(NcclComm comm) {
  const Member member = member_of(comm, "settled");
  const Calling calling(*this, member, "settled");
  std::deque<Batch> ready;
  {
    const std::lock_guard lock(member->world->mutex);
    if (member->finishing) return member->finished == member->put && member->running_in == nullptr;
    if (member->unsettled.empty()) return true;
    for (const Batch& batch : member->unsettled) {
      if (!member->world->connected(member->rank, batch)) return false;
    }
    ready.swap(member->unsettled);
  }
  if (HostGpu::put_by_this_thread() != member->put_before) {
    violate("Something else was put into a stream before what had been called was settled; it goes before.");
  }
  for (Batch& batch : ready) put_now(member, std::move(batch));
  return true;
}

void HostNccl::finish(NcclComm comm) {
  const Member member = member_of(comm, "finish");
  const Calling calling(*this, member, "finish");
  require_settled(member, "finish");
  const std::lock_guard lock(member->world->mutex);
  member->finishing = true;
}

void HostNccl::destroy(NcclComm comm) {
  const Member member = member_of(comm, "destroy");
  const Calling calling(*this, member, "destroy");
  require_settled(member, "destroy");
  if (open_group.depth > 0) violate("A communicator is destroyed between group_start() and group_end().");
  host_nccl::World& world = *member->world;
  std::unique_lock lock(world.mutex);
  member->destroyed = true;
  const bool ended = world.changed.wait_for(lock, std::chrono::duration<double>(2 * timeout_), [&] {
    return member->finished == member->put && member->running_in == nullptr;
  });
  if (!ended) violate(fmt::format("Rank {} destroys a communicator with operations that do not end.", member->rank));
}

void HostNccl::abort(NcclComm comm) {
  const Member member = member_of(comm, "abort");
  const Calling calling(*this, member, "abort");
  const std::lock_guard lock(member->world->mutex);
  member->aborted = true;
  member->unsettled.clear();
  member->world->changed.notify_all();
}

std::string HostNccl::failure(NcclComm comm) {
  const Member member = member_of(comm, "failure");
  const Calling calling(*this, member, "failure");
  const std::lock_guard lock(member->world->mutex);
  return member->failure;
}

// ---- Groups

void HostNccl::group_start() {
  if (open_group.depth++ > 0) return;
  open_group.failed = false;
  open_group.put_before = HostGpu::put_by_this_thread();
  open_group.report = report_;
}

void HostNccl::group_end() {
  if (open_group.depth == 0) violate("group_end() was called without group_start().");
  if (--open_group.depth > 0) return;
  std::vector<OpenGroup::MemberBatch> batches;
  batches.swap(open_group.batches);
  if (std::exchange(open_group.failed, false)) throw Error(ErrorCode::internal, "A call of this group has failed.");
  if (HostGpu::put_by_this_thread() != open_group.put_before) {
    violate("Something else was put into a stream between group_start() and group_end(); it goes before the messages.");
  }
  for (OpenGroup::MemberBatch& each : batches) put(each.member, std::move(each.batch));
}

void HostNccl::put(const Member& member, Batch batch) {
  const Calling calling(*this, member, "group_end");
  if (!connects_) return put_now(member, std::move(batch));
  const std::lock_guard lock(member->world->mutex);
  member->world->ask_for_connections(member->rank, batch);
  member->unsettled.push_back(std::move(batch));
  member->put_before = HostGpu::put_by_this_thread();
}

void HostNccl::put_now(const Member& member, Batch batch) {
  const GpuStream stream = batch.stream;
  const bool captured = member->gpu->is_capturing(stream);
  {
    const std::lock_guard lock(mutex_);
    ++functions_put_;
  }
  {
    const std::lock_guard lock(member->world->mutex);
    batch.captured = captured;
    if (!captured) batch.number = member->put++;
  }
  member->gpu->put(stream, [member, batch = std::move(batch)] { member->world->run(*member, batch); });
}

// ---- Messages and collectives

void HostNccl::message(bool sends, std::byte* data, std::size_t bytes, int peer, NcclComm comm, GpuStream stream) {
  const char* const who = sends ? "send" : "recv";
  const Member member = member_of(comm, who);
  const Calling calling(*this, member, who);
  require_settled(member, who);
  if (peer < 0 || peer >= member->world->size) {
    violate(fmt::format("{} names rank {} of a communicator of {}.", who, peer, member->world->size));
  }
  member->gpu->require_memory(who, data, bytes);
  group_start();
  Batch& batch = open_group.batch_of(member, stream);
  const bool same_stream = batch.stream == stream;
  batch.messages.push_back({sends, data, bytes, peer});
  group_end();
  if (!same_stream) violate("One communicator has messages for two streams in a group.");
}

void HostNccl::send(const void* data, std::size_t bytes, int peer, NcclComm comm, GpuStream stream) {
  message(true, static_cast<std::byte*>(const_cast<void*>(data)), bytes, peer, comm, stream);
}
void HostNccl::recv(void* data, std::size_t bytes, int peer, NcclComm comm, GpuStream stream) {
  message(false, static_cast<std::byte*>(data), bytes, peer, comm, stream);
}

void HostNccl::check_memory(const host_nccl::Member& member, const GpuCollective& call) {
  const int size = member.world->size;
  const std::size_t share = static_cast<std::size_t>(call.count) * size_of(call.dtype);
  const std::size_t input_bytes = share * static_cast<std::size_t>(host_nccl::input_counts(call, member.rank, size));
  const std::size_t output_bytes = share * static_cast<std::size_t>(host_nccl::output_counts(call, member.rank, size));
  const char* const who = name(call.collective);
  member.gpu->require_memory(who, call.input, input_bytes);
  member.gpu->require_memory(who, call.output, output_bytes);
  for (const auto& [pointer, bytes] :
       {std::pair(call.input, input_bytes), std::pair<const std::byte*, std::size_t>(call.output, output_bytes)}) {
    if (bytes > 0 && reinterpret_cast<std::uintptr_t>(pointer) % size_of(call.dtype) != 0) {
      violate(fmt::format("{} got memory at {}, which is not aligned for {}.", who, static_cast<const void*>(pointer),
                          name(call.dtype)));
    }
  }
  if (input_bytes == 0 || output_bytes == 0 || !overlap(call.input, input_bytes, call.output, output_bytes)) return;
  const std::size_t own = share * static_cast<std::size_t>(member.rank);
  const bool in_place = call.collective == Collective::all_gather       ? call.input == call.output + own
                        : call.collective == Collective::reduce_scatter ? call.output == call.input + own
                        : call.collective == Collective::all_to_all     ? false
                                                                        : call.input == call.output;
  if (!in_place) violate(fmt::format("Input and output of {} overlap, and not as in place.", who));
}

void HostNccl::collective(const GpuCollective& call, NcclComm comm, GpuStream stream) {
  const Member member = member_of(comm, name(call.collective));
  const Calling calling(*this, member, name(call.collective));
  require_settled(member, name(call.collective));
  if (call.root < 0 || call.root >= member->world->size) {
    violate(fmt::format("{} names rank {} of a communicator of {}.", name(call.collective), call.root, member->world->size));
  }
  if (call.op == ReduceOp::premul_sum) violate("NCCL was asked for a premultiplied sum without a factor.");
  if (call.count == 0) return;
  check_memory(*member, call);
  group_start();
  Batch& batch = open_group.batch_of(member, stream);
  const bool same_stream = batch.stream == stream;
  batch.collectives.push_back(call);
  group_end();
  if (!same_stream) violate("One communicator has collectives for two streams in a group.");
}

namespace {
GpuCollective call_of(Collective collective, const void* input, void* output, std::int64_t count, DType dtype,
                      ReduceOp op = ReduceOp::sum, int root = 0) {
  return {collective, static_cast<const std::byte*>(input), static_cast<std::byte*>(output), count, dtype, op, root};
}
}  // namespace

void HostNccl::all_reduce(const void* input, void* output, std::int64_t count, DType dtype, ReduceOp op, NcclComm comm,
                          GpuStream stream) {
  collective(call_of(Collective::all_reduce, input, output, count, dtype, op), comm, stream);
}
void HostNccl::reduce_scatter(const void* input, void* output, std::int64_t count, DType dtype, ReduceOp op, NcclComm comm,
                              GpuStream stream) {
  collective(call_of(Collective::reduce_scatter, input, output, count, dtype, op), comm, stream);
}
void HostNccl::all_gather(const void* input, void* output, std::int64_t count, DType dtype, NcclComm comm,
                          GpuStream stream) {
  collective(call_of(Collective::all_gather, input, output, count, dtype), comm, stream);
}
void HostNccl::all_to_all(const void* input, void* output, std::int64_t count, DType dtype, NcclComm comm,
                          GpuStream stream) {
  collective(call_of(Collective::all_to_all, input, output, count, dtype), comm, stream);
}
void HostNccl::broadcast(const void* input, void* output, std::int64_t count, DType dtype, int root, NcclComm comm,
                         GpuStream stream) {
  collective(call_of(Collective::broadcast, input, output, count, dtype, ReduceOp::sum, root), comm, stream);
}
void HostNccl::reduce(const void* input, void* output, std::int64_t count, DType dtype, ReduceOp op, int root, NcclComm comm,
                      GpuStream stream) {
  collective(call_of(Collective::reduce, input, output, count, dtype, op, root), comm, stream);
}

}  // namespace stretto
