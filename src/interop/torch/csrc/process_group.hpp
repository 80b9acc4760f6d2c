#pragma once
#include <atomic>

#include "group.hpp"
#include "moves/group_move.hpp"
#include "reduction.hpp"
#include "stretto/quantization.hpp"

namespace stretto_torch {

// The backend "stretto" of torch.distributed, for tensors on the CPU. Its operations do what c10d documents; docs/pytorch.md
// lists those that are missing, and the differences from Gloo.
//
// The collectives of a group run one after the other (Lane), and messages run beside them (Messages). If an operation waits
// for a rank longer than the group's timeout, it fails on every rank with a sentence that names that rank. The group cannot
// be used afterwards.
class ProcessGroupStretto : public Base {
 public:
  // Collective: the ranks meet through the store, which must belong to this group alone.
  ProcessGroupStretto(const StorePtr& store, int rank, int size, Milliseconds timeout);
  ~ProcessGroupStretto() override;

  const std::string getBackendName() const override { return "stretto"; }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  // Goes through the store, so that it can name the missing ranks and the group stays usable.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  // Counts collectives. All ranks count alike from the start, so there is nothing to set.
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }

#if TORCH_VERSION_MAJOR >= 2
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  // The operations that this thread starts between these two calls become parts of one work.
  void startCoalescing() override;
  WorkPtr endCoalescing() override;
  // Virtual in some versions 2.x, and absent from others.
  bool supportsCoalescing() const { return true; }
  void setTimeout(Milliseconds timeout) { timeout_ = timeout; }
  void shutdown();
  void abort();
#endif

  // Replaces `tensor` by the average of all ranks' tensors, which travel in the given formats (docs/quantization.md).
  // errors: keeps, under `name`, the part that the formats have left out; null: no error feedback. All ranks must choose
  // alike.
  WorkPtr quantized_average(const at::Tensor& tensor, const std::string& format, const std::string& result,
                            const std::shared_ptr<stretto::ErrorFeedback>& errors, const std::string& name);

  std::vector<int> nodes() const { return group()->world().nodes(); }  // of the ranks
  // Brings the parts of divided tensors to the ranks that a move says. All ranks must give equal moves.
  WorkPtr move(const std::shared_ptr<GroupMove>& move, const Tensors& inputs, const Tensors& outputs);

 private:
  using Body = std::function<void(const stretto::Communicator& world, const stretto::Stream& stream)>;
  // Puts an operation into the lane. timeout: the call's own; unset: the group's is used.
  WorkPtr put(c10d::OpType type, const char* title, const Tensors& inputs, Tensors outputs, Milliseconds timeout, Body body);
  WorkPtr coalesced(WorkPtr work);
  c10::intrusive_ptr<OperationWork> message(c10d::OpType type, const char* title, const Tensors& tensors);
  const std::shared_ptr<Group>& group() const;
  void check_root(const char* what, std::int64_t root) const;
  void check_peer(const char* what, int peer) const;
  void check_parts(const char* what, const Tensors& parts, const at::Tensor& like) const;
  std::vector<std::int64_t> split_bytes(const char* what, const at::Tensor& tensor,
                                        const std::vector<std::int64_t>& splits) const;

  StorePtr store_;
  std::shared_ptr<Group> group_;
  std::atomic<Milliseconds> timeout_;
  std::atomic<std::uint64_t> sequence_ = 0;
  std::uint64_t monitored_ = 0;
  std::mutex coalescing_mutex_;
  bool coalescing_ = false;
  std::thread::id coalescing_thread_;
  std::vector<WorkPtr> coalesced_;
};

}  // namespace stretto_torch
