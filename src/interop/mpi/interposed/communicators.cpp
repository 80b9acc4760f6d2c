// MPI's calls that make a communicator and that all members of the old communicator make together. Stretto makes its
// counterpart in the same call. A later time would be too late: the first collective on the new communicator may be
// non-blocking, and must not wait.
#include "door.hpp"

namespace stretto::mpi_door {
namespace {

int followed(int result, MPI_Comm parent, const MPI_Comm* made) {
  if (result == MPI_SUCCESS) door().follow(parent, *made);
  return result;
}

}  // namespace
}  // namespace stretto::mpi_door

using stretto::mpi_door::followed;

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* made) { return followed(PMPI_Comm_dup(comm, made), comm, made); }

int MPI_Comm_dup_with_info(MPI_Comm comm, MPI_Info info, MPI_Comm* made) {
  return followed(PMPI_Comm_dup_with_info(comm, info, made), comm, made);
}

int MPI_Comm_create(MPI_Comm comm, MPI_Group group, MPI_Comm* made) {
  return followed(PMPI_Comm_create(comm, group, made), comm, made);
}

int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm* made) {
  return followed(PMPI_Comm_split(comm, color, key, made), comm, made);
}

int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm* made) {
  return followed(PMPI_Comm_split_type(comm, type, key, info, made), comm, made);
}

int MPI_Cart_create(MPI_Comm comm, int dimensions, const int sizes[], const int periods[], int reorder, MPI_Comm* made) {
  return followed(PMPI_Cart_create(comm, dimensions, sizes, periods, reorder, made), comm, made);
}

int MPI_Cart_sub(MPI_Comm comm, const int remain[], MPI_Comm* made) {
  return followed(PMPI_Cart_sub(comm, remain, made), comm, made);
}

int MPI_Graph_create(MPI_Comm comm, int nodes, const int index[], const int edges[], int reorder, MPI_Comm* made) {
  return followed(PMPI_Graph_create(comm, nodes, index, edges, reorder, made), comm, made);
}

int MPI_Dist_graph_create(MPI_Comm comm, int n, const int sources[], const int degrees[], const int destinations[],
                          const int weights[], MPI_Info info, int reorder, MPI_Comm* made) {
  return followed(PMPI_Dist_graph_create(comm, n, sources, degrees, destinations, weights, info, reorder, made), comm, made);
}

int MPI_Dist_graph_create_adjacent(MPI_Comm comm, int indegree, const int sources[], const int source_weights[],
                                   int outdegree, const int destinations[], const int destination_weights[], MPI_Info info,
                                   int reorder, MPI_Comm* made) {
  return followed(PMPI_Dist_graph_create_adjacent(comm, indegree, sources, source_weights, outdegree, destinations,
                                                  destination_weights, info, reorder, made),
                  comm, made);
}
