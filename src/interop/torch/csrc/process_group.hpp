#pragma once
#include <atomic>

#include "group.hpp"
#include "reduction.hpp"
#include "stretto/quantization.hpp"

namespace stretto_torch {

// The backend "stretto" of torch.distributed, for tensors on the CPU. What its operations do is what c10d says of them;
// which are not there, and what differs from Gloo's: docs/pytorch.md.
//
// Collectives of a group run one after the other (Lane), messages beside them (Messages). An operation that waits for a rank
// longer than the group's timeout fails on every rank, with a sentence that names it; the group is then of no more use.
class ProcessGroupStretto : public Base {
 public:
  // Collective: the ranks meet by the store, which is the group's own.
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
  // Through the store, so that it can name who is missing and leave the group whole.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  // Of the collectives: ranks count alike from the beginning.
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }

#if TORCH_VERSION_MAJOR >= 2
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  // What this thread starts in between are parts of one work.
  void startCoalescing() override;
  WorkPtr endCoalescing() override;
  // Virtual in some of the versions 2.x, and unknown to the others.
  bool supportsCoalescing() const { return true; }
  void setTimeout(Milliseconds timeout) { timeout_ = timeout; }
  void shutdown();
  void abort();
#endif

  // tensor becomes the average of all ranks' ones, which travel as the formats say (docs/quantization.md). errors: nothing,
  // or what keeps under this name what the formats have left out; all ranks give the same.
  WorkPtr quantized_average(const at::Tensor& tensor, const std::string& format, const std::string& result,
                            const std::shared_ptr<stretto::ErrorFeedback>& errors, const std::string& name);

 private:
  using Body = std::function<void(const stretto::Communicator& world, const stretto::Stream& stream)>;
  // Puts an operation into the lane. timeout: the call's own; unset: the group's.
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
