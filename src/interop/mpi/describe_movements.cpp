// MPI's collectives that only move data, as operations of Stretto on bytes.
#include <algorithm>

#include "describe.hpp"
#include "types.hpp"

namespace stretto::mpi_door {
namespace {

// The address of the first byte after `elements` elements of `buffer`.
const std::byte* behind(const void* buffer, std::int64_t elements, MPI_Datatype type) {
  return static_cast<const std::byte*>(buffer) + elements * extent_of(type);
}

bool is_wrong(std::int64_t count, MPI_Datatype type) { return count < 0 || type == MPI_DATATYPE_NULL; }
bool is_wrong(const int counts[], MPI_Datatype type, const Served& on) {
  return counts == nullptr || type == MPI_DATATYPE_NULL ||
         std::any_of(counts, counts + on.size, [](int count) { return count < 0; });
}

void set_call(Collective collective, std::int64_t bytes, Task& task, int root = 0) {
  task.call.collective = collective;
  task.call.count = bytes;
  task.call.dtype = DType::u8;
  task.call.root = root;
}

// For MPI_IN_PLACE, where this rank's contribution lies in its share of the result. The contribution stays there unless the
// result is a copy. position: byte offset of the share in the result.
void take_own_share(const void* share, std::int64_t count, MPI_Datatype type, std::int64_t position, Task& task) {
  if (!task.output.is_a_copy()) {
    task.call.input = task.output.data() + position;
    return;
  }
  task.input.add(share, count, type);
  task.call.input = task.input.data();
}

void take(const void* buffer, std::int64_t count, MPI_Datatype type, Task& task) {
  task.input.add(buffer, count, type);
  task.call.input = task.input.data();
}

void give(void* buffer, std::int64_t count, MPI_Datatype type, Task& task) {
  task.output.add(buffer, count, type);
  task.call.output = task.output.data();
}

void add_message(bool sends, int peer, const void* buffer, std::int64_t displacement, int count, MPI_Datatype type,
                 Task& task, bool as_a_copy = false) {
  Task::Message message{sends, peer, {}};
  if (as_a_copy) message.carried.be_a_copy();
  message.carried.add(behind(buffer, displacement, type), count, type);
  if (message.carried.bytes() > 0) task.messages.push_back(std::move(message));  // the peer knows that the message is empty
}

void give_itself(const void* from, std::int64_t from_displacement, int from_count, MPI_Datatype from_type, void* to,
                 std::int64_t to_displacement, int to_count, MPI_Datatype to_type, Task& task) {
  Task::ToItself own;
  own.from.add(behind(from, from_displacement, from_type), from_count, from_type);
  own.to.add(behind(to, to_displacement, to_type), to_count, to_type);
  task.to_itself.push_back(std::move(own));
}

}  // namespace

Outcome describe_barrier(const Served&, Task& task) {
  task.call.collective = Collective::barrier;
  return Outcome::served;
}

Outcome describe_bcast(void* buffer, int count, MPI_Datatype datatype, int root, const Served& on, Task& task) {
  if (is_wrong(count, datatype) || root < 0 || root >= on.size) return Outcome::arguments;
  Carried& carried = on.rank == root ? task.input : task.output;
  carried.add(buffer, count, datatype);
  set_call(Collective::broadcast, carried.bytes(), task, root);
  task.call.input = task.call.output = carried.data();
  return Outcome::served;
}

Outcome describe_allgather(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, int recvcount,
                           MPI_Datatype recvtype, const Served& on, Task& task) {
  const bool in_place = sendbuf == MPI_IN_PLACE;
  if (is_wrong(recvcount, recvtype) || (!in_place && is_wrong(sendcount, sendtype))) return Outcome::arguments;
  give(recvbuf, std::int64_t{recvcount} * on.size, recvtype, task);
  const std::int64_t share = task.output.bytes() / on.size;
  set_call(Collective::all_gather, share, task);
  if (in_place) {
    const std::int64_t first = std::int64_t{recvcount} * on.rank;
    take_own_share(behind(recvbuf, first, recvtype), recvcount, recvtype, share * on.rank, task);
  } else {
    take(sendbuf, sendcount, sendtype, task);
  }
  return Outcome::served;
}

Outcome describe_allgatherv(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, const int recvcounts[],
                            const int displs[], MPI_Datatype recvtype, const Served& on, Task& task) {
  const bool in_place = sendbuf == MPI_IN_PLACE;
  if (is_wrong(recvcounts, recvtype, on) || displs == nullptr || (!in_place && is_wrong(sendcount, sendtype))) {
    return Outcome::arguments;
  }
  std::vector<std::int64_t> shares;
  std::int64_t own_position = 0;
  for (int rank = 0; rank < on.size; ++rank) {
    if (rank == on.rank) own_position = task.output.bytes();
    shares.push_back(recvcounts[rank] * size_of_element(recvtype));
    task.output.add(behind(recvbuf, displs[rank], recvtype), recvcounts[rank], recvtype);
  }
  task.call.output = task.output.data();
  set_call(Collective::all_gather, shares.front(), task);
  if (std::any_of(shares.begin(), shares.end(), [&](std::int64_t share) { return share != shares.front(); })) {
    task.call.count = 0;
    task.call.counts = std::move(shares);
  }
  if (in_place) {
    const int own = recvcounts[on.rank];
    take_own_share(behind(recvbuf, displs[on.rank], recvtype), own, recvtype, own_position, task);
  } else {
    take(sendbuf, sendcount, sendtype, task);
  }
  return Outcome::served;
}

Outcome describe_gather(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, int recvcount,
                        MPI_Datatype recvtype, int root, const Served& on, Task& task) {
  const bool is_root = on.rank == root;
  const bool in_place = sendbuf == MPI_IN_PLACE;
  if (root < 0 || root >= on.size || (in_place && !is_root)) return Outcome::arguments;
  if ((is_root && is_wrong(recvcount, recvtype)) || (!in_place && is_wrong(sendcount, sendtype))) return Outcome::arguments;
  if (!is_root) {
    take(sendbuf, sendcount, sendtype, task);
    set_call(Collective::gather, task.input.bytes(), task, root);
    return Outcome::served;
  }
  give(recvbuf, std::int64_t{recvcount} * on.size, recvtype, task);
  const std::int64_t share = task.output.bytes() / on.size;
  set_call(Collective::gather, share, task, root);
  if (in_place) {
    const std::int64_t first = std::int64_t{recvcount} * root;
    take_own_share(behind(recvbuf, first, recvtype), recvcount, recvtype, share * root, task);
  } else {
    take(sendbuf, sendcount, sendtype, task);
  }
  return Outcome::served;
}

Outcome describe_scatter(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, int recvcount,
                         MPI_Datatype recvtype, int root, const Served& on, Task& task) {
  const bool is_root = on.rank == root;
  const bool in_place = recvbuf == MPI_IN_PLACE;
  if (root < 0 || root >= on.size || (in_place && !is_root)) return Outcome::arguments;
  if ((is_root && is_wrong(sendcount, sendtype)) || (!in_place && is_wrong(recvcount, recvtype))) return Outcome::arguments;
  if (is_root) take(sendbuf, std::int64_t{sendcount} * on.size, sendtype, task);
  if (!in_place) give(recvbuf, recvcount, recvtype, task);
  const std::int64_t share = is_root ? task.input.bytes() / on.size : task.output.bytes();
  set_call(Collective::scatter, share, task, root);
  // MPI_IN_PLACE: the root's share stays where it is.
  if (in_place) task.call.output = task.input.data() + share * root;
  return Outcome::served;
}

Outcome describe_alltoall(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, int recvcount,
                          MPI_Datatype recvtype, const Served& on, Task& task) {
  const bool in_place = sendbuf == MPI_IN_PLACE;
  if (is_wrong(recvcount, recvtype) || (!in_place && is_wrong(sendcount, sendtype))) return Outcome::arguments;
  give(recvbuf, std::int64_t{recvcount} * on.size, recvtype, task);
  if (in_place) {
    task.input.be_a_copy();
    take(recvbuf, std::int64_t{recvcount} * on.size, recvtype, task);
  } else {
    take(sendbuf, std::int64_t{sendcount} * on.size, sendtype, task);
  }
  set_call(Collective::all_to_all, task.output.bytes() / on.size, task);
  return Outcome::served;
}

// ---- calls in which a rank knows only its own counts

Outcome describe_gatherv(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, const int recvcounts[],
                         const int displs[], MPI_Datatype recvtype, int root, const Served& on, Task& task) {
  const bool is_root = on.rank == root;
  const bool in_place = sendbuf == MPI_IN_PLACE;
  if (root < 0 || root >= on.size || (in_place && !is_root)) return Outcome::arguments;
  if (!in_place && is_wrong(sendcount, sendtype)) return Outcome::arguments;
  if (is_root && (is_wrong(recvcounts, recvtype, on) || displs == nullptr)) return Outcome::arguments;
  task.is_messages = true;
  if (!is_root) add_message(true, root, sendbuf, 0, sendcount, sendtype, task);
  for (int rank = 0; is_root && rank < on.size; ++rank) {
    if (rank != root) add_message(false, rank, recvbuf, displs[rank], recvcounts[rank], recvtype, task);
  }
  task.use_slots(Collective::gather, on, root);
  if (is_root && !in_place) {
    give_itself(sendbuf, 0, sendcount, sendtype, recvbuf, displs[root], recvcounts[root], recvtype, task);
  }
  return Outcome::served;
}

Outcome describe_scatterv(const void* sendbuf, const int sendcounts[], const int displs[], MPI_Datatype sendtype,
                          void* recvbuf, int recvcount, MPI_Datatype recvtype, int root, const Served& on, Task& task) {
  const bool is_root = on.rank == root;
  const bool in_place = recvbuf == MPI_IN_PLACE;
  if (root < 0 || root >= on.size || (in_place && !is_root)) return Outcome::arguments;
  if (!in_place && is_wrong(recvcount, recvtype)) return Outcome::arguments;
  if (is_root && (is_wrong(sendcounts, sendtype, on) || displs == nullptr)) return Outcome::arguments;
  task.is_messages = true;
  if (!is_root) add_message(false, root, recvbuf, 0, recvcount, recvtype, task);
  for (int rank = 0; is_root && rank < on.size; ++rank) {
    if (rank != root) add_message(true, rank, sendbuf, displs[rank], sendcounts[rank], sendtype, task);
  }
  task.use_slots(Collective::scatter, on, root);
  if (is_root && !in_place) {
    give_itself(sendbuf, displs[root], sendcounts[root], sendtype, recvbuf, 0, recvcount, recvtype, task);
  }
  return Outcome::served;
}

Outcome describe_alltoallv(const void* sendbuf, const int sendcounts[], const int sdispls[], MPI_Datatype sendtype,
                           void* recvbuf, const int recvcounts[], const int rdispls[], MPI_Datatype recvtype,
                           const Served& on, Task& task) {
  const bool in_place = sendbuf == MPI_IN_PLACE;
  if (is_wrong(recvcounts, recvtype, on) || rdispls == nullptr) return Outcome::arguments;
  if (!in_place && (is_wrong(sendcounts, sendtype, on) || sdispls == nullptr)) return Outcome::arguments;
  task.is_messages = true;
  for (int i = 1; i < on.size; ++i) {  // ranks must not all address the same peer first
    const int to = (on.rank + i) % on.size;
    const int from = (on.rank - i + on.size) % on.size;
    if (in_place) {
      add_message(true, to, recvbuf, rdispls[to], recvcounts[to], recvtype, task, true);
    } else {
      add_message(true, to, sendbuf, sdispls[to], sendcounts[to], sendtype, task);
    }
    add_message(false, from, recvbuf, rdispls[from], recvcounts[from], recvtype, task);
  }
  task.use_slots(Collective::all_to_all, on);
  if (!in_place) {
    give_itself(sendbuf, sdispls[on.rank], sendcounts[on.rank], sendtype, recvbuf, rdispls[on.rank], recvcounts[on.rank],
                recvtype, task);
  }
  return Outcome::served;
}

}  // namespace stretto::mpi_door
