#pragma once
#include <cstdint>
#include <optional>

#include "foreign_mpi.hpp"
#include "stretto/dtype.hpp"

// MPI's predefined types and operations, as far as Stretto knows them.
namespace stretto::mpi_door {

// A predefined type whose elements lie without gaps: its bytes can be moved as they are.
struct BasicType {
  MPI_Datatype type;
  std::int64_t bytes;
  std::optional<DType> dtype;  // where Stretto reduces it
};
// None for derived types, and for pairs such as MPI_DOUBLE_INT, which have gaps.
const BasicType* basic_type(MPI_Datatype type);

// Bytes of an element's values, without gaps: what MPI calls its size.
std::int64_t size_of_element(MPI_Datatype type);
// From one element to the next, in bytes.
std::int64_t extent_of(MPI_Datatype type);

std::optional<ReduceOp> reduce_op(MPI_Op op);

}  // namespace stretto::mpi_door
