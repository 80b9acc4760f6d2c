#pragma once
#include <array>
#include <atomic>
#include <cstdint>

#include "calls.hpp"

// Counts the outcome of every collective call, for STRETTO_MPI_REPORT=1.
namespace stretto::mpi_door {

enum class Outcome {
  served,
  // The others: forwarded to the MPI, for the reason that the name gives.
  type,
  operation,
  inter_communicator,
  alone,
  unfollowed,
  unserved,
  mpi_is_faster,
  arguments,
  count
};

class Report {
 public:
  void add(Kind kind, Form form, Outcome outcome) {
    counts_[place(kind, form, outcome)].fetch_add(1, std::memory_order_relaxed);
  }
  // Collective over MPI_COMM_WORLD: rank 0 writes the sums of all ranks' counts to stderr.
  void print() const;

 private:
  static constexpr std::size_t outcomes = static_cast<std::size_t>(Outcome::count);
  static constexpr std::size_t forms = static_cast<std::size_t>(Form::count);
  static constexpr std::size_t kinds = static_cast<std::size_t>(Kind::count);
  static std::size_t place(Kind kind, Form form, Outcome outcome) {
    return (static_cast<std::size_t>(kind) * forms + static_cast<std::size_t>(form)) * outcomes +
           static_cast<std::size_t>(outcome);
  }
  std::array<std::atomic<std::uint64_t>, kinds * forms * outcomes> counts_{};
};

}  // namespace stretto::mpi_door
