#pragma once
#include <cstdint>
#include <optional>

#include "foreign_mpi.hpp"
#include "stretto/dtype.hpp"

// The predefined types and operations of MPI that Stretto knows.
namespace stretto::mpi_door {

// A predefined type whose elements lie without gaps: its bytes can be moved as they are.
struct BasicType {
  MPI_Datatype type;
  std::int64_t bytes;
  std::optional<DType> dtype;  // empty if Stretto cannot reduce it
};
// Returns null for derived types, and for pairs such as MPI_DOUBLE_INT, which have gaps.
const BasicType* basic_type(MPI_Datatype type);

// The bytes of one element's values, without gaps: MPI_Type_size.
std::int64_t size_of_element(MPI_Datatype type);
// The distance in bytes from one element to the next: MPI_Type_get_extent.
std::int64_t extent_of(MPI_Datatype type);

std::optional<ReduceOp> reduce_op(MPI_Op op);

}  // namespace stretto::mpi_door
