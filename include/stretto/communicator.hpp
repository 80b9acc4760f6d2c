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
  // premul_sum only: this rank's contribution is multiplied by it. For an integer type, an integer that the type can
  // hold.
  double factor = 1;
  Quantization quantization = {};
};

// An operation and its buffers, as data. The named functions of Communicator are shorthands for start() of a Call.
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

// The cost model's prediction for a call.
struct Estimate {
  double seconds = 0;  // if no other operation uses the links
  double overhead =
      0;  // the part of `seconds` that does not depend on the bytes: each piece of a call that is cut up costs it
};

// A group of ranks that communicate. A handle: copies refer to the same group.
//
// A call puts its operation into a stream and returns at once; on Stream::inline_() it returns when the operation is
// done. All members must call the same operations of a communicator in the same order, with the same counts, types and
// roots. Operations of one communicator run one at a time, in the order of the calls, whatever their streams. Counts are
// in elements.
//
// Threads: only one thread at a time may call a communicator, through any of its handles or prepared operations. Several
// threads may call different communicators at the same time.
//
// Streams: any stream will do for host memory. If the buffers of a call are in GPU memory, every rank must pass a GPU
// stream, even a rank without elements. Between GPUs without NCCL (docs/gpus.md) the calling thread moves the messages:
// the call blocks until its peers have called, and all members must call all communicators that they share in one order.
//
// Buffers may have any address and alignment. The caller must leave them alone until the Work is done. Input and output
// may be the same memory only in the in-place form given below.
//
// Errors: a call with wrong arguments throws and has no effect. If the operation itself fails, waiting for its Work
// throws, and the communicator is then unusable. After a failure because a rank was lost or gave up, other ranks of the
// host may still read and write the operation's buffers for a moment: do not free or reuse these before the whole job has
// ended.
class STRETTO_API Communicator {
 public:
  Communicator() = default;  // has no ranks; split() returns this to the ranks that it leaves out
  explicit operator bool() const { return group_ != nullptr; }

  int rank() const;
  int size() const;
  const std::string& name() const;

  // output[i] = the reduction of input[i] over all ranks. In place: output == input. Every rank gets the same bits,
  // except for the payload of NaNs.
  Work all_reduce(const void* input, void* output, std::int64_t count, DType dtype, ReduceOp op, const Stream& stream,
                  const OperationOptions& options = {}) const;
  // input: size() * count elements. Rank r gets the reduction of the r-th share, of count elements, of all inputs. In
  // place: output == input + rank() * count.
  Work reduce_scatter(const void* input, void* output, std::int64_t count, DType dtype, ReduceOp op, const Stream& stream,
                      const OperationOptions& options = {}) const;
  // output: size() * count elements, the inputs of all ranks in rank order. In place: input == output + rank() * count.
  Work all_gather(const void* input, void* output, std::int64_t count, DType dtype, const Stream& stream,
                  const OperationOptions& options = {}) const;
  // Copies the root's input into every output. Other ranks' input is ignored. In place, at the root: output == input.
  Work broadcast(const void* input, void* output, std::int64_t count, DType dtype, int root, const Stream& stream,
                 const OperationOptions& options = {}) const;
  // Only the root's output is written. In place, at the root: output == input.
  Work reduce(const void* input, void* output, std::int64_t count, DType dtype, ReduceOp op, int root, const Stream& stream,
              const OperationOptions& options = {}) const;
  // Done when every rank has begun it. On a GPU stream the caller blocks until the stream has reached the barrier and the
  // barrier is done. The same holds for any call on a GPU stream whose buffers are in host memory.
  Work barrier(const Stream& stream) const;
  // Messages from one rank to another arrive in the order in which they were sent. Each blocks its stream until the peer
  // takes part; a send of a small message may finish earlier.
  Work send(const void* data, std::int64_t count, DType dtype, int peer, const Stream& stream,
            const OperationOptions& options = {}) const;
  Work recv(void* data, std::int64_t count, DType dtype, int peer, const Stream& stream,
            const OperationOptions& options = {}) const;

