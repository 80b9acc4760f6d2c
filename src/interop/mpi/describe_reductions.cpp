// MPI's reductions, as operations of Stretto.
#include <algorithm>

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

// With MPI_IN_PLACE, `recvbuf` holds the whole input, and MPI puts this rank's share of the result at its beginning. In
// place, Stretto supports only an output that lies at the share's own offset, so the result is a copy.
void set_scattered(const void* sendbuf, void* recvbuf, int own_count, MPI_Datatype datatype, Task& task) {
  task.call.collective = Collective::reduce_scatter;
  task.call.input = sendbuf == MPI_IN_PLACE ? recvbuf : sendbuf;
  task.output.add(recvbuf, own_count, datatype);
  if (sendbuf == MPI_IN_PLACE) task.output.be_a_copy();
  task.call.output = task.output.data();
}

}  // namespace

Outcome describe_allreduce(const void* sendbuf, void* recvbuf, int count, MPI_Datatype datatype, MPI_Op op, const Served&,
                           Task& task) {
  task.call.collective = Collective::all_reduce;
  task.call.input = sendbuf == MPI_IN_PLACE ? recvbuf : sendbuf;
  task.call.output = recvbuf;
  return set_reduction(count, datatype, op, task);
}

Outcome describe_reduce(const void* sendbuf, void* recvbuf, int count, MPI_Datatype datatype, MPI_Op op, int root,
                        const Served& on, Task& task) {
  const bool is_root = root == on.rank;
  if (root < 0 || root >= on.size || (sendbuf == MPI_IN_PLACE && !is_root)) return Outcome::arguments;
  task.call.collective = Collective::reduce;
  task.call.input = sendbuf == MPI_IN_PLACE ? recvbuf : sendbuf;
  task.call.output = is_root ? recvbuf : nullptr;
  task.call.root = root;
  return set_reduction(count, datatype, op, task);
}

Outcome describe_reduce_scatter_block(const void* sendbuf, void* recvbuf, int recvcount, MPI_Datatype datatype, MPI_Op op,
                                      const Served&, Task& task) {
  const Outcome outcome = set_reduction(recvcount, datatype, op, task);
  if (outcome == Outcome::served) set_scattered(sendbuf, recvbuf, recvcount, datatype, task);
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
  set_scattered(sendbuf, recvbuf, recvcounts[on.rank], datatype, task);
  return outcome;
}

}  // namespace stretto::mpi_door
