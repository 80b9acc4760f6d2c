#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "stretto/ledger.hpp"
#include "stretto/plan.hpp"
#include "stretto/stream.hpp"
#include "stretto/tensor.hpp"

namespace stretto {

class Operation;

struct OperationOptions {
  Method method = Algorithm::automatic;
  std::string tag;  // appears in the ledger
  // Of premul_sum: what this rank's contribution is multiplied by; for integers an integer that their type holds.
  double factor = 1;
  Quantization quantization = {};
};

// An operation with its buffers, as data: the named functions of Communicator are shorthands for it.
struct Call {
  Collective collective = Collective::all_reduce;
  const void* input = nullptr;
  void* output = nullptr;
  std::int64_t count = 0;  // as in PlanRequest
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;  // the peer of send and recv
  std::vector<std::int64_t> counts = {};
  std::vector<std::int64_t> receive_counts = {};
  Tensor keep_alive = {};
};

// What the cost model says of a call, in seconds.
struct Estimate {
  double seconds = 0;   // that it takes where nothing else uses the links
  double overhead = 0;  // of these, what it would take with hardly any bytes: what every further piece costs if it is cut up
};

// A group of ranks that communicate. A handle: copies mean the same group.
//
// Every operation is put into a stream and returns at once (on Stream::inline_(), when it is done). All members call the
// same operations of one communicator in the same order with the same counts, types and roots. One thread at a time calls
// one communicator, through whichever handle or prepared operation: several threads may call several communicators at the
// same time, or the same one after the other. The streams may be any; for buffers in a GPU's memory, of the GPU, also on
// ranks that have no elements in such a call. Between GPUs without NCCL (docs/gpus.md) the caller carries the messages: it
// is blocked until peers have called, and all members call all communicators that they share in one order. Counts are in
// elements. Buffers belong to the operation until its Work is done; any pointer and alignment will do. In place is allowed
// where noted. Wrong arguments throw at the call and harm nothing; an error in the operation itself reaches whoever waits,
// and the communicator is then unusable. Where that was because a rank was lost or gave up, other ranks of the host may
// still read and write the operation's buffers for a moment, until they notice: these must not be freed or reused before the
// job is taken down.
class STRETTO_API Communicator {
 public:
  Communicator() = default;  // of no ranks, as split() returns to those that it leaves out
  explicit operator bool() const { return group_ != nullptr; }

  int rank() const;
  int size() const;
  const std::string& name() const;

  // output[i] = the reduction of all ranks' input[i]; in place when they are equal. Every rank gets the same bits
  // (but for the payload of NaNs).
  Work all_reduce(const void* input, void* output, std::int64_t count, DType dtype, ReduceOp op, const Stream& stream,
                  const OperationOptions& options = {}) const;
  // input: size() * count elements; rank r gets the reduction of everybody's r-th share. In place: output == input + rank()
  // * count.
  Work reduce_scatter(const void* input, void* output, std::int64_t count, DType dtype, ReduceOp op, const Stream& stream,
                      const OperationOptions& options = {}) const;
  // output: size() * count elements, the ranks' inputs one after the other. In place: input == output + rank() * count.
  Work all_gather(const void* input, void* output, std::int64_t count, DType dtype, const Stream& stream,
                  const OperationOptions& options = {}) const;
  // input matters at the root only. In place there when they are equal.
  Work broadcast(const void* input, void* output, std::int64_t count, DType dtype, int root, const Stream& stream,
                 const OperationOptions& options = {}) const;
  // output matters at the root only. In place there when they are equal.
  Work reduce(const void* input, void* output, std::int64_t count, DType dtype, ReduceOp op, int root, const Stream& stream,
              const OperationOptions& options = {}) const;
  // Done when every rank has begun it. On a GPU's stream the caller is blocked until the stream has come here and it is
  // done, as by every call there whose buffers lie in host memory.
  Work barrier(const Stream& stream) const;
  // Messages from one rank to another arrive in the order in which they were sent. Both block their stream until the peer
  // takes part (a small message may leave earlier).
  Work send(const void* data, std::int64_t count, DType dtype, int peer, const Stream& stream,
            const OperationOptions& options = {}) const;
  Work recv(void* data, std::int64_t count, DType dtype, int peer, const Stream& stream,
            const OperationOptions& options = {}) const;

