#include "interop/nccl/stand_in.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <optional>
#include <thread>

#include "interop/nccl/calls/answers.hpp"
#include "interop/nccl/communicators.hpp"
#include "stretto/error.hpp"

namespace stretto {
namespace {

using nccl_door::RealNccl;

// ---- CUDA

class CudaOfThreads final : public nccl_door::CudaCalls {
 public:
  int device() override { return device_.value_or(gpu().info().index); }
  void use_device(int device) override { device_ = device; }
  nccl_door::GpuDescription describe(int /*device*/) override { return {gpu().info().uuid, gpu().info().name}; }
  bool is_on_gpu(const void* pointer) override { return gpu().is_device_memory(pointer); }
  bool is_capturing(cudaStream_t stream) override { return gpu().is_capturing(of(stream)); }

  void* allocate(std::size_t bytes) override {
    const GpuStream stream = gpu().create_stream(Priority::normal);
    std::byte* const memory = gpu().allocate(bytes, stream);
    // cudaMalloc() returns memory that any stream may use.
    const GpuEvent allocated = gpu().create_event();
    gpu().record(allocated, stream);
    gpu().synchronize(allocated);
    gpu().destroy(allocated);
    const std::lock_guard lock(mutex_);
    blocks_[memory] = {&gpu(), stream};
    return memory;
  }
  void release(void* memory) override {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(memory);
    found->second.first->release(static_cast<std::byte*>(memory), found->second.second);
    found->second.first->destroy(found->second.second);
    blocks_.erase(found);
  }
  cudaStream_t create_stream() override { return cuda_stream(gpu().create_stream(Priority::normal)); }
  void destroy(cudaStream_t stream) override { gpu().destroy(of(stream)); }
  cudaEvent_t create_event() override {
    const GpuEvent event = gpu().create_event();
    const std::lock_guard lock(mutex_);
    events_[event] = &gpu();
    return reinterpret_cast<cudaEvent_t>(event);
  }
  void destroy(cudaEvent_t event) override {  // in whatever thread
    const std::lock_guard lock(mutex_);
    const auto found = events_.find(of(event));
    found->second->destroy(found->first);
    events_.erase(found);
  }
  void record(cudaEvent_t event, cudaStream_t stream) override { gpu().record(of(event), of(stream)); }
  void wait(cudaStream_t stream, cudaEvent_t event) override { gpu().wait(of(stream), of(event)); }

 private:
  static GpuStream of(cudaStream_t stream) { return reinterpret_cast<GpuStream>(stream); }
  static GpuEvent of(cudaEvent_t event) { return reinterpret_cast<GpuEvent>(event); }