  // Like the functions above, with uneven shares: rank r's share has counts[r] elements, shares lie in rank order, and
  // all ranks give the same counts. reduce_scatter_v writes counts[rank()] elements; all_gather_v reads counts[rank()].
  // In place as above, at the offset of this rank's share.
  Work reduce_scatter_v(const void* input, void* output, const std::vector<std::int64_t>& counts, DType dtype, ReduceOp op,
                        const Stream& stream, const OperationOptions& options = {}) const;
  Work all_gather_v(const void* input, void* output, const std::vector<std::int64_t>& counts, DType dtype,
                    const Stream& stream, const OperationOptions& options = {}) const;
  // input: size() blocks of count elements, block r for rank r. output: the blocks from all ranks, in rank order. Not in
  // place.
  Work all_to_all(const void* input, void* output, std::int64_t count, DType dtype, const Stream& stream,
                  const OperationOptions& options = {}) const;
  // Like all_to_all, with a block of send_counts[r] elements for rank r and one of receive_counts[r] elements from it.
  // Rank a's send_counts[b] must equal rank b's receive_counts[a].
  Work all_to_all_v(const void* input, const std::vector<std::int64_t>& send_counts, void* output,
                    const std::vector<std::int64_t>& receive_counts, DType dtype, const Stream& stream,
                    const OperationOptions& options = {}) const;
  // The root's output gets size() shares of count elements. In place, at the root: input == output + rank() * count.
  Work gather(const void* input, void* output, std::int64_t count, DType dtype, int root, const Stream& stream,
              const OperationOptions& options = {}) const;
  Work gather_v(const void* input, void* output, const std::vector<std::int64_t>& counts, DType dtype, int root,
                const Stream& stream, const OperationOptions& options = {}) const;
  // The root's input has size() shares of count elements. In place, at the root: output == input + rank() * count.
  Work scatter(const void* input, void* output, std::int64_t count, DType dtype, int root, const Stream& stream,
               const OperationOptions& options = {}) const;
  Work scatter_v(const void* input, void* output, const std::vector<std::int64_t>& counts, DType dtype, int root,
                 const Stream& stream, const OperationOptions& options = {}) const;
  // Sends to one peer and receives from another (or the same one) at the same time.
  Work send_recv(const void* input, std::int64_t send_count, int to, void* output, std::int64_t receive_count, int from,
                 DType dtype, const Stream& stream, const OperationOptions& options = {}) const;

  // Starts any of the operations above.
  Work start(const Call& call, const Stream& stream, const OperationOptions& options = {}) const;
  // Checks and plans the call now, so that each start() costs only the communication. The buffers must stay valid until
  // the last Work is done; after a failure, see "Errors" above.
  Operation prepare(const Call& call, const OperationOptions& options = {}) const;
  // Throws what prepare() would throw, except for what depends on the buffers, which need not exist. A call without
  // buffers is checked for the calling thread's current device (OnDevice). No communication. Before the communicator's
  // first call on GPU buffers it is unknown whether NCCL can serve the group; until then Algorithm::nccl is accepted.
  void check(const Call& call, const OperationOptions& options = {}) const;
  // Predicts how long the call takes with its chosen method and buffers in ordinary memory. Uses the cost model and the
  // routes by which methods are chosen, including STRETTO_LINKS and STRETTO_NETWORK. No communication. The buffers need
  // not exist; a call without buffers counts as one on the calling thread's current device, which must be the same on all
  // ranks.
  // - Collectives: all ranks get the same result. The exception is all_to_all with uneven counts: a rank does not know
  //   the counts of the others, so its own mean count stands for all blocks.
  // - send, recv: the result is for the route to the peer.
  // - Before the communicator's first call on GPU buffers, NCCL is assumed between processes but not between threads of
  //   one process.
  Estimate estimate(const Call& call, const OperationOptions& options = {}) const;

  // The collectives above on a whole tensor, in place. The Work keeps the tensor alive.
  Work all_reduce(const Tensor& tensor, ReduceOp op, const Stream& stream, const OperationOptions& options = {}) const;
  Work broadcast(const Tensor& tensor, int root, const Stream& stream, const OperationOptions& options = {}) const;

