#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "stretto/ledger.hpp"
#include "stretto/plan.hpp"
#include "stretto/stream.hpp"
#include "stretto/tensor.hpp"

namespace stretto {

struct OperationOptions {
  Algorithm algorithm = Algorithm::automatic;
  std::string tag;  // appears in the ledger
};

// A group of ranks that communicate. A handle: copies mean the same group.
//
// Every operation is put into a stream and returns at once (on Stream::inline_(), when it is done). All members call the
// same operations of one communicator in the same order with the same counts, types and roots; different communicators may
// be used at the same time from different streams. Counts are in elements. Buffers belong to the operation until its Work is
// done; any pointer and alignment will do. In place is allowed where noted. Wrong arguments throw at the call and harm
// nothing; an error in the operation itself reaches whoever waits, and the communicator is then unusable.
class STRETTO_API Communicator {
 public:
  Communicator() = default;  // of no ranks, as split() returns to those that it leaves out
  explicit operator bool() const { return group_ != nullptr; }

  int rank() const;
  int size() const;
  const std::string& name() const;

  // output[i] = the reduction of all ranks' input[i]; in place when they are equal. Every rank gets the same bits.
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
  // Done when every rank has begun it.
  Work barrier(const Stream& stream) const;
  // Messages from one rank to another arrive in the order in which they were sent. Both block their stream until the peer
  // takes part (a small message may leave earlier).
  Work send(const void* data, std::int64_t count, DType dtype, int peer, const Stream& stream,
            const OperationOptions& options = {}) const;
  Work recv(void* data, std::int64_t count, DType dtype, int peer, const Stream& stream,
            const OperationOptions& options = {}) const;

  // The same on a whole tensor, in place; the work keeps the tensor alive.
  Work all_reduce(const Tensor& tensor, ReduceOp op, const Stream& stream, const OperationOptions& options = {}) const;
  Work broadcast(const Tensor& tensor, int root, const Stream& stream, const OperationOptions& options = {}) const;

  // Collective over all members: those that give the same color form a new group, ordered by key, then by rank. A negative
  // color: no group. The name appears in the ledger.
  // A rank makes one split at a time.
  Communicator split(int color, int key, const std::string& name) const;

  // This rank's, over all its communicators.
  Ledger& ledger() const;
  // Tells every rank of the job that this one gives up; their operations then throw Error(peer_gave_up) with the reason.
  void abort(const std::string& reason) const;

  class Group;
  explicit Communicator(std::shared_ptr<Group> group) : group_(std::move(group)) {}

 private:
  Group& group() const;
  std::shared_ptr<Group> group_;
};

}  // namespace stretto
