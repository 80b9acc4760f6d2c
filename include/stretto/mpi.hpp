#pragma once
// The C interface is enough; the C++ bindings of old would want to be linked.
#define OMPI_SKIP_MPICXX 1   // NOLINT(readability-identifier-naming): Open MPI's name
#define MPICH_SKIP_MPICXX 1  // NOLINT(readability-identifier-naming): MPICH's name
#include <mpi.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "stretto/launch.hpp"

// The bridge from MPI, for any MPI: it is all in this header, so that the library itself is linked to none.
namespace stretto {

// Collective over comm: the same ranks as a Communicator. MPI is used for the introduction only, and must outlive this call
// only.
inline Communicator connect(MPI_Comm comm) {
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  MPI_Comm one_host = MPI_COMM_NULL;
  int local_size = 0;
  MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &one_host);
  MPI_Comm_size(one_host, &local_size);
  MPI_Comm_free(&one_host);

  struct Introduction {  // what rank 0 tells the others
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
  return connect(rank, size, point);
}

}  // namespace stretto
