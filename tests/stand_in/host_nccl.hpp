#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "stand_in/host_gpu.hpp"
#include "stand_in/host_nccl_world.hpp"
#include "transport/nccl/nccl_calls.hpp"

// A stand-in for NCCL over the stand-in for a GPU; ranks are threads. A call, or a group of calls, becomes one function in
// the stream. It waits there for the functions of the other ranks and progresses all its messages together; in a graph, at
// each launch. Sends are never buffered, and collectives wait for all ranks, so that calls that could hang with NCCL also
// hang here, until the timeout.
namespace stretto {

// violations() keeps every broken rule of NCCL. A rule that the calling thread breaks also throws Error(internal); one that
// shows only in the streams becomes the failure() of the communicator, whose other operations then end at once. The
// violations:
// - A send and its receive differ in bytes; collectives, or their counts, types, operations or roots, differ between ranks.
// - The other ranks do not come to a message or collective within the timeout; the sentence names the ranks on both sides.
// - A group is not ended when its communicator or its thread ends; group_end() is called without group_start().
// - The thread puts anything else into a stream inside a group, or uses two streams with one communicator in a group.
// - Events do not order a communicator's operations in two streams. (Noticed when one begins before an earlier one is done.)
// - Two threads use one communicator at the same time, even if one of them calls abort(). The thread uses a communicator, or
//   puts anything into a stream, before settled() is true.
// - A communicator is used after destroy() or abort(), or destroyed while operations are in flight that do not end.
// - Memory is not the GPU's, or not aligned for its type; input and output overlap other than in place.
class HostNccl final : public NcclCalls {
 public:
  // A thread that joins uses its own GPU (use_gpu_in_this_thread) if that is one of `gpus`; otherwise rank r of a
  // communicator uses gpus[r % gpus.size()].
  explicit HostNccl(std::vector<HostGpu*> gpus, double timeout = 5);
  explicit HostNccl(HostGpu& gpu, double timeout = 5) : HostNccl(std::vector<HostGpu*>{&gpu}, timeout) {}
  ~HostNccl() override;  // the streams must be empty
  HostNccl(const HostNccl&) = delete;
  HostNccl& operator=(const HostNccl&) = delete;

  // From now on two ranks must connect before their first exchange, as with NCCL: a rank's call is not settled before the
  // other rank has made a call that needs the same connection.
  void connect_first() { connects_ = true; }
  // Each call takes at least this long, so that calls of two threads meet.
  void take_long(int microseconds) { call_us_ = microseconds; }

  std::vector<std::string> violations() const { return report_->all(); }
  std::size_t functions_put() const;  // functions put into streams: one for each call or group

  int version() override { return version_; }
  void be_version(int version) { version_ = version; }
  NcclId new_id() override;
  NcclComm join(int size, const NcclId& id, int rank, const std::function<void()>& check) override;
  bool settled(NcclComm comm) override;
  void finish(NcclComm comm) override;
  void destroy(NcclComm comm) override;
  void abort(NcclComm comm) override;
  std::string failure(NcclComm comm) override;
  void group_start() override;
  void group_end() override;
  void send(const void* data, std::size_t bytes, int peer, NcclComm comm, GpuStream stream) override;
  void recv(void* data, std::size_t bytes, int peer, NcclComm comm, GpuStream stream) override;
  void all_reduce(const void* input, void* output, std::int64_t count, DType dtype, ReduceOp op, NcclComm comm,
                  GpuStream stream) override;
  void reduce_scatter(const void* input, void* output, std::int64_t count, DType dtype, ReduceOp op, NcclComm comm,
                      GpuStream stream) override;
  void all_gather(const void* input, void* output, std::int64_t count, DType dtype, NcclComm comm,
                  GpuStream stream) override;
  void all_to_all(const void* input, void* output, std::int64_t count, DType dtype, NcclComm comm,
                  GpuStream stream) override;
  void broadcast(const void* input, void* output, std::int64_t count, DType dtype, int root, NcclComm comm,
                 GpuStream stream) override;
  void reduce(const void* input, void* output, std::int64_t count, DType dtype, ReduceOp op, int root, NcclComm comm,
              GpuStream stream) override;

 private:
  using Member = std::shared_ptr<host_nccl::Member>;
  class Calling;
  Member member_of(NcclComm comm, const char* who);
  void require_settled(const Member& member, const char* who);
  void check_memory(const host_nccl::Member& member, const GpuCollective& call);
  void message(bool sends, std::byte* data, std::size_t bytes, int peer, NcclComm comm, GpuStream stream);
  void collective(const GpuCollective& call, NcclComm comm, GpuStream stream);
  void put(const Member& member, host_nccl::Batch batch);
  void put_now(const Member& member, host_nccl::Batch batch);
  [[noreturn]] void violate(const std::string& sentence);

  std::vector<HostGpu*> gpus_;
  double timeout_;
  std::atomic<bool> connects_ = false;
  std::atomic<int> call_us_ = 0;
  int version_ = 22800;
  std::shared_ptr<host_nccl::Report> report_ = std::make_shared<host_nccl::Report>();
  mutable std::mutex mutex_;
  std::size_t functions_put_ = 0;
  std::uint64_t last_id_ = 0;
  std::map<std::uint64_t, std::shared_ptr<host_nccl::World>> worlds_;  // by id
  std::map<std::uintptr_t, Member> members_;                           // by handle; ended ones stay, to recognise their use
};

}  // namespace stretto
