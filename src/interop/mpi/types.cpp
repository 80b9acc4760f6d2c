#include "types.hpp"

#include <vector>

namespace stretto::mpi_door {
namespace {

enum class Number { floating, is_signed, is_unsigned, none };

std::optional<DType> dtype_of_number(Number number, std::int64_t bytes) {
  switch (number) {
    case Number::floating:
      if (bytes == 4) return DType::f32;
      if (bytes == 8) return DType::f64;
      break;
    case Number::is_signed:
      if (bytes == 1) return DType::i8;
      if (bytes == 4) return DType::i32;
      if (bytes == 8) return DType::i64;
      break;
    case Number::is_unsigned:
      if (bytes == 1) return DType::u8;
      if (bytes == 4) return DType::u32;
      if (bytes == 8) return DType::u64;
      break;
    case Number::none: break;
  }
  return std::nullopt;
}

// Lookup is a linear search, so the most used types come first.
std::vector<BasicType> known_types() {
  std::vector<BasicType> types;
  const auto add = [&](Number number, std::initializer_list<MPI_Datatype> all) {
    for (const MPI_Datatype type : all) {
      if (type == MPI_DATATYPE_NULL) continue;  // this MPI does not have the type's language
      const std::int64_t bytes = size_of_element(type);
      if (bytes > 0 && bytes == extent_of(type)) types.push_back({type, bytes, dtype_of_number(number, bytes)});
    }
  };
  add(Number::floating, {MPI_FLOAT, MPI_DOUBLE});
  add(Number::is_signed, {MPI_INT, MPI_LONG});
  add(Number::none, {MPI_BYTE, MPI_CHAR});
  add(Number::is_signed, {MPI_LONG_LONG_INT, MPI_INT8_T, MPI_INT16_T, MPI_INT32_T, MPI_INT64_T, MPI_SHORT, MPI_SIGNED_CHAR,
                          MPI_AINT, MPI_COUNT, MPI_OFFSET, MPI_INTEGER});
  add(Number::is_unsigned, {MPI_UNSIGNED, MPI_UNSIGNED_LONG, MPI_UNSIGNED_LONG_LONG, MPI_UINT8_T, MPI_UINT16_T, MPI_UINT32_T,
                            MPI_UINT64_T, MPI_UNSIGNED_SHORT, MPI_UNSIGNED_CHAR});
  add(Number::floating, {MPI_REAL, MPI_DOUBLE_PRECISION});
  add(Number::none, {MPI_LONG_DOUBLE, MPI_WCHAR, MPI_C_BOOL, MPI_C_FLOAT_COMPLEX, MPI_C_DOUBLE_COMPLEX,
                     MPI_C_LONG_DOUBLE_COMPLEX, MPI_PACKED, MPI_CHARACTER, MPI_LOGICAL, MPI_COMPLEX, MPI_DOUBLE_COMPLEX});
  return types;
}

}  // namespace

const BasicType* basic_type(MPI_Datatype type) {
  static const auto& types = *new std::vector<BasicType>(known_types());
  for (const BasicType& one : types) {
    if (one.type == type) return &one;
  }
  return nullptr;
}

std::int64_t size_of_element(MPI_Datatype type) {
  MPI_Count bytes = 0;
  PMPI_Type_size_x(type, &bytes);
  return bytes;
}

std::int64_t extent_of(MPI_Datatype type) {
  MPI_Count lower_bound = 0;
  MPI_Count extent = 0;
  PMPI_Type_get_extent_x(type, &lower_bound, &extent);
  return extent;
}

std::optional<ReduceOp> reduce_op(MPI_Op op) {
  if (op == MPI_SUM) return ReduceOp::sum;
  if (op == MPI_MAX) return ReduceOp::max;
  if (op == MPI_MIN) return ReduceOp::min;
  if (op == MPI_PROD) return ReduceOp::prod;
  return std::nullopt;
}

}  // namespace stretto::mpi_door
