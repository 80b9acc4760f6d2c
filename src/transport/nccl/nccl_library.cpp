// The table of nccl_calls.hpp, filled from libnccl, which is loaded at the first call, by its pnccl names. The nccl names
// may belong to a library that was loaded before libnccl, such as Stretto's own (interop/nccl), which would call back here.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "core/fail.hpp"
#include "core/lazy_library.hpp"
#include "core/setting_values.hpp"
#include "transport/nccl/nccl_calls.hpp"

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 28, 0)
#error "Stretto needs NCCL 2.28 or newer, for all-to-all and 8-bit floats."
#endif

namespace stretto {
namespace {

constinit LazyLibrary libnccl{STRETTO_SONAME("nccl", NCCL_MAJOR), "Collectives and messages between GPUs"};
STRETTO_LAZY_FUNCTION(libnccl, pncclAllGather);
STRETTO_LAZY_FUNCTION(libnccl, pncclAllReduce);
STRETTO_LAZY_FUNCTION(libnccl, pncclAlltoAll);
STRETTO_LAZY_FUNCTION(libnccl, pncclBroadcast);
STRETTO_LAZY_FUNCTION(libnccl, pncclCommAbort);
STRETTO_LAZY_FUNCTION(libnccl, pncclCommCount);
STRETTO_LAZY_FUNCTION(libnccl, pncclCommCuDevice);
STRETTO_LAZY_FUNCTION(libnccl, pncclCommDestroy);
STRETTO_LAZY_FUNCTION(libnccl, pncclCommFinalize);
STRETTO_LAZY_FUNCTION(libnccl, pncclCommGetAsyncError);
STRETTO_LAZY_FUNCTION(libnccl, pncclCommInitRankConfig);
STRETTO_LAZY_FUNCTION(libnccl, pncclCommUserRank);
STRETTO_LAZY_FUNCTION(libnccl, pncclGetErrorString);
STRETTO_LAZY_FUNCTION(libnccl, pncclGetLastError);
STRETTO_LAZY_FUNCTION(libnccl, pncclGetUniqueId);
STRETTO_LAZY_FUNCTION(libnccl, pncclGetVersion);
STRETTO_LAZY_FUNCTION(libnccl, pncclGroupEnd);
STRETTO_LAZY_FUNCTION(libnccl, pncclGroupStart);
STRETTO_LAZY_FUNCTION(libnccl, pncclRecv);
STRETTO_LAZY_FUNCTION(libnccl, pncclReduce);
STRETTO_LAZY_FUNCTION(libnccl, pncclReduceScatter);
STRETTO_LAZY_FUNCTION(libnccl, pncclSend);

static_assert(sizeof(ncclUniqueId) == sizeof(NcclId));

ncclComm_t of_nccl(NcclComm comm) { return reinterpret_cast<ncclComm_t>(comm); }
cudaStream_t of_cuda(GpuStream stream) { return reinterpret_cast<cudaStream_t>(stream); }

// Indexed by DType.
constexpr ncclDataType_t nccl_types[] = {ncclFloat64, ncclFloat32, ncclBfloat16,   ncclFloat16,
                                         ncclInt8,    ncclUint8,   ncclInt32,      ncclUint32,
                                         ncclInt64,   ncclUint64,  ncclFloat8e4m3, ncclFloat8e5m2};

ncclDataType_t of_nccl(DType dtype) {
  const auto i = static_cast<std::size_t>(dtype);
  require(i < std::size(nccl_types), "There is no type of number {}.", i);
  return nccl_types[i];
}

ncclRedOp_t of_nccl(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return ncclSum;
    case ReduceOp::prod: return ncclProd;
    case ReduceOp::min: return ncclMin;
    case ReduceOp::max: return ncclMax;
    case ReduceOp::avg: return ncclAvg;
    case ReduceOp::premul_sum: break;  // NCCL needs one per factor and communicator; the library multiplies by itself
  }
  fail(ErrorCode::internal, "{} went to NCCL, which is asked for sum, prod, min, max and avg only.", name(op));
}

// NCCL's name for the error and its last log message, in one sentence.
std::string said(ncclResult_t result, ncclComm_t comm) {
  std::string text = pncclGetErrorString(result);
  const char* const last = pncclGetLastError(comm);
  if (last != nullptr && *last != '\0') text += fmt::format("; {}", last);
  while (!text.empty() && (text.back() == '\n' || text.back() == '.')) text.pop_back();
  return text;
}

void check(ncclResult_t result, const char* what, ncclComm_t comm = nullptr) {
  if (result == ncclSuccess || result == ncclInProgress) [[likely]]
    return;
  fail(ErrorCode::unavailable, "NCCL could not {}: {}.", what, said(result, comm));
}

class NcclLibrary final : public NcclCalls {
 public:
  int version() override {
    int version = 0;
    check(pncclGetVersion(&version), "say its version");
    return version;
  }
  NcclId new_id() override {
    gpu();  // throws with the reason if there is no GPU; NCCL would return an id all the same
    ncclUniqueId id;
    check(pncclGetUniqueId(&id), "make an id for a communicator");
    NcclId result;
    std::memcpy(result.data(), &id, sizeof id);
    return result;
  }

