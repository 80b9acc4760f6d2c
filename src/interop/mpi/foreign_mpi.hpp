#pragma once
// The header of the MPI that this door interposes. The functions that the door defines under MPI's names must be visible
// outside the library: programs then find them before the MPI's own, which remain reachable under their PMPI names.
#define OMPI_SKIP_MPICXX 1   // NOLINT(readability-identifier-naming): Open MPI's name
#define MPICH_SKIP_MPICXX 1  // NOLINT(readability-identifier-naming): MPICH's name
#pragma GCC visibility push(default)
#include <mpi.h>
#ifdef OPEN_MPI
#include <mpi-ext.h>
#endif
#pragma GCC visibility pop

// Persistent collectives exist since MPI 4. Open MPI 4.1 has them as an extension, under names of its own.
#if MPI_VERSION >= 4
#define STRETTO_PERSISTENT(name) MPI_##name##_init
#define STRETTO_PERSISTENT_OF_MPI(name) PMPI_##name##_init
#define STRETTO_HAS_PERSISTENT 1
#elif defined(OMPI_HAVE_MPI_EXT_PCOLLREQ)
#define STRETTO_PERSISTENT(name) MPIX_##name##_init
#define STRETTO_PERSISTENT_OF_MPI(name) PMPIX_##name##_init
#define STRETTO_HAS_PERSISTENT 1
#endif