  std::mutex mutex_;
  std::map<void*, std::pair<Gpu*, GpuStream>> blocks_;
  std::map<GpuEvent, Gpu*> events_;
  static thread_local std::optional<int> device_;
};
thread_local std::optional<int> CudaOfThreads::device_;

// ---- NCCL

DType type_of(ncclDataType_t type) {
  static constexpr DType types[] = {DType::i8,  DType::u8,  DType::i32, DType::u32,  DType::i64,    DType::u64,
                                    DType::f16, DType::f32, DType::f64, DType::bf16, DType::f8e4m3, DType::f8e5m2};
  return types[type];
}
ReduceOp op_of(ncclRedOp_t op) {
  static constexpr ReduceOp ops[] = {ReduceOp::sum, ReduceOp::prod, ReduceOp::max, ReduceOp::min, ReduceOp::avg};
  return ops[op];
}

struct Member {
  int rank = 0;
  int size = 1;
  std::uint64_t splits = 0;
  std::uint64_t family = 0;  // of all ranks of the communicator
};

struct State {
  HostNccl* nccl = nullptr;
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, int> calls;
  std::map<ncclComm_t, Member> members;
  std::map<std::string, std::set<std::string>> gpus;  // by id
  struct Wish {
    int color, key, rank;
  };
  struct Parting {
    std::vector<Wish> wishes;
    std::map<int, NcclId> ids;  // by color
  };
  std::map<std::pair<std::uint64_t, std::uint64_t>, Parting> partings;  // by family and number
};
State* behind = nullptr;

// What this thread has called since ncclGroupStart: begun at its end, so that the program may put other things meanwhile.
struct Collected {
  int depth = 0;
  std::vector<std::function<void()>> calls;
};
thread_local Collected collected;

NcclComm of(ncclComm_t comm) { return reinterpret_cast<NcclComm>(comm); }
GpuStream of(cudaStream_t stream) { return reinterpret_cast<GpuStream>(stream); }
std::byte* bytes(void* memory) { return static_cast<std::byte*>(memory); }
const std::byte* bytes(const void* memory) { return static_cast<const std::byte*>(memory); }

void count(const char* function) {
  const std::lock_guard lock(behind->mutex);
  ++behind->calls[function];
}
Member member_of(ncclComm_t comm) {
  const std::lock_guard lock(behind->mutex);
  return behind->members.at(comm);
}

template <class Action>
ncclResult_t result_of(const char* function, const Action& action) {
  count(function);
  try {
    action();
    return ncclSuccess;
  } catch (const std::exception& error) {
    ADD_FAILURE() << function << ": " << error.what();
    return ncclInternalError;
  }
}

template <class Action>
ncclResult_t operation(const char* function, Action action) {
  return result_of(function, [&] {
    if (collected.depth > 0) {
      collected.calls.emplace_back(std::move(action));
    } else {
      action();
    }
  });
}

std::uint64_t family_of(const NcclId& id) {
  std::uint64_t number = 0;
  std::memcpy(&number, id.data(), sizeof number);
  return number;
}

ncclResult_t get_unique_id(ncclUniqueId* id) {
  return result_of("GetUniqueId", [&] {
    const NcclId made = behind->nccl->new_id();
    std::memcpy(id, made.data(), sizeof *id);
  });
}

void join(ncclComm_t* comm, int size, const NcclId& id, int rank) {
  *comm = reinterpret_cast<ncclComm_t>(behind->nccl->join(size, id, rank, {}));
  const std::lock_guard lock(behind->mutex);
  behind->members[*comm] = {rank, size, 0, family_of(id)};
}

ncclResult_t comm_init_rank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  NcclId joined;
  std::memcpy(joined.data(), &id, sizeof id);
  {
    const std::lock_guard lock(behind->mutex);
    if (!behind->gpus[std::to_string(family_of(joined))].insert(gpu().info().uuid).second) return ncclInvalidUsage;
  }
  return operation("CommInitRank", [=] { join(comm, size, joined, rank); });
}
ncclResult_t comm_init_rank_config(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* /*config*/) {
  count("CommInitRankConfig");
  return comm_init_rank(comm, size, id, rank);
}

// Collective, like NCCL's.
ncclResult_t comm_split(ncclComm_t comm, int color, int key, ncclComm_t* part, ncclConfig_t* /*config*/) {
  return operation("CommSplit", [=] {
    std::vector<State::Wish> mine;
    NcclId id{};
    int rank = 0;
    {
      std::unique_lock lock(behind->mutex);
      Member& member = behind->members.at(comm);
      State::Parting& parting = behind->partings[{member.family, member.splits++}];
      rank = member.rank;
      parting.wishes.push_back({color, key, rank});
      behind->changed.notify_all();
      const auto size = static_cast<std::size_t>(member.size);
      behind->changed.wait(lock, [&] { return parting.wishes.size() == size; });
      for (const State::Wish& wish : parting.wishes) {
        if (wish.color == color) mine.push_back(wish);
      }
      if (color >= 0 && !parting.ids.contains(color)) parting.ids[color] = behind->nccl->new_id();
      if (color >= 0) id = parting.ids[color];
    }
    *part = nullptr;
    if (color < 0) return;
    std::sort(mine.begin(), mine.end(),
              [](const auto& a, const auto& b) { return std::pair(a.key, a.rank) < std::pair(b.key, b.rank); });
    const auto place = std::find_if(mine.begin(), mine.end(), [&](const auto& wish) { return wish.rank == rank; });
    join(part, static_cast<int>(mine.size()), id, static_cast<int>(place - mine.begin()));
  });
}

template <void (HostNccl::*end)(NcclComm)>
ncclResult_t end_comm(const char* function, ncclComm_t comm) {
  return result_of(function, [&] {
    (behind->nccl->*end)(of(comm));
    const std::lock_guard lock(behind->mutex);
    behind->members.erase(comm);
  });
}

RealNccl table() {
  RealNccl nccl;
  nccl.GetUniqueId.function = get_unique_id;
  nccl.CommInitRank.function = comm_init_rank;
  nccl.CommInitRankConfig.function = comm_init_rank_config;
  nccl.CommSplit.function = comm_split;
  nccl.CommFinalize.function = [](ncclComm_t) { return result_of("CommFinalize", [] {}); };
  nccl.CommDestroy.function = [](ncclComm_t comm) { return end_comm<&HostNccl::destroy>("CommDestroy", comm); };
  nccl.CommAbort.function = [](ncclComm_t comm) { return end_comm<&HostNccl::abort>("CommAbort", comm); };
  nccl.CommGetAsyncError.function = [](ncclComm_t comm, ncclResult_t* error) {
    return result_of("CommGetAsyncError",
                     [&] { *error = behind->nccl->failure(of(comm)).empty() ? ncclSuccess : ncclRemoteError; });
  };
  nccl.CommCount.function = [](ncclComm_t comm, int* size) {
    return result_of("CommCount", [&] { *size = member_of(comm).size; });
  };
  nccl.CommUserRank.function = [](ncclComm_t comm, int* rank) {
    return result_of("CommUserRank", [&] { *rank = member_of(comm).rank; });
  };
  nccl.CommCuDevice.function = [](ncclComm_t, int* device) { return result_of("CommCuDevice", [&] { *device = 0; }); };
  nccl.CommRegister.function = [](ncclComm_t, void* buffer, size_t, void** handle) {
    return result_of("CommRegister", [&] { *handle = buffer; });
  };
  nccl.GetLastError.function = [](ncclComm_t) -> const char* { return "NCCL's own sentence"; };
  nccl.RedOpCreatePreMulSum.function = [](ncclRedOp_t* op, void*, ncclDataType_t, ncclScalarResidence_t, ncclComm_t) {
    return result_of("RedOpCreatePreMulSum", [&] { *op = static_cast<ncclRedOp_t>(77); });
  };
  nccl.RedOpDestroy.function = [](ncclRedOp_t, ncclComm_t) { return result_of("RedOpDestroy", [] {}); };
  nccl.GroupStart.function = [] { return result_of("GroupStart", [] { ++collected.depth; }); };
  nccl.GroupEnd.function = [] {
    return result_of("GroupEnd", [] {
      if (--collected.depth > 0) return;
      const std::vector<std::function<void()>> calls = std::exchange(collected.calls, {});
      behind->nccl->group_start();
      for (const auto& call : calls) call();
      behind->nccl->group_end();
    });
  };
  nccl.GroupSimulateEnd.function = [](ncclSimInfo_t*) {
    return result_of("GroupSimulateEnd", [] {
      --collected.depth;
      collected.calls.clear();
    });
  };
  nccl.AllReduce.function = [](const void* in, void* out, size_t n, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream) {
    return operation("AllReduce", [=] {
      behind->nccl->all_reduce(in, out, static_cast<std::int64_t>(n), type_of(type), op_of(op), of(comm), of(stream));
    });
  };
  nccl.Reduce.function = [](const void* in, void* out, size_t n, ncclDataType_t type, ncclRedOp_t op, int root,
                            ncclComm_t comm, cudaStream_t stream) {
    return operation("Reduce", [=] {
      behind->nccl->reduce(in, out, static_cast<std::int64_t>(n), type_of(type), op_of(op), root, of(comm), of(stream));
    });
  };
  nccl.ReduceScatter.function = [](const void* in, void* out, size_t n, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                   cudaStream_t stream) {
    return operation("ReduceScatter", [=] {
      behind->nccl->reduce_scatter(in, out, static_cast<std::int64_t>(n), type_of(type), op_of(op), of(comm), of(stream));
    });
  };
  nccl.AllGather.function = [](const void* in, void* out, size_t n, ncclDataType_t type, ncclComm_t comm,
                               cudaStream_t stream) {
    return operation("AllGather", [=] {
      behind->nccl->all_gather(in, out, static_cast<std::int64_t>(n), type_of(type), of(comm), of(stream));
    });
  };
  nccl.AlltoAll.function = [](const void* in, void* out, size_t n, ncclDataType_t type, ncclComm_t comm,
                              cudaStream_t stream) {
    return operation("AlltoAll", [=] {
      behind->nccl->all_to_all(in, out, static_cast<std::int64_t>(n), type_of(type), of(comm), of(stream));
    });
  };
  nccl.Broadcast.function = [](const void* in, void* out, size_t n, ncclDataType_t type, int root, ncclComm_t comm,
                               cudaStream_t stream) {
    return operation("Broadcast", [=] {
      behind->nccl->broadcast(in, out, static_cast<std::int64_t>(n), type_of(type), root, of(comm), of(stream));
    });
  };
  nccl.Bcast.function = [](void* data, size_t n, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
    return operation("Bcast", [=] {
      behind->nccl->broadcast(data, data, static_cast<std::int64_t>(n), type_of(type), root, of(comm), of(stream));
    });
  };
  nccl.Send.function = [](const void* data, size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return operation("Send", [=] { behind->nccl->send(data, n * size_of(type_of(type)), peer, of(comm), of(stream)); });
  };
  nccl.Recv.function = [](void* data, size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return operation("Recv", [=] { behind->nccl->recv(data, n * size_of(type_of(type)), peer, of(comm), of(stream)); });
  };
  nccl.Gather.function = [](const void* in, void* out, size_t n, ncclDataType_t type, int root, ncclComm_t comm,
                            cudaStream_t stream) {
    return operation("Gather", [=] {
      const std::size_t share = n * size_of(type_of(type));
      const Member member = member_of(comm);
      behind->nccl->group_start();
      behind->nccl->send(in, share, root, of(comm), of(stream));
      for (int peer = 0; member.rank == root && peer < member.size; ++peer) {
        behind->nccl->recv(bytes(out) + static_cast<std::size_t>(peer) * share, share, peer, of(comm), of(stream));
      }
      behind->nccl->group_end();
    });
  };
  nccl.Scatter.function = [](const void* in, void* out, size_t n, ncclDataType_t type, int root, ncclComm_t comm,
                             cudaStream_t stream) {
    return operation("Scatter", [=] {
      const std::size_t share = n * size_of(type_of(type));
      const Member member = member_of(comm);
      behind->nccl->group_start();
      for (int peer = 0; member.rank == root && peer < member.size; ++peer) {
        behind->nccl->send(bytes(in) + static_cast<std::size_t>(peer) * share, share, peer, of(comm), of(stream));
      }
      behind->nccl->recv(out, share, root, of(comm), of(stream));
      behind->nccl->group_end();
    });
  };
  return nccl;
}

State* fresh_state(HostNccl* nccl) {
  auto* const state = new State;
  state->nccl = nccl;
  return state;
}

}  // namespace

