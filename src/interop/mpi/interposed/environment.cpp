// MPI's calls that open and close the door.
#include "door.hpp"

using stretto::mpi_door::door;

int MPI_Init(int* argc, char*** argv) {
  const int result = PMPI_Init(argc, argv);
  if (result == MPI_SUCCESS) door().open();
  return result;
}

int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  const int result = PMPI_Init_thread(argc, argv, required, provided);
  if (result == MPI_SUCCESS) door().open();
  return result;
}

int MPI_Finalize() {
  door().close();
  return PMPI_Finalize();
}
