#include "perf/peers/peer.hpp"

#include <nccl.h>

#include <algorithm>
#include <array>
#include <optional>

#include "common/fail.hpp"
#include "stretto/device.hpp"

namespace perf {

using stretto::Collective;
using stretto::DType;
using stretto::ReduceOp;

namespace {

// Indexed by DType.
constexpr ncclDataType_t nccl_types[] = {ncclFloat64, ncclFloat32, ncclBfloat16,   ncclFloat16,
                                         ncclInt8,    ncclUint8,   ncclInt32,      ncclUint32,
                                         ncclInt64,   ncclUint64,  ncclFloat8e4m3, ncclFloat8e5m2};

ncclDataType_t type_of(DType dtype) { return nccl_types[static_cast<std::size_t>(dtype)]; }

std::optional<ncclRedOp_t> operator_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return ncclSum;
    case ReduceOp::prod: return ncclProd;
    case ReduceOp::min: return ncclMin;
    case ReduceOp::max: return ncclMax;
    case ReduceOp::avg: return ncclAvg;
    default: return std::nullopt;
  }
}

void check(ncclResult_t result, const char* test_case) {
  if (result != ncclSuccess) {
    fail(stretto::ErrorCode::unavailable, "--vs nccl: NCCL could not {}: {}.", test_case, ncclGetErrorString(result));
  }
}

// NCCL refuses two ranks on one GPU. Rank 0 reports that.
void require_a_gpu_each(const stretto::Communicator& world) {
  using Uuid = std::array<char, 64>;
  Uuid mine{};
  const std::string uuid = stretto::gpu_info().value().uuid;
  std::copy_n(uuid.begin(), std::min(uuid.size(), mine.size() - 1), mine.begin());
  std::vector<Uuid> all(static_cast<std::size_t>(world.size()));
  world.all_gather(mine.data(), all.data(), mine.size(), DType::u8, stretto::Stream::inline_()).wait();
  std::sort(all.begin(), all.end());
  const auto twice = std::adjacent_find(all.begin(), all.end());
  if (twice == all.end()) return;
  require(world.rank() != 0, "--vs nccl: several of the {} ranks use GPU {}, which NCCL refuses; give each one of its own.",
          world.size(), twice->data());
  world.barrier(stretto::Stream::inline_()).wait();  // ends when rank 0 has failed
}

class NcclPeer : public Peer {
 public:
  explicit NcclPeer(const stretto::Communicator& world) : rank_(world.rank()) {
    require_a_gpu_each(world);
    ncclUniqueId id{};
    if (rank_ == 0) check(ncclGetUniqueId(&id), "make an id");
    world.broadcast(&id, &id, sizeof id, DType::u8, 0, stretto::Stream::inline_()).wait();
    check(ncclCommInitRank(&communicator_, world.size(), id, rank_), "make a communicator");
  }
  ~NcclPeer() override { ncclCommDestroy(communicator_); }
  NcclPeer(const NcclPeer&) = delete;
  NcclPeer& operator=(const NcclPeer&) = delete;

  const char* name() const override { return "nccl"; }
  std::string version() const override {
    int version = 0;
    check(ncclGetVersion(&version), "tell its version");
    return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  }

  bool can(const Case& test_case, bool in_place) const override {
    const Collective collective = test_case.test->collective;
    if (collective == Collective::barrier || (in_place && !can_be_in_place(*test_case.test))) return false;
    if (test_case.test->uneven && collective != Collective::all_to_all) return false;
    if (!reduces(collective)) return true;
    const bool narrow = test_case.dtype == DType::f8e4m3 || test_case.dtype == DType::f8e5m2;
    return operator_of(test_case.op) && (!narrow || stretto::gpu_info().value().major >= 9);
  }

  void perform(const Case& test_case, bool /*in_place*/, const void* input, void* output) override {
    auto* const stream = static_cast<cudaStream_t>(native_handle(stretto::computation()));
    const ncclDataType_t type = type_of(test_case.dtype);
    const ncclRedOp_t op = operator_of(test_case.op).value_or(ncclSum);
    const auto count = static_cast<std::size_t>(test_case.count);
    const auto perform_it = [&] {
      switch (test_case.test->collective) {
        case Collective::all_reduce: return ncclAllReduce(input, output, count, type, op, communicator_, stream);
        case Collective::reduce_scatter: return ncclReduceScatter(input, output, count, type, op, communicator_, stream);
        case Collective::all_gather: return ncclAllGather(input, output, count, type, communicator_, stream);
        case Collective::broadcast: return ncclBroadcast(input, output, count, type, test_case.root, communicator_, stream);
        case Collective::reduce: return ncclReduce(input, output, count, type, op, test_case.root, communicator_, stream);
        case Collective::gather: return ncclGather(input, output, count, type, test_case.root, communicator_, stream);
        case Collective::scatter: return ncclScatter(input, output, count, type, test_case.root, communicator_, stream);
        case Collective::all_to_all:
          if (test_case.test->uneven) return exchange_uneven(test_case, input, output, stream);
          return ncclAlltoAll(input, output, count, type, communicator_, stream);
        case Collective::send: {
          ncclGroupStart();
          ncclSend(input, count, type, (rank_ + 1) % test_case.ranks, communicator_, stream);
          ncclRecv(output, count, type, (rank_ + test_case.ranks - 1) % test_case.ranks, communicator_, stream);
          return ncclGroupEnd();
        }
        default: return ncclInvalidUsage;
      }
    };
    check(perform_it(), test_case.test->name);
  }

 private:
  ncclResult_t exchange_uneven(const Case& test_case, const void* input, void* output, cudaStream_t stream) const {
    const std::size_t element = size_of(test_case.dtype);
    const auto* from = static_cast<const std::byte*>(input);
    auto* to = static_cast<std::byte*>(output);
    ncclGroupStart();
    for (int other = 0; other < test_case.ranks; ++other) {
      const auto sent = static_cast<std::size_t>(test_case.sent(rank_, other));
      const auto received = static_cast<std::size_t>(test_case.sent(other, rank_));
      if (sent > 0) ncclSend(from, sent, type_of(test_case.dtype), other, communicator_, stream);
      if (received > 0) ncclRecv(to, received, type_of(test_case.dtype), other, communicator_, stream);
      from += sent * element;
      to += received * element;
    }
    return ncclGroupEnd();
  }

  int rank_;
  ncclComm_t communicator_ = nullptr;
};

}  // namespace

std::unique_ptr<Peer> make_nccl_peer(const stretto::Communicator& world) { return std::make_unique<NcclPeer>(world); }

}  // namespace perf
