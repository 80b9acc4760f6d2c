#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "stretto/job.hpp"
#include "stretto/ledger.hpp"
#include "stretto/plan.hpp"
#include "stretto/stream.hpp"
#include "stretto/tensor.hpp"

namespace stretto {

class Operation;

struct OperationOptions {
  Method method = Algorithm::automatic;
  // The purpose of the operation, for the ledger; null: none. The ledger keeps the address, so the characters must stay
  // valid as long as the job, like those of CallSite::file: pass a string literal. Costs nothing.
  const char* tag = nullptr;
  // premul_sum only: this rank's contribution is multiplied by `factor`. For an integer element type, `factor` must be
  // an integer that the type can represent.
  double factor = 1;
  Quantization quantization = {};
  // all_reduce only: so many ranks, the last ones of the communicator, have no vector. Where each of them is alone on its
  // node, the library chooses whether they add up shares of the others' vectors (Algorithm::server_set), which pays for many
  // bytes if there are more than two others; else they do nothing. All ranks make the call, with the same count, type and
  // number of servers; these may pass null, and a stream of the device on which the others' buffers lie. Not to be
  // quantized, nor by algorithms over shared memory. An average divides by the number of vectors.
  int servers = 0;
  CallSite site = {};  // for whom the call is made; unknown: for the line that makes it
};

// An operation and its buffers, as data. The named functions of Communicator are shorthands for start() with a Call.
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
  std::array<Tensor, 2> keep_alive = {};  // kept until the Work is done, and by a prepared operation as long as it exists
};

// The cost model's prediction for a call.
struct Estimate {
  double seconds = 0;  // if no other operation uses the links
  // The part of `seconds` that does not depend on the bytes. A call that is cut into pieces costs it once per piece.
  double overhead = 0;
};

// A group of ranks that communicate. A Communicator is a handle: copies refer to the same group. Below, the "job" is the
// set of all ranks that were started together (launch.hpp), and a "member" is a rank of this communicator.
//
// A call puts its operation into a stream and returns at once; on Stream::inline_() it returns when the operation is
// done. All members must call the same operations of a communicator in the same order, with the same counts, types and
// roots. Operations of one communicator run one at a time, in the order of the calls, even if they are in different
// streams. Counts are in elements.
//
// Threads: only one thread at a time may call a communicator, through any of its handles or prepared operations. Several
// threads may call different communicators at the same time. With STRETTO_CHECK=1 a second thread's call throws.
//
// Processes: a child of fork() cannot call the communicators of its parent, nor wait for its streams and works; these calls
// throw. It may destroy what it inherited, and may start a job of its own.
//
// Streams: a call on host memory accepts any stream. If the buffers of a call are in GPU memory, every rank must pass a
// GPU stream, even a rank without elements. Between GPUs without NCCL (docs/gpus.md) the calling thread moves the
// messages. The call then blocks until its peers have made the same call, and ranks that share several communicators
// must make all calls on them in the same order.
//
// Buffers may have any address and alignment. The caller must not access or free the buffers until the Work is done.
// Input and output may share memory only in the in-place form given at each function.
//
// Each call has the line that makes it as its last argument, which callers leave out. The ledger has it, and the errors of
// waits for other ranks name it.
//
// Errors: a call with wrong arguments throws and has no effect. If the operation itself fails, Work::wait() throws, and
// the communicator is then unusable. After the loss of a rank, the others can go on with Job::shrink(). If the failure was
// that a rank was lost or gave up, other ranks of the host may still read and write the operation's buffers for a moment: do
// not free or reuse these buffers before the whole job has ended.
class STRETTO_API Communicator {
 public:
  Communicator() = default;  // empty: has no ranks. split() returns it to ranks that get no group
  explicit operator bool() const { return group_ != nullptr; }

  int rank() const;
  int size() const;
  const std::string& name() const;

