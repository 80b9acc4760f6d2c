// MPI's reductions, as operations of Stretto.
#include <algorithm>
#include <numeric>

#include "describe.hpp"
#include "types.hpp"

namespace stretto::mpi_door {
namespace {

Outcome set_reduction(int count, MPI_Datatype datatype, MPI_Op op, Task& task) {
  if (count < 0 || datatype == MPI_DATATYPE_NULL || op == MPI_OP_NULL) return Outcome::arguments;
  const BasicType* const type = basic_type(datatype);
  if (type == nullptr || !type->dtype) return Outcome::type;
  const std::optional<ReduceOp> combine = reduce_op(op);
  if (!combine) return Outcome::operation;
  task.call.count = count;
  task.call.dtype = *type->dtype;
  task.call.op = *combine;
  return Outcome::served;
}

// Whether a result is written where the input still is. MPI forbids that, unless it is asked for by MPI_IN_PLACE.
bool overlap(const void* input, std::int64_t read, const void* output, std::int64_t written, DType dtype) {
  const auto width = static_cast<std::int64_t>(size_of(dtype));
  const auto* const in = static_cast<const std::byte*>(input);
  const auto* const out = static_cast<const std::byte*>(output);
  return in < out + written * width && out < in + read * width;
}

// Makes the result a copy if it overlaps the input without replacing all of it.
void keep_output_apart(int count, MPI_Datatype datatype, Task& task) {
  Call& call = task.call;
  if (call.input == call.output || !overlap(call.input, count, call.output, count, call.dtype)) return;
  task.output.add(call.output, count, datatype);
  task.output.be_a_copy();
  call.output = task.output.data();
}

// With MPI_IN_PLACE, `recvbuf` holds the whole input, and MPI puts this rank's share of the result at its beginning. In
// place, Stretto supports only an output that lies at the share's own offset, so the result is a copy.
void set_scattered(const void* sendbuf, std::int64_t count, void* recvbuf, int own_count, MPI_Datatype datatype,
                   Task& task) {
  task.call.collective = Collective::reduce_scatter;
  task.call.input = sendbuf == MPI_IN_PLACE ? recvbuf : sendbuf;
  task.output.add(recvbuf, own_count, datatype);
  if (overlap(task.call.input, count, recvbuf, own_count, task.call.dtype)) task.output.be_a_copy();
  task.call.output = task.output.data();
}

}  // namespace

Outcome describe_allreduce(const void* sendbuf, void* recvbuf, int count, MPI_Datatype datatype, MPI_Op op, const Served&,
                           Task& task) {
  task.call.collective = Collective::all_reduce;
  task.call.input = sendbuf == MPI_IN_PLACE ? recvbuf : sendbuf;
  task.call.output = recvbuf;
  const Outcome outcome = set_reduction(count, datatype, op, task);
  if (outcome == Outcome::served) keep_output_apart(count, datatype, task);
  return outcome;
}

Outcome describe_reduce(const void* sendbuf, void* recvbuf, int count, MPI_Datatype datatype, MPI_Op op, int root,
                        const Served& on, Task& task) {
  const bool is_root = root == on.rank;
  if (root < 0 || root >= on.size || (sendbuf == MPI_IN_PLACE && !is_root)) return Outcome::arguments;
  task.call.collective = Collective::reduce;
  task.call.input = sendbuf == MPI_IN_PLACE ? recvbuf : sendbuf;
  task.call.output = is_root ? recvbuf : nullptr;
  task.call.root = root;
  const Outcome outcome = set_reduction(count, datatype, op, task);
  if (outcome == Outcome::served && is_root) keep_output_apart(count, datatype, task);
  return outcome;
}

Outcome describe_reduce_scatter_block(const void* sendbuf, void* recvbuf, int recvcount, MPI_Datatype datatype, MPI_Op op,
                                      const Served& on, Task& task) {
  const Outcome outcome = set_reduction(recvcount, datatype, op, task);
  if (outcome != Outcome::served) return outcome;
  set_scattered(sendbuf, std::int64_t{recvcount} * on.size, recvbuf, recvcount, datatype, task);
  return outcome;
}

Outcome describe_reduce_scatter(const void* sendbuf, void* recvbuf, const int recvcounts[], MPI_Datatype datatype, MPI_Op op,
                                const Served& on, Task& task) {
  if (recvcounts == nullptr) return Outcome::arguments;
  const int* const end = recvcounts + on.size;
  if (std::any_of(recvcounts, end, [](int count) { return count < 0; })) return Outcome::arguments;
  const Outcome outcome = set_reduction(recvcounts[0], datatype, op, task);
  if (outcome != Outcome::served) return outcome;
  if (std::any_of(recvcounts, end, [&](int count) { return count != recvcounts[0]; })) {
    task.call.count = 0;
    task.call.counts.assign(recvcounts, end);
  }
  set_scattered(sendbuf, std::accumulate(recvcounts, end, std::int64_t{0}), recvbuf, recvcounts[on.rank], datatype, task);
  return outcome;
}

}  // namespace stretto::mpi_door
