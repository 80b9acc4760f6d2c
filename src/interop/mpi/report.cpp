#include "report.hpp"

#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

namespace stretto::mpi_door {
namespace {

const char* text_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::type: return "type that Stretto does not reduce";
    case Outcome::operation: return "operation that Stretto does not have";
    case Outcome::inter_communicator: return "inter-communicator";
    case Outcome::alone: return "communicator of one rank";
    case Outcome::unfollowed: return "communicator whose making the door does not follow";
    case Outcome::unserved: return "call that is always forwarded";
    case Outcome::mpi_is_faster: return "non-blocking call that the MPI does faster";
    case Outcome::arguments: return "arguments that the MPI is to judge";
    default: return "served";
  }
}

std::string name_of(Kind kind, Form form) {
#define STRETTO_NAMES(name, lower, parameters, arguments) {"MPI_" #name, "MPI_I" #lower, "MPI_" #name "_init"},
  static const char* const names[][3] = {STRETTO_SERVED_CALLS(STRETTO_NAMES) STRETTO_FORWARDED_CALLS(STRETTO_NAMES)};
#undef STRETTO_NAMES
  return names[static_cast<int>(kind)][static_cast<int>(form)];
}

std::string version_of_the_mpi() {
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  PMPI_Get_library_version(version, &length);
  std::string text(version, static_cast<std::size_t>(length));
  text.resize(std::min(text.size(), text.find_first_of(",\n")));
  for (char& letter : text) letter = letter == '\t' ? ' ' : letter;
  return text;
}

}  // namespace

void Report::print() const {
  std::vector<std::uint64_t> mine(counts_.size());
  for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = counts_[i].load(std::memory_order_relaxed);
  std::vector<std::uint64_t> all(mine.size());
  PMPI_Reduce(mine.data(), all.data(), static_cast<int>(mine.size()), MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
  int rank = 0;
  int size = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  PMPI_Comm_size(MPI_COMM_WORLD, &size);
  if (rank != 0) return;

  std::uint64_t all_served = 0;
  std::uint64_t all_forwarded = 0;
  std::string lines;
  for (int kind = 0; kind < static_cast<int>(Kind::count); ++kind) {
    for (int form = 0; form < static_cast<int>(Form::count); ++form) {
      const std::uint64_t* const counts = &all[place(static_cast<Kind>(kind), static_cast<Form>(form), Outcome::served)];
      const std::uint64_t forwarded = std::accumulate(counts + 1, counts + outcomes, std::uint64_t{0});
      if (counts[0] + forwarded == 0) continue;
      all_served += counts[0];
      all_forwarded += forwarded;
      lines += "stretto-mpi: " + name_of(static_cast<Kind>(kind), static_cast<Form>(form)) + ": served " +
               std::to_string(counts[0]) + ", forwarded " + std::to_string(forwarded);
      const char* before = " (";
      for (std::size_t outcome = 1; outcome < outcomes; ++outcome) {
        if (counts[outcome] == 0) continue;
        lines += before + std::to_string(counts[outcome]) + " " + text_of(static_cast<Outcome>(outcome));
        before = "; ";
      }
      lines += forwarded > 0 ? ")\n" : "\n";
    }
  }
  std::fprintf(stderr, "stretto-mpi: collective calls of %d ranks: served %llu, forwarded %llu to %s\n%s", size,
               static_cast<unsigned long long>(all_served), static_cast<unsigned long long>(all_forwarded),
               version_of_the_mpi().c_str(), lines.c_str());
}

}  // namespace stretto::mpi_door
