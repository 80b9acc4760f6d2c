/* Random programs of persistent and non-blocking collectives. Each rank starts the persistent ones in a random order of its
 * own, as MPI allows, with the non-blocking ones, whose order is the same on all ranks, between them; and completes and
 * frees all of them in another order. Rank 0 prints a digest of what came anywhere. mpi_random_starts PROGRAMS SEED */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "mpi_random_numbers.h"
#include "persistent_names.h"

/* large: of a reduction that is served although it does not block */
enum { most_calls = 10, most_ranks = 16, longest = 3000, large = 70000, room = large + most_ranks };
#ifdef MPICH_VERSION /* 4.0 loses count of communicators when persistent calls are started again */
enum { most_rounds = 1 };
#else
enum { most_rounds = 3 };
#endif

static int rank, size;

struct call {
  int kind, count, root, is_persistent;
  int used; /* of `in` and `out`, at most */
  MPI_Comm comm;
  int *in, *out, counts[most_ranks], places[most_ranks];
  MPI_Request request;
};

#define FORM(name, lower, ...)                                                              \
  (call->is_persistent ? INIT(name)(__VA_ARGS__, call->comm, MPI_INFO_NULL, &call->request) \
                       : MPI_I##lower(__VA_ARGS__, call->comm, &call->request))

/* Starts a non-blocking call, or initializes a persistent one. */
static void make(struct call* call) {
  int *const in = call->in, *const out = call->out, n = call->count, root = call->root;
  int *const counts = call->counts, *const places = call->places;
  for (int i = 0; i < size; ++i) counts[i] = n / (1 + (call->kind + rank + i) % 3), places[i] = i * n;
  switch (call->kind) {
    case 0: FORM(Allreduce, allreduce, in, out, n, MPI_INT, MPI_SUM); break;
    case 1: FORM(Bcast, bcast, rank == root ? in : out, n, MPI_INT, root); break;
    case 2: FORM(Allgather, allgather, in, n, MPI_INT, out, n, MPI_INT); break;
    case 3: FORM(Alltoall, alltoall, in, n, MPI_INT, out, n, MPI_INT); break;
    case 4: FORM(Alltoallv, alltoallv, in, counts, places, MPI_INT, out, counts, places, MPI_INT); break;
    case 5: FORM(Reduce, reduce, in, out, n, MPI_INT, MPI_MAX, root); break;
    case 6: FORM(Reduce_scatter_block, reduce_scatter_block, in, out, n, MPI_INT, MPI_SUM); break;
    case 7: FORM(Gather, gather, in, n, MPI_INT, rank == root ? out : NULL, n, MPI_INT, root); break;
    case 8: FORM(Scatter, scatter, in, n, MPI_INT, out, n, MPI_INT, root); break;
    default:
      call->is_persistent ? INIT(Barrier)(call->comm, MPI_INFO_NULL, &call->request)
                          : MPI_Ibarrier(call->comm, &call->request);
  }
}

static void shuffle(int* order, int count, struct generator* own) {
  for (int i = 0; i < count; ++i) order[i] = i;
  for (int i = count - 1; i > 0; --i) {
    const int other = (int)draw(own, (unsigned)i + 1), kept = order[i];
    order[i] = order[other];
    order[other] = kept;
  }
}

static uint64_t digest;

static void note(const struct call* call, uint64_t step) {
  uint64_t all = 1469598103934665603u;
  for (int i = 0; i < call->used; ++i) all = (all ^ (unsigned)call->out[i]) * 1099511628211u;
  digest += mixed(all ^ mixed(step * most_ranks + (uint64_t)rank));
}

static void random_program(const MPI_Comm* comms, uint64_t program, struct generator* common, struct generator* own) {
  static struct call calls[most_calls];
  static int memory[2][most_calls][room];
  const int count = 2 + (int)draw(common, most_calls - 1), rounds = 1 + (int)draw(common, most_rounds);
  for (int i = 0; i < count; ++i) {
    struct call* const call = &calls[i];
    const unsigned length = draw(common, 8);
    call->kind = (int)draw(common, 10);
    call->count = 1 + (int)draw(common, length == 0 ? longest : 40);
    const int sums = call->kind == 0 || call->kind == 5, scatters = call->kind == 6;
    if (length < 3 && (sums || scatters)) call->count = sums ? large : large / size;
    call->used = sums ? call->count : call->count * size;
    call->root = (int)draw(common, (unsigned)size);
    call->is_persistent = draw(common, 3) > 0;
#ifdef MPICH_VERSION /* whose persistent gathers give wrong values, in whatever order they are started */
    if (call->kind == 7) call->is_persistent = 0;
#endif
    call->comm = comms[draw(common, 3)];
    call->in = memory[0][i];
    call->out = memory[1][i];
    if (call->is_persistent) make(call); /* in one order on all ranks */
  }
  for (int round = 0; round < rounds; ++round) {
    int order[most_calls], next = 0;
    for (int i = 0; i < count; ++i) {
      for (int j = 0; j < calls[i].used; ++j) {
        calls[i].in[j] = (int)(mixed(program * 64 + (uint64_t)(i * 4 + round)) % 1000) + 7 * rank + j % 13;
        calls[i].out[j] = -1;
      }
    }
    shuffle(order, count, own);
    for (int i = 0; i < count; ++i) {
      if (calls[order[i]].is_persistent) {
        MPI_Start(&calls[order[i]].request);
        continue;
      }
      while (calls[next].is_persistent) ++next; /* non-blocking calls: in one order on all ranks */
      make(&calls[next++]);
    }
    shuffle(order, count, own);
    if (draw(own, 2)) {
      for (int i = 0; i < count; ++i) MPI_Wait(&calls[order[i]].request, MPI_STATUS_IGNORE);
    } else {
      MPI_Request requests[most_calls];
      MPI_Status statuses[most_calls];
      for (int i = 0; i < count; ++i) requests[i] = calls[order[i]].request;
      MPI_Waitall(count, requests, statuses);
    }
    for (int i = 0; i < count; ++i) note(&calls[i], (program * 4 + (uint64_t)round) * most_calls + (uint64_t)i);
  }
  int order[most_calls];
  shuffle(order, count, own);
  for (int i = 0; i < count; ++i) {
    if (calls[order[i]].is_persistent) MPI_Request_free(&calls[order[i]].request);
  }
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (argc != 3 || size < 2 || size > most_ranks) {
    fprintf(stderr, "mpi_random_starts PROGRAMS SEED, on 2 to 16 ranks\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  const long programs = atol(argv[1]);
  const uint64_t seed = strtoull(argv[2], NULL, 10);
  struct generator common = {seed}, own = {mixed(seed) + (uint64_t)rank};
  MPI_Comm comms[3] = {MPI_COMM_WORLD};
  for (int i = 1; i < 3; ++i) MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
  for (long i = 0; i < programs; ++i) random_program(comms, (uint64_t)i, &common, &own);
  uint64_t digests = 0;
  MPI_Reduce(&digest, &digests, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) printf("digest %016llx\n", (unsigned long long)digests);
  for (int i = 1; i < 3; ++i) MPI_Comm_free(&comms[i]);
  MPI_Finalize();
  return 0;
}