  // Uneven shares: counts[r] elements are rank r's, shares lie one after the other in rank order, and every rank gives the
  // same counts. reduce_scatter: output gets counts[rank()]; all_gather: input has as many. In place as above.
  Work reduce_scatter_v(const void* input, void* output, const std::vector<std::int64_t>& counts, DType dtype, ReduceOp op,
                        const Stream& stream, const OperationOptions& options = {}) const;
  Work all_gather_v(const void* input, void* output, const std::vector<std::int64_t>& counts, DType dtype,
                    const Stream& stream, const OperationOptions& options = {}) const;
  // input: size() blocks of count elements, block r for rank r; output: the blocks that the ranks sent here, in rank order.
  // Not in place.
  Work all_to_all(const void* input, void* output, std::int64_t count, DType dtype, const Stream& stream,
                  const OperationOptions& options = {}) const;
  // The same with blocks of send_counts[r] elements for rank r and receive_counts[r] from it; a rank's send count for
  // another is that one's receive count from it.
  Work all_to_all_v(const void* input, const std::vector<std::int64_t>& send_counts, void* output,
                    const std::vector<std::int64_t>& receive_counts, DType dtype, const Stream& stream,
                    const OperationOptions& options = {}) const;
  // The root's output gets size() shares of count elements; in place there: input == output + rank() * count.
  Work gather(const void* input, void* output, std::int64_t count, DType dtype, int root, const Stream& stream,
              const OperationOptions& options = {}) const;
  Work gather_v(const void* input, void* output, const std::vector<std::int64_t>& counts, DType dtype, int root,
                const Stream& stream, const OperationOptions& options = {}) const;
  // The root's input has size() shares of count elements; in place there: output == input + rank() * count.
  Work scatter(const void* input, void* output, std::int64_t count, DType dtype, int root, const Stream& stream,
               const OperationOptions& options = {}) const;
  Work scatter_v(const void* input, void* output, const std::vector<std::int64_t>& counts, DType dtype, int root,
                 const Stream& stream, const OperationOptions& options = {}) const;
  // Sends to one peer and receives from another (or the same) at the same time.
  Work send_recv(const void* input, std::int64_t send_count, int to, void* output, std::int64_t receive_count, int from,
                 DType dtype, const Stream& stream, const OperationOptions& options = {}) const;

  // Any of them, by its description.
  Work start(const Call& call, const Stream& stream, const OperationOptions& options = {}) const;
  // Checks and plans it now, so that it can be started many times at the cost of the communication alone. Its buffers must
  // be there until the last Work is done, and after an error as long as said above.
  Operation prepare(const Call& call, const OperationOptions& options = {}) const;
  // Throws what prepare() would say of it whatever its buffers are, which need not be there: they count as the calling
  // thread's current device's (OnDevice) where none are given. No communication: before this communicator's first call for
  // GPUs nobody knows whether NCCL serves between them, and Algorithm::nccl is taken for possible.
  void check(const Call& call, const OperationOptions& options = {}) const;
  // How long it takes, by the cost model that also chooses methods and over the same routes (STRETTO_LINKS and
  // STRETTO_NETWORK included), done as it would be done in ordinary memory, whoever decided that. Its buffers need not be
  // there; without any they count as the calling thread's current device's, on all ranks the same. Before this
  // communicator's first call for GPUs, NCCL is taken to serve between processes, and not between threads of one. Of
  // collectives all ranks get the same number; of send and recv it is that of the route to the peer. Of uneven all_to_all
  // the other ranks' counts are unknown: this rank's mean counts for all. No communication.
  Estimate estimate(const Call& call, const OperationOptions& options = {}) const;