  // output[i] = the reduction of input[i] over all ranks. In place: output == input. Every rank gets the same bits,
  // except that the payload bits of a NaN may differ.
  [[nodiscard]] Work all_reduce(const void* input, void* output, std::int64_t count, DType dtype, ReduceOp op,
                                const Stream& stream, const OperationOptions& options = {},
                                CallSite site = CallSite::here()) const;
  // input: size() shares of count elements each. output on rank r: the reduction of share r over all inputs. In place:
  // output == input + rank() * count.
  [[nodiscard]] Work reduce_scatter(const void* input, void* output, std::int64_t count, DType dtype, ReduceOp op,
                                    const Stream& stream, const OperationOptions& options = {},
                                    CallSite site = CallSite::here()) const;
  // output: size() * count elements: the inputs of all ranks in rank order. In place: input == output + rank() * count.
  [[nodiscard]] Work all_gather(const void* input, void* output, std::int64_t count, DType dtype, const Stream& stream,
                                const OperationOptions& options = {}, CallSite site = CallSite::here()) const;
  // Copies the root's input into every rank's output. The input of other ranks is ignored. In place, at the root: output
  // == input.
  [[nodiscard]] Work broadcast(const void* input, void* output, std::int64_t count, DType dtype, int root,
                               const Stream& stream, const OperationOptions& options = {},
                               CallSite site = CallSite::here()) const;
  // Like all_reduce, but only the root's output is written. In place, at the root: output == input.
  [[nodiscard]] Work reduce(const void* input, void* output, std::int64_t count, DType dtype, ReduceOp op, int root,
                            const Stream& stream, const OperationOptions& options = {},
                            CallSite site = CallSite::here()) const;
  // The barrier is done when every rank has begun it. On a GPU stream, the calling thread blocks until the stream has
  // reached the barrier and the barrier is done. A call on a GPU stream blocks in the same way whenever its buffers are
  // in host memory.
  [[nodiscard]] Work barrier(const Stream& stream, const OperationOptions& options = {},
                             CallSite site = CallSite::here()) const;
  // Messages from one rank to another arrive in the order in which they were sent. A send or recv blocks its stream
  // until the peer has made the matching call; a send of a small message may finish earlier.
  [[nodiscard]] Work send(const void* data, std::int64_t count, DType dtype, int peer, const Stream& stream,
                          const OperationOptions& options = {}, CallSite site = CallSite::here()) const;
  [[nodiscard]] Work recv(void* data, std::int64_t count, DType dtype, int peer, const Stream& stream,
                          const OperationOptions& options = {}, CallSite site = CallSite::here()) const;

  // Like the functions above, but with uneven shares: rank r's share has counts[r] elements, shares lie in rank order,
  // and all ranks must pass the same counts. reduce_scatter_v writes counts[rank()] elements; all_gather_v reads
  // counts[rank()] elements. In place: as above, at the offset of this rank's share.
  [[nodiscard]] Work reduce_scatter_v(const void* input, void* output, const std::vector<std::int64_t>& counts, DType dtype,
                                      ReduceOp op, const Stream& stream, const OperationOptions& options = {},
                                      CallSite site = CallSite::here()) const;
  [[nodiscard]] Work all_gather_v(const void* input, void* output, const std::vector<std::int64_t>& counts, DType dtype,
                                  const Stream& stream, const OperationOptions& options = {},
                                  CallSite site = CallSite::here()) const;
  // input: size() blocks of count elements, block r for rank r. output: the blocks from all ranks, in rank order. There
  // is no in-place form.
  [[nodiscard]] Work all_to_all(const void* input, void* output, std::int64_t count, DType dtype, const Stream& stream,
                                const OperationOptions& options = {}, CallSite site = CallSite::here()) const;
  // Like all_to_all, but the block for rank r has send_counts[r] elements, and the block from rank r has
  // receive_counts[r] elements. Rank a's send_counts[b] must equal rank b's receive_counts[a].
  [[nodiscard]] Work all_to_all_v(const void* input, const std::vector<std::int64_t>& send_counts, void* output,
                                  const std::vector<std::int64_t>& receive_counts, DType dtype, const Stream& stream,
                                  const OperationOptions& options = {}, CallSite site = CallSite::here()) const;
  // The root's output receives every rank's input of count elements, in rank order. In place, at the root: input ==
  // output + rank() * count.
  [[nodiscard]] Work gather(const void* input, void* output, std::int64_t count, DType dtype, int root, const Stream& stream,
                            const OperationOptions& options = {}, CallSite site = CallSite::here()) const;
  [[nodiscard]] Work gather_v(const void* input, void* output, const std::vector<std::int64_t>& counts, DType dtype,
                              int root, const Stream& stream, const OperationOptions& options = {},
                              CallSite site = CallSite::here()) const;
  // The root's input has size() shares of count elements, in rank order. Each rank's output receives its share. In
  // place, at the root: output == input + rank() * count.
  [[nodiscard]] Work scatter(const void* input, void* output, std::int64_t count, DType dtype, int root,
                             const Stream& stream, const OperationOptions& options = {},
                             CallSite site = CallSite::here()) const;
  [[nodiscard]] Work scatter_v(const void* input, void* output, const std::vector<std::int64_t>& counts, DType dtype,
                               int root, const Stream& stream, const OperationOptions& options = {},
                               CallSite site = CallSite::here()) const;
  // Sends to rank `to` and receives from rank `from` at the same time. The two may be the same rank.
  [[nodiscard]] Work send_recv(const void* input, std::int64_t send_count, int to, void* output, std::int64_t receive_count,
                               int from, DType dtype, const Stream& stream, const OperationOptions& options = {},
                               CallSite site = CallSite::here()) const;