  NcclComm join(int size, const NcclId& id, int rank, const std::function<void()>& look) override {
    const int device = gpu().info().index;
    if (const cudaError_t chosen = cudaSetDevice(device); chosen != cudaSuccess) {
      fail(ErrorCode::unavailable, "CUDA could not choose GPU {}: {}.", device, cudaGetErrorString(chosen));
    }
    ncclUniqueId unique;
    std::memcpy(&unique, id.data(), sizeof unique);
    // A blocking communicator blocks its caller until all ranks have come, even if one is lost, and again in its first
    // messages. Besides, it can be aborted only between calls.
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t made = nullptr;
    check(pncclCommInitRankConfig(&made, size, unique, rank, &config), "join a communicator", made);
    const auto comm = reinterpret_cast<NcclComm>(made);
    try {
      const double seconds = number_setting("STRETTO_TIMEOUT");
      const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
      while (!settled(comm)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        look();
        if (std::chrono::steady_clock::now() > end) {
          fail(ErrorCode::timeout,
               "Rank {} of {} has waited {} s (STRETTO_TIMEOUT) for the others to join a communicator of NCCL's; look at "
               "the messages of NCCL_DEBUG=INFO.",
               rank, size, seconds);
        }
      }
    } catch (...) {
      pncclCommAbort(made);
      throw;
    }
    return comm;
  }

  bool settled(NcclComm comm) override {
    ncclResult_t state = ncclSuccess;
    check(pncclCommGetAsyncError(of_nccl(comm), &state), "say how a communicator is", of_nccl(comm));
    check(state, "go on with a communicator", of_nccl(comm));
    return state == ncclSuccess;
  }
  void finish(NcclComm comm) override { check(pncclCommFinalize(of_nccl(comm)), "finish a communicator", of_nccl(comm)); }
  void destroy(NcclComm comm) override { check(pncclCommDestroy(of_nccl(comm)), "end a communicator"); }
  void abort(NcclComm comm) override { check(pncclCommAbort(of_nccl(comm)), "abort a communicator"); }
  std::string failure(NcclComm comm) override {
    ncclResult_t result = ncclSuccess;
    check(pncclCommGetAsyncError(of_nccl(comm), &result), "say how a communicator is", of_nccl(comm));
    if (result == ncclSuccess || result == ncclInProgress) return "";
    return fmt::format("NCCL failed meanwhile: {}.", said(result, of_nccl(comm)));
  }

  void group_start() override { check(pncclGroupStart(), "begin a group"); }
  void group_end() override { check(pncclGroupEnd(), "start a group of messages"); }
  void send(const void* data, std::size_t bytes, int peer, NcclComm comm, GpuStream stream) override {
    check(pncclSend(data, bytes, ncclUint8, peer, of_nccl(comm), of_cuda(stream)), "send", of_nccl(comm));
  }
  void recv(void* data, std::size_t bytes, int peer, NcclComm comm, GpuStream stream) override {
    check(pncclRecv(data, bytes, ncclUint8, peer, of_nccl(comm), of_cuda(stream)), "receive", of_nccl(comm));
  }

  void all_reduce(const void* input, void* output, std::int64_t count, DType dtype, ReduceOp op, NcclComm comm,
                  GpuStream stream) override {
    check(pncclAllReduce(input, output, size_of_count(count), of_nccl(dtype), of_nccl(op), of_nccl(comm), of_cuda(stream)),
          "all-reduce", of_nccl(comm));
  }
  void reduce_scatter(const void* input, void* output, std::int64_t count, DType dtype, ReduceOp op, NcclComm comm,
                      GpuStream stream) override {
    check(
        pncclReduceScatter(input, output, size_of_count(count), of_nccl(dtype), of_nccl(op), of_nccl(comm), of_cuda(stream)),
        "reduce-scatter", of_nccl(comm));
  }
  void all_gather(const void* input, void* output, std::int64_t count, DType dtype, NcclComm comm,
                  GpuStream stream) override {
    check(pncclAllGather(input, output, size_of_count(count), of_nccl(dtype), of_nccl(comm), of_cuda(stream)), "all-gather",
          of_nccl(comm));
  }
  void all_to_all(const void* input, void* output, std::int64_t count, DType dtype, NcclComm comm,
                  GpuStream stream) override {
    check(pncclAlltoAll(input, output, size_of_count(count), of_nccl(dtype), of_nccl(comm), of_cuda(stream)), "all-to-all",
          of_nccl(comm));
  }
  void broadcast(const void* input, void* output, std::int64_t count, DType dtype, int root, NcclComm comm,
                 GpuStream stream) override {
    check(pncclBroadcast(input, output, size_of_count(count), of_nccl(dtype), root, of_nccl(comm), of_cuda(stream)),
          "broadcast", of_nccl(comm));
  }
  void reduce(const void* input, void* output, std::int64_t count, DType dtype, ReduceOp op, int root, NcclComm comm,
              GpuStream stream) override {
    check(
        pncclReduce(input, output, size_of_count(count), of_nccl(dtype), of_nccl(op), root, of_nccl(comm), of_cuda(stream)),
        "reduce", of_nccl(comm));
  }

 private:
  static std::size_t size_of_count(std::int64_t count) { return static_cast<std::size_t>(count); }
};

}  // namespace

NcclCalls& nccl_library() {
  static auto& library = *new NcclLibrary;  // never destroyed: a static communicator of the program still uses it at exit
  return library;
}

AdoptedNcclComm adopt_nccl_comm(void* nccl_comm) {
  require(nccl_comm != nullptr, "A communicator of NCCL's is to be adopted, and null was given.");
  const auto comm = static_cast<ncclComm_t>(nccl_comm);
  AdoptedNcclComm result;
  result.comm = reinterpret_cast<NcclComm>(comm);
  check(pncclCommUserRank(comm, &result.rank), "say the rank in a communicator", comm);
  check(pncclCommCount(comm, &result.size), "say the size of a communicator", comm);
  check(pncclCommCuDevice(comm, &result.device), "say the GPU of a communicator", comm);
  return result;
}

}  // namespace stretto
