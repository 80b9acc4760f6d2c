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

// A stand-in for NCCL over the stand-in for a GPU: ranks are threads. A call, or a group of calls, becomes one function in
// the stream, which meets those of the other ranks there and makes all its messages progress together; a graph does so at
// each launch. Sends are never buffered, and collectives wait for all ranks: what could hang with NCCL does here, too, until
// the timeout.
namespace stretto {

// Breaking a rule of NCCL's is kept in violations(). What the caller's thread does wrong throws Error(internal) as well;
// what shows only in the streams is the failure() of the communicator, whose other operations then end at once:
// - A send and its receive differ in bytes; collectives, or their counts, types, operations or roots, differ between ranks.
// - A message or collective for which the other ranks do not come within the timeout: the sentence names who waits for whom.
// - A group that is not ended when its communicator, or thread, ends; group_end() without group_start().
// - The thread puts anything else into a stream between the two, or gives one communicator two streams in a group.
// - Operations of a communicator in two streams that are not ordered by events (as far as it shows: one begins before the
//   one called earlier is done).
// - Two threads call something of one communicator at the same time, be it abort(). A communicator is used, or something put
//   into a stream by the thread, before settled() is true.
// - A communicator is used after destroy() or abort(); is destroyed while operations that do not end are under way.
// - Memory that is not the GPU's, or not aligned for its type; input and output that overlap other than in place.
class HostNccl final : public NcclCalls {
 public:
  // A thread that joins has its own of the GPUs (use_gpu_in_this_thread); where it has none of them, rank r of each
  // communicator has the (r modulo their number)-th.
  explicit HostNccl(std::vector<HostGpu*> gpus, double timeout = 5);
  explicit HostNccl(HostGpu& gpu, double timeout = 5) : HostNccl(std::vector<HostGpu*>{&gpu}, timeout) {}
  ~HostNccl() override;  // when the streams are empty
  HostNccl(const HostNccl&) = delete;
  HostNccl& operator=(const HostNccl&) = delete;

  // Ranks that have not exchanged anything with each other yet have to connect first, as with NCCL: what they call is not
  // settled before the others have called something that needs the same connection.
  void connect_first() { connects_ = true; }
  // Each call takes at least so long: then calls of two threads meet.
  void take_long(int microseconds) { call_us_ = microseconds; }

  std::vector<std::string> violations() const { return report_->all(); }
  std::size_t functions_put() const;  // into streams: one a call or group

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
  std::map<std::uintptr_t, Member> members_;                           // by handle; ended ones too, so that they are known
};

}  // namespace stretto
