#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "foreign_mpi.hpp"

namespace stretto::mpi_door {

// What a program gives MPI as addresses, counts and a type, as the row of bytes that Stretto moves. It is the program's own
// memory where the type is basic and everything lies in a row; else a copy, which pack() takes and unpack() puts back. So
// what travels is the type's signature, which MPI demands to be the same on all ranks, and not its layout, which is each
// rank's own affair: a rank with a derived type and one with a basic type understand each other.
class Carried {
 public:
  Carried() = default;
  ~Carried();
  Carried(Carried&& other) noexcept;
  Carried& operator=(Carried&&) = delete;

  // The next elements; of one type throughout. Only before data().
  void add(const void* address, std::int64_t count, MPI_Datatype type);
  // Even where the program's memory would do, it is to be a copy.
  void be_a_copy() { in_a_row_ = false; }

  std::int64_t bytes() const { return bytes_; }
  std::byte* data();
  bool is_a_copy() const { return !in_a_row_; }

  void pack();  // nothing where it is no copy
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