  // Starts any of the operations above.
  [[nodiscard]] Work start(const Call& call, const Stream& stream, const OperationOptions& options = {},
                           CallSite site = CallSite::here()) const;
  // Checks and plans the call now, so that each Operation::start() costs only the communication. The buffers must stay
  // valid until the last Work is done; after a failure, see "Errors" above.
  Operation prepare(const Call& call, const OperationOptions& options = {}, CallSite site = CallSite::here()) const;
  // Prepares a plan of one's own: every rank gives its own plan, for its place in this group. `input` and `output` are as
  // plan.request says (input_count(), output_count()), and stay alive as long as the operation; an empty tensor where the
  // rank has no such buffer; a server's input says the type, as Tensor({0}, type) does. Their memory may be the same in the
  // collective's in-place form only. The plan runs as the library's own: messages between any ranks; steps between memories
  // among ranks of one host, on buffers in host memory, and steps that write to other ranks' buffers, or reduce from all
  // into one of them, in symmetric memory. In all_reduce, reduce and reduce_scatter, narrow floats travel as f32 if the plan
  // sends messages. It cannot quantize. The ledger has it as Algorithm::user, with the plan's name; request.method does not
  // matter.
  //
  // Errors: prepare() throws Error(invalid_argument), before anything is sent, if the plan is for another rank, size or
  // message, if a step touches what lies outside a buffer, names a rank that does not exist or is malformed, or if the plan
  // accesses another rank's memory before it has waited for that rank. Whether the plans of all ranks fit together and
  // compute the collective, one rank cannot know: verify() (planning/proof.hpp) proves it for all ranks' plans. A plan that
  // is wrong there gives wrong values, or waits until an operation's timeout names the ranks for which it waits. With
  // STRETTO_CHECK=1 the ranks compare the call and the plan's name at each start.
  Operation prepare(const Plan& plan, const Tensor& input, const Tensor& output, ReduceOp op = ReduceOp::sum,
                    const OperationOptions& options = {}, CallSite site = CallSite::here()) const;
  // Throws the error that prepare() would throw for this call, without communication. The buffers need not exist: errors
  // that depend on them are not found. A call without buffers is checked for the calling thread's current device
  // (OnDevice). Before the communicator's first call on GPU buffers, the library does not know whether NCCL can serve
  // the group, and accepts Algorithm::nccl.
  void check(const Call& call, const OperationOptions& options = {}) const;
  // Predicts how long the call takes with its chosen method and buffers in ordinary memory, without communication. Uses
  // the same cost model and routes as the choice of methods, including STRETTO_LINKS and STRETTO_NETWORK. The buffers
  // need not exist. A call without buffers is predicted for the calling thread's current device, which must be the same
  // on all ranks.
  // - Collectives: all ranks get the same result, except for all_to_all with uneven counts. There, a rank does not know
  //   the counts of the other ranks, so it uses the mean of its own counts for every block.
  // - send, recv: the result is for the route to the peer.
  // - Before the communicator's first call on GPU buffers, the prediction assumes NCCL between processes, but not
  //   between threads of one process.
  Estimate estimate(const Call& call, const OperationOptions& options = {}) const;

