// The loops over MPI's collectives share this: the ranks, the timed loop, and the lines that rank 0 prints.
#pragma once
#define OMPI_SKIP_MPICXX  // the C++ interface, which MPI has removed
#include <mpi.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "perf/iterations.hpp"

inline int rank = 0;
inline int ranks = 1;

[[noreturn]] inline void fail(const std::string& sentence) {
  if (rank == 0) std::fprintf(stderr, "error: %s\n", sentence.c_str());
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::abort();
}

inline void begin(int argc, char** argv, int least, const char* usage) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc < least) fail(usage);
}

// Times perform() on all ranks together and prints a JSON object; wrong() counts the wrong values of this rank.
template <class Perform, class Wrong>
void measure(std::int64_t bytes, double seconds, int warmup, const Perform& perform, const Wrong& wrong) {
  for (int i = 0; i < warmup; ++i) perform();
  const auto timed = [&](int iterations) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double from = MPI_Wtime();
    for (int i = 0; i < iterations; ++i) perform();
    return MPI_Wtime() - from;
  };
  const int iterations = perf::iterations_lasting(seconds, [&](int trial) {
    double took = timed(trial);
    MPI_Bcast(&took, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    return took;
  });
  const double mine[2] = {timed(iterations) / iterations, static_cast<double>(wrong())};
  double all[2];
  MPI_Reduce(mine, all, 2, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank != 0) return;
  std::printf("{\"bytes\": %lld, \"time_us\": %.4f, \"iterations\": %d, \"wrong\": %.0f}\n", static_cast<long long>(bytes),
              all[0] / ranks * 1e6, iterations, all[1]);
  std::fflush(stdout);
}
