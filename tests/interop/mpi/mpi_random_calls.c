/* An MPI program that knows nothing of Stretto: collective calls in random order, over communicators of all kinds, blocking,
 * non-blocking and persistent ones, among messages; requests are completed by each rank in an order and by calls of its own
 * choice. Rank 0 prints a digest of all that arrived anywhere, which depends on the arguments and the number of ranks only,
 * and how often all ranks together made which collective call.
 * mpi_random_calls CALLS SEED [wrong]
 * wrong: one rank finds one byte of all changed, for the digest to show. */
#include <mpi.h>
#include <stdio.h>

#include "mpi_random_data.h"
#include "persistent_names.h"

enum form { BLOCKING, NON_BLOCKING, PERSISTENT, forms };
/* clang-format off */
#define CALLS(X)                                                                                                             \
  X(Allreduce, allreduce) X(Reduce, reduce) X(Reduce_scatter_block, reduce_scatter_block) X(Reduce_scatter, reduce_scatter)  \
  X(Barrier, barrier) X(Bcast, bcast) X(Allgather, allgather) X(Allgatherv, allgatherv) X(Gather, gather)                    \
  X(Gatherv, gatherv) X(Scatter, scatter) X(Scatterv, scatterv) X(Alltoall, alltoall) X(Alltoallv, alltoallv)                \
  X(Scan, scan) X(Exscan, exscan)
/* clang-format on */
enum kind {
#define NAME(name, lower) name,
  CALLS(NAME)
#undef NAME
      kinds
};
static const char* const names[][forms] = {
#define NAME(name, lower) {"MPI_" #name, "MPI_I" #lower, "MPI_" #name "_init"},
    CALLS(NAME)
#undef NAME
};
static long counted[kinds][forms];

/* Calls it in one of its forms. */
#ifdef INIT
#define DO(name, lower, ...)                                                           \
  (++counted[name][form], form == BLOCKING       ? MPI_##name(__VA_ARGS__)             \
                          : form == NON_BLOCKING ? MPI_I##lower(__VA_ARGS__, &request) \
                                                 : INIT(name)(__VA_ARGS__, MPI_INFO_NULL, &request))