  // Collective over all members. Members with the same color form a new group, ordered by key, then by rank. A member
  // with a negative color gets no group. The name appears in the ledger. One rank must not make two communicators at the
  // same time.
  Communicator split(int color, int key, const std::string& name) const;
  // Collective over all members: a second communicator of the same ranks, whose operations run beside this one's.
  Communicator duplicate(const std::string& name) const;
  // Collective over all members, which must give the same list: a group of those ranks, in that order. Other members get
  // an empty Communicator.
  Communicator subgroup(const std::vector<int>& ranks, const std::string& name) const;
  // Collective over all members. node(): the members on this rank's node. node_leaders(): the first member of each node;
  // the other members get an empty Communicator. A node is a host, unless STRETTO_RANKS_PER_NODE says otherwise.
  Communicator node() const;
  Communicator node_leaders() const;
  // The node of each member. Nodes are numbered from 0 in the order of the members.
  const std::vector<int>& nodes() const;

  // Identifies this communicator among those of this rank; Partners::group_id in the ledger. Names need not be unique.
  std::uint32_t id() const;
  // The rank in the job of each member.
  const std::vector<int>& job_ranks() const;

  // The ledger of this rank. All its communicators share it.
  Ledger& ledger() const;
  // Throws if the communicator is unusable: a rank was lost or gave up, or an operation on it failed on this rank. Any
  // thread may call it. Never blocks, no communication.
  void check_usable() const;
  // Tells all ranks of the job that this one gives up. Their operations then throw Error(peer_gave_up) with the reason.
  void abort(const std::string& reason) const;
  // Throws if a rank of the job is lost or has given up, with the error that an operation would throw. Any thread may
  // call it at any time. No communication.
  void check_ranks() const;

  // Limits, in seconds, how long an operation that begins from now on waits for another rank while no bytes
  // arrive. The initial value is STRETTO_TIMEOUT. The limit applies to all communicators of this rank; other ranks may set
  // other values. Operations on GPU
  // buffers keep the value that was in force at their communicator's first such operation. Any thread may call it at any
  // time.
  void set_timeout(double seconds) const;
  // A rank leaves the job when its last communicator goes, and then waits until all other ranks have left. This limits
  // that wait, in seconds; initially it is unlimited. When the limit is reached, the rank tells the others that it is
  // gone, and their operations throw Error(peer_gave_up). Any thread may call it at any time.
  void set_leave_timeout(double seconds) const;

  // Internal: not part of the interface.
  class STRETTO_HIDDEN Group;
  explicit Communicator(std::shared_ptr<Group> group) : group_(std::move(group)) {}

 private:
  Group& group() const;
  std::shared_ptr<Group> group_;
};

// A prepared operation. A handle. It may be started many times, on any stream. Each start counts as a call: all members
// must make it at the same place in their order of operations.
class STRETTO_API Operation {
 public:
  Operation() = default;
  Work start(const Stream& stream) const;
  // The chosen method and its plan. If the choice depends on where buffers lie, this is the choice for this rank's
  // buffers; each start decides again, from all ranks' buffers.
  const Method& method() const;
  const Plan& plan() const;

  // Internal: not part of the interface.
  struct STRETTO_HIDDEN State;
  explicit Operation(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  const std::shared_ptr<const State>& state() const { return state_; }

 private:
  std::shared_ptr<const State> state_;
};

// Like NCCL's ncclGroupStart and ncclGroupEnd. While the group is open, this thread's calls, on any communicators and
// streams, are only collected. end() starts all of them so that they progress together: sends and receives in any
// order, and collectives of several communicators. Collectives of one communicator keep their order. Earlier work in
// any of the streams runs before the group; later work runs after it. All calls inside return the same Work, which may
// be waited for after end(). Groups nest; only the outermost starts operations. A group that is destroyed without
// end(), for example by an exception, starts nothing.
class STRETTO_API OperationGroup {
 public:
  OperationGroup();
  ~OperationGroup();
  OperationGroup(const OperationGroup&) = delete;
  OperationGroup& operator=(const OperationGroup&) = delete;
  Work end();  // must be called in the thread that made the group

 private:
  bool open_ = true;
  std::thread::id thread_;
  std::size_t first_;  // index of this group's first collected call
};

}  // namespace stretto
