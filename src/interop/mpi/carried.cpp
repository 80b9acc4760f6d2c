#include "carried.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "door.hpp"
#include "types.hpp"

namespace stretto::mpi_door {

// PMPI_Pack counts bytes in an int.
constexpr std::int64_t most_packed_bytes = std::int64_t{1} << 30;

Carried::~Carried() {
  if (!basic_) PMPI_Type_free(&type_);
}

Carried::Carried(Carried&& other) noexcept
    : type_(other.type_),
      basic_(std::exchange(other.basic_, true)),
      in_a_row_(other.in_a_row_),
      element_bytes_(other.element_bytes_),
      bytes_(other.bytes_),
      parts_(std::move(other.parts_)),
      copy_(std::move(other.copy_)) {}

// A derived type is duplicated, because the program may free it as soon as a non-blocking call has returned.
void Carried::set_type(MPI_Datatype type) {
  if (const BasicType* const basic = basic_type(type)) {
    type_ = type;
    element_bytes_ = basic->bytes;
    return;
  }
  PMPI_Type_dup(type, &type_);
  basic_ = in_a_row_ = false;
  element_bytes_ = size_of_element(type);
}

void Carried::add(const void* address, std::int64_t count, MPI_Datatype type) {
  if (type_ == MPI_DATATYPE_NULL) set_type(type);
  if (count == 0 || element_bytes_ == 0) return;
  auto* const begin = static_cast<std::byte*>(const_cast<void*>(address));
  bytes_ += count * element_bytes_;
  if (basic_ && !parts_.empty()) {
    Part& last = parts_.back();
    if (begin == last.address + last.count * element_bytes_) {
      last.count += count;
      return;
    }
    in_a_row_ = false;
  }
  parts_.push_back({begin, count});
}

std::byte* Carried::data() {
  if (in_a_row_) return parts_.empty() ? nullptr : parts_.front().address;
  if (!copy_ && bytes_ > 0) copy_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes_));
  return copy_.get();
}

std::span<const std::byte> Carried::in_place() const {
  if (!in_a_row_ || parts_.empty()) return {};
  return {parts_.front().address, static_cast<std::size_t>(bytes_)};
}

// Calls work(address, number of elements, their bytes in the copy) for each piece.
template <class Work>
void Carried::for_each_piece(Work work) {
  if (in_a_row_) return;
  std::byte* packed = data();
  const std::int64_t extent = basic_ ? element_bytes_ : extent_of(type_);
  const std::int64_t at_a_time = std::max<std::int64_t>(1, most_packed_bytes / std::max<std::int64_t>(1, element_bytes_));
  for (const Part& part : parts_) {
    for (std::int64_t done = 0; done < part.count; done += at_a_time) {
      const std::int64_t count = std::min(at_a_time, part.count - done);
      work(part.address + done * extent, static_cast<int>(count), packed);
      packed += count * element_bytes_;
    }
  }
}

void Carried::pack() {
  for_each_piece([&](const std::byte* from, int count, std::byte* packed) {
    const std::int64_t bytes = count * element_bytes_;
    if (basic_) {
      std::memcpy(packed, from, static_cast<std::size_t>(bytes));
      return;
    }
    int position = 0;
    PMPI_Pack(from, count, type_, packed, static_cast<int>(bytes), &position, door().own_rank);
    // MPI lets a packed message be received as if it had not been packed. So packing yields the bare values if the MPI sends
    // messages as bare values, and the size shows whether it does.
    if (position != bytes) {
      give_up("The MPI packs " + std::to_string(bytes) + " bytes of a derived type into " + std::to_string(position) +
              "; such an MPI cannot be served.");
    }
  });
}

void Carried::unpack() {
  for_each_piece([&](std::byte* to, int count, const std::byte* packed) {
    const std::int64_t bytes = count * element_bytes_;
    if (basic_) {
      std::memcpy(to, packed, static_cast<std::size_t>(bytes));
      return;
    }
    int position = 0;
    PMPI_Unpack(packed, static_cast<int>(bytes), &position, to, count, type_, door().own_rank);
  });
}

}  // namespace stretto::mpi_door
