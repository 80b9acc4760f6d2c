#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "foreign_mpi.hpp"

namespace stretto::mpi_door {

// The contiguous bytes that Stretto moves for a buffer that the program describes by addresses, counts and a type.
//
// The bytes are the program's own memory if the type is basic and all elements are contiguous. Otherwise they are a copy:
// pack() fills it and unpack() copies it back. The bytes hold the values of the type signature, which MPI requires to be the
// same on all ranks. They do not depend on the layout, which each rank may choose. So a rank with a derived type and a rank
// with a basic type can take part in the same call.
class Carried {
 public:
  Carried() = default;
  ~Carried();
  Carried(Carried&& other) noexcept;
  Carried& operator=(Carried&&) = delete;

  // Appends elements. All calls must have the same type, and must precede data().
  void add(const void* address, std::int64_t count, MPI_Datatype type);
  // Makes data() a copy even where the program's memory could be used.
  void be_a_copy() { in_a_row_ = false; }

  std::int64_t bytes() const { return bytes_; }
  std::byte* data();
  bool is_a_copy() const { return !in_a_row_; }
  // The program's memory from which or into which data() moves bytes itself; empty for a copy.
  std::span<const std::byte> in_place() const;

  void pack();  // does nothing unless data() is a copy
  void unpack();

 private:
  struct Part {
    std::byte* address;
    std::int64_t count;
  };
  template <class Work>
  void for_each_piece(Work work);
  void set_type(MPI_Datatype type);

  MPI_Datatype type_ = MPI_DATATYPE_NULL;
  bool basic_ = true;
  bool in_a_row_ = true;
  std::int64_t element_bytes_ = 0;
  std::int64_t bytes_ = 0;
  std::vector<Part> parts_;
  std::unique_ptr<std::byte[]> copy_;
};

}  // namespace stretto::mpi_door