  // The functions above on whole tensors. Counts and the element type are those of the tensors; shapes do not matter. A
  // tensor may be empty where this rank has no such buffer. The stream keeps the tensors alive until the Work is done.
  // Throws Error(invalid_argument) if the sizes of the tensors do not fit together. all_reduce, broadcast and reduce are in
  // place; the others take views for that, such as whole.view(rank() * count, {count}).
  [[nodiscard]] Work all_reduce(const Tensor& tensor, ReduceOp op, const Stream& stream,
                                const OperationOptions& options = {}, CallSite site = CallSite::here()) const;
  [[nodiscard]] Work broadcast(const Tensor& tensor, int root, const Stream& stream, const OperationOptions& options = {},
                               CallSite site = CallSite::here()) const;
  [[nodiscard]] Work reduce(const Tensor& tensor, ReduceOp op, int root, const Stream& stream,
                            const OperationOptions& options = {}, CallSite site = CallSite::here()) const;
  [[nodiscard]] Work reduce_scatter(const Tensor& input, const Tensor& output, ReduceOp op, const Stream& stream,
                                    const OperationOptions& options = {}, CallSite site = CallSite::here()) const;
  [[nodiscard]] Work reduce_scatter_v(const Tensor& input, const Tensor& output, const std::vector<std::int64_t>& counts,
                                      ReduceOp op, const Stream& stream, const OperationOptions& options = {},
                                      CallSite site = CallSite::here()) const;
  [[nodiscard]] Work all_gather(const Tensor& input, const Tensor& output, const Stream& stream,
                                const OperationOptions& options = {}, CallSite site = CallSite::here()) const;
  [[nodiscard]] Work all_gather_v(const Tensor& input, const Tensor& output, const std::vector<std::int64_t>& counts,
                                  const Stream& stream, const OperationOptions& options = {},
                                  CallSite site = CallSite::here()) const;
  [[nodiscard]] Work all_to_all(const Tensor& input, const Tensor& output, const Stream& stream,
                                const OperationOptions& options = {}, CallSite site = CallSite::here()) const;
  [[nodiscard]] Work all_to_all_v(const Tensor& input, const std::vector<std::int64_t>& send_counts, const Tensor& output,
                                  const std::vector<std::int64_t>& receive_counts, const Stream& stream,
                                  const OperationOptions& options = {}, CallSite site = CallSite::here()) const;
  [[nodiscard]] Work gather(const Tensor& input, const Tensor& output, int root, const Stream& stream,
                            const OperationOptions& options = {}, CallSite site = CallSite::here()) const;
  [[nodiscard]] Work gather_v(const Tensor& input, const Tensor& output, const std::vector<std::int64_t>& counts, int root,
                              const Stream& stream, const OperationOptions& options = {},
                              CallSite site = CallSite::here()) const;
  [[nodiscard]] Work scatter(const Tensor& input, const Tensor& output, int root, const Stream& stream,
                             const OperationOptions& options = {}, CallSite site = CallSite::here()) const;
  [[nodiscard]] Work scatter_v(const Tensor& input, const Tensor& output, const std::vector<std::int64_t>& counts, int root,
                               const Stream& stream, const OperationOptions& options = {},
                               CallSite site = CallSite::here()) const;
  [[nodiscard]] Work send(const Tensor& tensor, int peer, const Stream& stream, const OperationOptions& options = {},
                          CallSite site = CallSite::here()) const;
  [[nodiscard]] Work recv(const Tensor& tensor, int peer, const Stream& stream, const OperationOptions& options = {},
                          CallSite site = CallSite::here()) const;
  [[nodiscard]] Work send_recv(const Tensor& input, int to, const Tensor& output, int from, const Stream& stream,
                               const OperationOptions& options = {}, CallSite site = CallSite::here()) const;