#else
#define DO(name, lower, ...) \
  (++counted[name][form], form == BLOCKING ? MPI_##name(__VA_ARGS__) : MPI_I##lower(__VA_ARGS__, &request))
#endif

enum { most_comms = 12, most_open = 24 };
static int world_rank, world_size;
static MPI_Comm comms[most_comms];
static int comm_count;
static MPI_Comm between = MPI_COMM_NULL;
static MPI_Op user_op;
static uint64_t digest;
static int one_is_wrong;

/* What belongs to a request until that is complete. */
struct operation {
  struct buffer input, output;
  size_t left_open; /* bytes at the end of the output, whose values MPI does not define */
  uint64_t step;
  int* lists[4];
};
static MPI_Request requests[most_open];
static struct operation operations[most_open];
static MPI_Status statuses[most_open];
static int open_count;

static void combine(void* in, void* inout, int* count, MPI_Datatype* type) {
  (void)type;
  for (int i = 0; i < *count; ++i) ((unsigned*)inout)[i] = 3 * ((unsigned*)inout)[i] + ((unsigned*)in)[i];
}

static void finish(struct operation* done) {
  if (done->left_open > 0) memset(done->output.memory + done->output.bytes - done->left_open, 0, done->left_open);
  if (one_is_wrong && world_rank == 1 && done->output.bytes > 0) {
    done->output.memory[0] ^= 1;
    one_is_wrong = 0;
  }
  if (done->output.memory != NULL) digest += mixed(digest_of(&done->output) ^ mixed(done->step * 64 + (uint64_t)world_rank));
  forget(&done->output);
  forget(&done->input);
  for (int i = 0; i < 4; ++i) free(done->lists[i]);
}

static void remove_open(int i) {
  finish(&operations[i]);
  --open_count;
  requests[i] = requests[open_count];
  operations[i] = operations[open_count];
}

/* In one of all ways that MPI has. */
static void complete_some(struct generator* own) {
  int flag = 0, index = 0, count = 0, indices[most_open];
  if (open_count == 0) return;
  const int one = (int)draw(own, (unsigned)open_count);
  switch (draw(own, 9)) {
    case 0:
      MPI_Wait(&requests[one], MPI_STATUS_IGNORE);
      remove_open(one);
      return;
    case 1:
      MPI_Test(&requests[one], &flag, MPI_STATUS_IGNORE);
      if (flag) remove_open(one);
      return;
    case 2:
      MPI_Waitany(open_count, requests, &index, MPI_STATUS_IGNORE);
      remove_open(index);
      return;
    case 3:
      MPI_Testany(open_count, requests, &index, &flag, MPI_STATUS_IGNORE);
      if (flag && index != MPI_UNDEFINED) remove_open(index);
      return;
    case 4:
      MPI_Waitall(open_count, requests, statuses);
      while (open_count > 0) remove_open(open_count - 1);
      return;
    case 5:
      MPI_Testall(open_count, requests, &flag, statuses);
      while (flag && open_count > 0) remove_open(open_count - 1);
      return;
    case 6:
    case 7:
      if (draw(own, 2)) {
        MPI_Waitsome(open_count, requests, &count, indices, statuses);
      } else {
        MPI_Testsome(open_count, requests, &count, indices, statuses);
      }
      for (int i = open_count - 1; i >= 0; --i) { /* from the end, so that no index moves */
        for (int j = 0; j < count; ++j) {
          if (indices[j] == i) {
            remove_open(i);
            break;
          }
        }
      }
      return;
    default:
      do MPI_Request_get_status(requests[one], &flag, MPI_STATUS_IGNORE);
      while (!flag);
      MPI_Wait(&requests[one], MPI_STATUS_IGNORE);
      remove_open(one);
      return;
  }
}

/* A message to the right neighbour and one from the left, which may be too large to leave before it is wanted. */
static void exchange(MPI_Comm comm, int rank, int size, size_t count, uint64_t step) {
  struct operation send = {.step = step}, receive = {.step = step};
  send.input = new_buffer(F64, DENSE, count);
  receive.output = new_buffer(F64, DENSE, count);
  fill(&send.input, 0, count, step * 31 + (uint64_t)world_rank, 15);
  MPI_Irecv(receive.output.memory, (int)count, MPI_DOUBLE, (rank + size - 1) % size, 7, comm, &requests[open_count]);
  operations[open_count++] = receive;
  MPI_Isend(send.input.memory, (int)count, MPI_DOUBLE, (rank + 1) % size, 7, comm, &requests[open_count]);
  operations[open_count++] = send;
}

#include "mpi_random_call.h"

static void make_communicators(void) {
  MPI_Group all, some;
  MPI_Request request;
  comms[comm_count++] = MPI_COMM_WORLD;
  MPI_Comm_dup(MPI_COMM_WORLD, &comms[comm_count++]);
  MPI_Comm_split(MPI_COMM_WORLD, world_rank % 2, world_rank, &comms[comm_count++]);
  MPI_Comm_split(MPI_COMM_WORLD, world_rank / 2, 0, &comms[comm_count++]);
  MPI_Comm_split(MPI_COMM_WORLD, world_rank == 0 ? MPI_UNDEFINED : 1, -world_rank, &comms[comm_count++]);
  MPI_Comm_group(MPI_COMM_WORLD, &all);
  const int ranks[] = {world_size - 1, 0};
  MPI_Group_incl(all, 2, ranks, &some);
  MPI_Comm_create(MPI_COMM_WORLD, some, &comms[comm_count++]);
  if (world_rank == 0 || world_rank == world_size - 1) {
    MPI_Comm_create_group(MPI_COMM_WORLD, some, 3, &comms[comm_count++]);
  } else {
    comms[comm_count++] = MPI_COMM_NULL;
  }
  const int sizes[] = {world_size}, periods[] = {1};
  MPI_Cart_create(MPI_COMM_WORLD, 1, sizes, periods, 0, &comms[comm_count++]);
  MPI_Comm_dup(comms[2], &comms[comm_count++]); /* of one that was split off */
  MPI_Comm_idup(MPI_COMM_WORLD, &comms[comm_count++], &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  comms[comm_count++] = MPI_COMM_SELF;
  MPI_Intercomm_create(comms[2], 0, MPI_COMM_WORLD, world_rank % 2 ? 0 : 1, 5, &between);
  MPI_Group_free(&all);
  MPI_Group_free(&some);
  MPI_Op_create(combine, 0, &user_op);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  one_is_wrong = argc == 4 && strcmp(argv[3], "wrong") == 0;
  if (argc != 3 + one_is_wrong || world_size < 2) {
    fprintf(stderr, "mpi_random_calls CALLS SEED [wrong], on 2 ranks at least\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  const long calls = atol(argv[1]);
  const uint64_t seed = strtoull(argv[2], NULL, 10);
  struct generator common = {seed}, own = {mixed(seed) + (uint64_t)world_rank};
  make_communicators();
  for (long step = 0; step < calls; ++step) {
    random_call((uint64_t)step, &common);
    while (open_count > most_open - 3 || draw(&own, 3) == 0) {
      if (open_count == 0) break;
      complete_some(&own);
    }
  }
  while (open_count > 0) complete_some(&own);

  ++counted[Reduce][BLOCKING];
  ++counted[Reduce][BLOCKING];
  uint64_t digests = 0;
  static long all[kinds][forms];
  MPI_Reduce(&digest, &digests, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
  MPI_Reduce(counted, all, kinds * forms, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
  if (world_rank == 0) {
    printf("digest %016llx\n", (unsigned long long)digests);
    for (int kind = 0; kind < kinds; ++kind) {
      for (int form = 0; form < forms; ++form) {
        if (all[kind][form]) printf("%s %ld\n", names[kind][form], all[kind][form]);
      }
    }
  }
  MPI_Op_free(&user_op);
  MPI_Comm_free(&between);
  for (int i = 1; i < comm_count; ++i) { /* some stay, for MPI_Finalize to find */
    if (i % 3 != 0 && comms[i] != MPI_COMM_NULL && comms[i] != MPI_COMM_SELF) MPI_Comm_free(&comms[i]);
  }
  MPI_Finalize();
  return 0;
}