BehindTheDoor::BehindTheDoor(int ranks, int gpus, const HostGpuOptions& options)
    : ranks_(ranks), cuda_(std::make_unique<CudaOfThreads>()), table_(table()) {
  std::vector<HostGpu*> all;
  for (int i = 0; i < gpus; ++i) all.push_back(gpus_.emplace_back(std::make_unique<HostGpu>(options)).get());
  nccl_ = std::make_unique<HostNccl>(all);
  behind = fresh_state(nccl_.get());
  use_nccl(nccl_.get());
  if (gpus == 1) use_gpu(all.front());  // in the door's threads as well
  nccl_door::use_cuda(cuda_.get());
  nccl_door::use_real_nccl(&table_);
}

BehindTheDoor::~BehindTheDoor() {
  nccl_door::forget_streams();
  nccl_door::wait_for_ends();
  nccl_door::use_real_nccl(nullptr);
  nccl_door::use_cuda(nullptr);
  use_nccl(nullptr);
  use_gpu(nullptr);
  EXPECT_EQ(nccl_->violations(), std::vector<std::string>{});
  for (const auto& gpu : gpus_) {
    EXPECT_EQ(gpu->violations(), std::vector<std::string>{});
    EXPECT_EQ(gpu->bytes_in_use(), 0U);
    EXPECT_EQ(gpu->events_in_use(), 0U);
  }
  delete std::exchange(behind, nullptr);
}

void BehindTheDoor::run(const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks_; ++rank) {
    threads.emplace_back([&, rank] {
      use_gpu_in_this_thread(&gpu_of(rank));
      try {
        body(rank);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
      use_gpu_in_this_thread(nullptr);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

int BehindTheDoor::calls(const std::string& function) const {
  const std::lock_guard lock(behind->mutex);
  const auto found = behind->calls.find(function);
  return found == behind->calls.end() ? 0 : found->second;
}

int BehindTheDoor::communicators() const {
  const std::lock_guard lock(behind->mutex);
  return static_cast<int>(behind->members.size());
}

}  // namespace stretto