  // Collective over all members, like MPI_Comm_split. Members with the same color form a new group, ordered by key, then
  // by rank. A member with a negative color gets an empty Communicator. The name appears in the ledger. Costs a small
  // all-gather; the first operation of the new group takes the memory that it needs.
  Communicator split(int color, int key, const std::string& name) const;
  // Collective over all members. Returns a second communicator of the same ranks. Its operations may run at the same
  // time as the operations of this communicator.
  Communicator duplicate(const std::string& name) const;
  // Collective over all members, which must pass the same list. Returns a group of the listed ranks, in the order of the
  // list. Members that are not listed get an empty Communicator.
  Communicator subgroup(const std::vector<int>& ranks, const std::string& name) const;
  // Collective over all members. node() returns a group of the members on this rank's node. node_leaders() returns a
  // group of the first member of each node; the other members get an empty Communicator. A node is a host, unless
  // STRETTO_RANKS_PER_NODE sets another number of ranks per node.
  Communicator node() const;
  Communicator node_leaders() const;
  // The node of each member. Nodes are numbered from 0 in the order of the members.
  const std::vector<int>& nodes() const;

  // How this job chooses methods: its costs, its tables, and what else its choices depend on, as text. Where ranks are more
  // than two, another method adds in another order, so that the last bits of floating-point sums may differ between jobs
  // that choose differently. A checkpoint carries the choices of the job that wrote it.
  std::string choices() const;
  // Lets this job choose as one whose choices() these are. All ranks of the job call it with the same text, on the
  // communicator of all ranks, before they make other communicators. Returns an empty string if this job now chooses so.
  // Otherwise returns the reason, as a part of a sentence, and the job goes on by its own choices: the other job had another
  // number of ranks or nodes, or other settings (STRETTO_ALGO), its table names a method that this version lacks, or rank
  // 0's STRETTO_TUNING differs.
  std::string choose_by(const std::string& choices) const;

  // The number that identifies this communicator among all communicators of this rank (Partners::group_id in the
  // ledger). Names need not be unique.
  std::uint64_t id() const;
  // Each member's rank in the job.
  const std::vector<int>& job_ranks() const;

  // The handle of the rank's job, which has the ledger, timeouts, shrink() and abort(), whatever the group.
  Job job() const;
  // Throws if the communicator is unusable: a rank was lost or gave up, or an operation of the communicator failed on
  // this rank. Any thread may call this function. It never blocks and does not communicate.
  void check_usable() const;
  // Internal: not part of the interface.
  class STRETTO_HIDDEN Group;
  explicit Communicator(std::shared_ptr<Group> group) : group_(std::move(group)) {}

 private:
  Group& group() const;
  std::shared_ptr<Group> group_;
};

// A prepared operation, as a handle. The operation may be started many times, on any stream. Each start counts as a
// call: all members must make it at the same place in their order of operations.
class STRETTO_API Operation {
 public:
  Operation() = default;
  [[nodiscard]] Work start(const Stream& stream) const;
  // The chosen method and its plan. The choice may depend on whether buffers are in symmetric memory. method() and
  // plan() then return the choice for this rank's buffers, whereas each start chooses again from the buffers of all
  // ranks.
  const Method& method() const;
  const Plan& plan() const;

  // Internal: not part of the interface.
  struct STRETTO_HIDDEN State;
  explicit Operation(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  const std::shared_ptr<const State>& state() const { return state_; }

 private:
  std::shared_ptr<const State> state_;
};

// Like NCCL's ncclGroupStart and ncclGroupEnd. While the group is open, the calls of this thread, on any communicators
// and streams, are collected but not started. end() starts all of them so that they progress together. The group may
// hold sends and receives in any order, and collectives of several communicators; collectives of one communicator keep
// their order. Earlier work in any of the streams runs before the group; later work runs after the group. All calls in a
// group return the same Work; wait for it only after end(). Groups may be nested; only the outermost group starts
// operations. A group that is destroyed without end(), for example by an exception, starts no operation.
class STRETTO_API OperationGroup {
 public:
  OperationGroup();
  ~OperationGroup();
  OperationGroup(const OperationGroup&) = delete;
  OperationGroup& operator=(const OperationGroup&) = delete;
  [[nodiscard]] Work end();  // must be called in the thread that made the group

 private:
  bool open_ = true;
  std::thread::id thread_;
  std::size_t first_;  // index of this group's first collected call
};

}  // namespace stretto