  // The same on a whole tensor, in place; the work keeps the tensor alive.
  Work all_reduce(const Tensor& tensor, ReduceOp op, const Stream& stream, const OperationOptions& options = {}) const;
  Work broadcast(const Tensor& tensor, int root, const Stream& stream, const OperationOptions& options = {}) const;

  // Collective over all members: those that give the same color form a new group, ordered by key, then by rank. A negative
  // color: no group. The name appears in the ledger. A rank makes one new communicator at a time.
  Communicator split(int color, int key, const std::string& name) const;
  // Collective over all members: the same ranks once more, for operations that go on beside this communicator's.
  Communicator duplicate(const std::string& name) const;
  // Collective over all members, who give the same list: those ranks, in that order; nothing for the others.
  Communicator subgroup(const std::vector<int>& ranks, const std::string& name) const;
  // Collective over all members: those on this rank's node; and the first of every node (nothing for the others). Nodes are
  // hosts, or what STRETTO_RANKS_PER_NODE says.
  Communicator node() const;
  Communicator node_leaders() const;
  // Of each member: which node it is on, counted from 0 in the order of the members.
  const std::vector<int>& nodes() const;

  // Which of this rank's communicators it is: as Partners::group_id in the ledger. Names may be used twice.
  std::uint32_t id() const;
  // Of each member: its rank in the job.
  const std::vector<int>& job_ranks() const;

  // This rank's, over all its communicators.
  Ledger& ledger() const;
  // Throws what has made it unusable, if anything has: a rank that was lost or gave up, an operation that failed on this
  // rank. Never blocks, from any thread, no communication.
  void check_usable() const;
  // Tells every rank of the job that this one gives up; their operations then throw Error(peer_gave_up) with the reason.
  void abort(const std::string& reason) const;
  // Throws what an operation would throw where a rank of the job is lost or has given up. No communication; any thread may
  // call it at any time.
  void check_ranks() const;

  // Both are of this rank's whole job; any thread may call them at any time.
  // How many seconds operations that begin from now on wait for another rank in which nothing moves: STRETTO_TIMEOUT is what
  // a job begins with. Ranks need not give the same. What waits for GPUs keeps what its communicator began with.
  void set_timeout(double seconds) const;
  // With its last communicator a rank leaves the job, and waits until all others have left. This bounds that wait: who has
  // waited so long tells the others that it is gone, and their operations throw Error(peer_gave_up).
  void set_leave_timeout(double seconds) const;

  class STRETTO_HIDDEN Group;
  explicit Communicator(std::shared_ptr<Group> group) : group_(std::move(group)) {}

 private:
  Group& group() const;
  std::shared_ptr<Group> group_;
};

// A prepared operation. A handle; start it on any stream, once after the other, like the call that it stands for: all
// members start it in the same place of their order of operations.
class STRETTO_API Operation {
 public:
  Operation() = default;
  Work start(const Stream& stream) const;
  // What was chosen. Where the choice depends on memory, as far as this rank's buffers tell: at each start they decide
  // together with the other ranks'.
  const Method& method() const;
  const Plan& plan() const;

  struct STRETTO_HIDDEN State;
  explicit Operation(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  const std::shared_ptr<const State>& state() const { return state_; }

 private:
  std::shared_ptr<const State> state_;
};

// NCCL's ncclGroupStart and ncclGroupEnd. From its construction on, this thread's calls on any communicators and streams are
// only collected; end() starts them so that they progress together: sends and receives in whatever order, and collectives of
// several communicators. Collectives of one communicator keep their order among themselves. What was put into any of the
// streams before goes first, what comes after goes later. Every call inside returns the same Work, which may be waited for
// after end(). Groups nest; the outermost counts. Destroyed without end(), as by an exception, it starts nothing.
class STRETTO_API OperationGroup {
 public:
  OperationGroup();
  ~OperationGroup();
  OperationGroup(const OperationGroup&) = delete;
  OperationGroup& operator=(const OperationGroup&) = delete;
  Work end();  // in the thread that made it

 private:
  bool open_ = true;
  std::thread::id thread_;
  std::size_t first_;  // of what this group collects
};

}  // namespace stretto
