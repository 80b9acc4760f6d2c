#pragma once
// Only MPI's C interface is used. Without these macros, mpi.h declares its C++ bindings, which would have to be linked.
#define OMPI_SKIP_MPICXX 1   // NOLINT(readability-identifier-naming): Open MPI's name
#define MPICH_SKIP_MPICXX 1  // NOLINT(readability-identifier-naming): MPICH's name
#include <mpi.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "stretto/launch.hpp"

// The bridge from MPI. It works with any MPI implementation, because all its code is in this header: the Stretto library
// is not linked to MPI.
namespace stretto {

// Collective over comm. Returns a Communicator of the same ranks. connect() uses MPI to exchange rank 0's address and
// secret. Later, Stretto makes no MPI calls. may_calibrate: see MeetingPoint; only for MPI_COMM_WORLD or a duplicate of it.
inline Communicator connect(MPI_Comm comm, bool may_calibrate = false) {
  int rank = 0;
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size == 1) {
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> version{};
    MPI_Get_library_version(version.data(), &size);
    require_alone(version.data());
  }
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  MPI_Comm one_host = MPI_COMM_NULL;
  int local_size = 0;
  MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &one_host);
  MPI_Comm_size(one_host, &local_size);
  MPI_Comm_free(&one_host);

  struct Introduction {  // broadcast from rank 0
    std::array<char, 256> host, secret;
    int port;
  } introduction{};
  MeetingPoint point;
  if (rank == 0) {
    if (local_size < size) gethostname(introduction.host.data(), introduction.host.size() - 1);
    point = open_meeting(local_size < size ? introduction.host.data() : "127.0.0.1");
    std::strncpy(introduction.host.data(), point.host.c_str(), introduction.host.size() - 1);
    std::strncpy(introduction.secret.data(), point.secret.c_str(), introduction.secret.size() - 1);
    introduction.port = point.port;
  }
  MPI_Bcast(&introduction, sizeof introduction, MPI_BYTE, 0, comm);
  if (rank != 0) point = {introduction.host.data(), introduction.port, introduction.secret.data(), -1};
  point.may_calibrate = may_calibrate;
  return connect(rank, size, point);
}

}  // namespace stretto
