#pragma once
#include "foreign_mpi.hpp"

// MPI's collective calls that move data. Each has the forms MPI_X, MPI_Ix and MPI_X_init, and all forms have the same
// parameters before the communicator.

// clang-format off
// X(name, name in lower case, parameters before the communicator, the same parameters as arguments)
#define STRETTO_SERVED_CALLS(X)                                                                                             \
  X(Allreduce, allreduce, (const void* sendbuf, void* recvbuf, int count, MPI_Datatype datatype, MPI_Op op, ),              \
    (sendbuf, recvbuf, count, datatype, op, ))                                                                              \
  X(Reduce, reduce, (const void* sendbuf, void* recvbuf, int count, MPI_Datatype datatype, MPI_Op op, int root, ),          \
    (sendbuf, recvbuf, count, datatype, op, root, ))                                                                        \
  X(Reduce_scatter_block, reduce_scatter_block,                                                                             \
    (const void* sendbuf, void* recvbuf, int recvcount, MPI_Datatype datatype, MPI_Op op, ),                                \
    (sendbuf, recvbuf, recvcount, datatype, op, ))                                                                          \
  X(Reduce_scatter, reduce_scatter,                                                                                         \
    (const void* sendbuf, void* recvbuf, const int recvcounts[], MPI_Datatype datatype, MPI_Op op, ),                       \
    (sendbuf, recvbuf, recvcounts, datatype, op, ))                                                                         \
  X(Barrier, barrier, (), ())                                                                                               \
  X(Bcast, bcast, (void* buffer, int count, MPI_Datatype datatype, int root, ), (buffer, count, datatype, root, ))          \
  X(Allgather, allgather,                                                                                                   \
    (const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, int recvcount, MPI_Datatype recvtype, ),     \
    (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, ))                                                         \
  X(Allgatherv, allgatherv,                                                                                                 \
    (const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, const int recvcounts[], const int displs[],  \
     MPI_Datatype recvtype, ),                                                                                              \
    (sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, ))                                                \
  X(Gather, gather,                                                                                                         \
    (const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, int recvcount, MPI_Datatype recvtype,        \
     int root, ),                                                                                                           \
    (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, ))                                                   \
  X(Gatherv, gatherv,                                                                                                       \
    (const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, const int recvcounts[], const int displs[],  \
     MPI_Datatype recvtype, int root, ),                                                                                    \
    (sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, root, ))                                          \
  X(Scatter, scatter,                                                                                                       \
    (const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, int recvcount, MPI_Datatype recvtype,        \
     int root, ),                                                                                                           \
    (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, ))                                                   \
  X(Scatterv, scatterv,                                                                                                     \
    (const void* sendbuf, const int sendcounts[], const int displs[], MPI_Datatype sendtype, void* recvbuf, int recvcount,  \
     MPI_Datatype recvtype, int root, ),                                                                                    \
    (sendbuf, sendcounts, displs, sendtype, recvbuf, recvcount, recvtype, root, ))                                          \
  X(Alltoall, alltoall,                                                                                                     \
    (const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, int recvcount, MPI_Datatype recvtype, ),     \
    (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, ))                                                         \
  X(Alltoallv, alltoallv,                                                                                                   \
    (const void* sendbuf, const int sendcounts[], const int sdispls[], MPI_Datatype sendtype, void* recvbuf,                \
     const int recvcounts[], const int rdispls[], MPI_Datatype recvtype, ),                                                 \
    (sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls, recvtype, ))

// Calls that are always forwarded to the MPI. The report counts them.
#define STRETTO_FORWARDED_CALLS(X)                                                                                          \
  X(Scan, scan, (const void* sendbuf, void* recvbuf, int count, MPI_Datatype datatype, MPI_Op op, ),                        \
    (sendbuf, recvbuf, count, datatype, op, ))                                                                              \
  X(Exscan, exscan, (const void* sendbuf, void* recvbuf, int count, MPI_Datatype datatype, MPI_Op op, ),                    \
    (sendbuf, recvbuf, count, datatype, op, ))                                                                              \
  X(Alltoallw, alltoallw,                                                                                                   \
    (const void* sendbuf, const int sendcounts[], const int sdispls[], const MPI_Datatype sendtypes[], void* recvbuf,       \
     const int recvcounts[], const int rdispls[], const MPI_Datatype recvtypes[], ),                                        \
    (sendbuf, sendcounts, sdispls, sendtypes, recvbuf, recvcounts, rdispls, recvtypes, ))                                   \
  X(Neighbor_allgather, neighbor_allgather,                                                                                 \
    (const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, int recvcount, MPI_Datatype recvtype, ),     \
    (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, ))                                                         \
  X(Neighbor_allgatherv, neighbor_allgatherv,                                                                               \
    (const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, const int recvcounts[], const int displs[],  \
     MPI_Datatype recvtype, ),                                                                                              \
    (sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, ))                                                \
  X(Neighbor_alltoall, neighbor_alltoall,                                                                                   \
    (const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf, int recvcount, MPI_Datatype recvtype, ),     \
    (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, ))                                                         \
  X(Neighbor_alltoallv, neighbor_alltoallv,                                                                                 \
    (const void* sendbuf, const int sendcounts[], const int sdispls[], MPI_Datatype sendtype, void* recvbuf,                \
     const int recvcounts[], const int rdispls[], MPI_Datatype recvtype, ),                                                 \
    (sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls, recvtype, ))                                     \
  X(Neighbor_alltoallw, neighbor_alltoallw,                                                                                 \
    (const void* sendbuf, const int sendcounts[], const MPI_Aint sdispls[], const MPI_Datatype sendtypes[], void* recvbuf,  \
     const int recvcounts[], const MPI_Aint rdispls[], const MPI_Datatype recvtypes[], ),                                   \
    (sendbuf, sendcounts, sdispls, sendtypes, recvbuf, recvcounts, rdispls, recvtypes, ))
// clang-format on

// Removes the parentheses around a list.
#define STRETTO_LIST(...) __VA_ARGS__

namespace stretto::mpi_door {

#define STRETTO_KIND(name, lower, parameters, arguments) name,
enum class Kind { STRETTO_SERVED_CALLS(STRETTO_KIND) STRETTO_FORWARDED_CALLS(STRETTO_KIND) count };
#undef STRETTO_KIND
enum class Form { blocking, non_blocking, persistent, count };

}  // namespace stretto::mpi_door
