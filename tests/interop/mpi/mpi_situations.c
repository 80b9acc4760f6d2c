/* Situations in which MPI promises that a program goes on, each a few lines. Ends with status 0 where it does, and the
 * results are right. mpi_situations NAME */
#include <dirent.h>
#include <mpi.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef OPEN_MPI
#include <mpi-ext.h>
#endif

#if MPI_VERSION >= 4
#define INIT(name) MPI_##name##_init
#elif defined(OMPI_HAVE_MPI_EXT_PCOLLREQ)
#define INIT(name) MPIX_##name##_init
#endif

static int rank, size;

/* Threads of Stretto's that perform persistent calls. */
static int performing_threads(void) {
  int count = 0;
  char path[300], name[32] = "";
  DIR* const tasks = opendir("/proc/self/task");
  for (const struct dirent* task = NULL; tasks != NULL && (task = readdir(tasks)) != NULL;) {
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
    FILE* const file = fopen(path, "r");
    count += file != NULL && fgets(name, sizeof name, file) != NULL && strncmp(name, "mpi persistent", 14) == 0;
    if (file != NULL) fclose(file);
  }
  if (tasks != NULL) closedir(tasks);
  return count;
}

static void expect(int truth, const char* what) {
  if (truth) return;
  fprintf(stderr, "rank %d: %s\n", rank, what);
  usleep(200000); /* MPICH's launcher drops what it has not yet read from a rank that aborts */
  MPI_Abort(MPI_COMM_WORLD, 1);
}

/* So many integers are enough for a broadcast that does not block to be served; for a reduction, `enough` are. */
enum { many = 1 << 20, enough = 1 << 16 };

/* Starts a sum of `enough` ones times `factor`, in memory that sum_is() frees. */
struct sum {
  int *mine, *all, factor;
  MPI_Request request;
};
static void start_sum(struct sum* sum, int factor, MPI_Comm comm) {
  sum->mine = malloc(enough * sizeof(int));
  sum->all = calloc(enough, sizeof(int));
  sum->factor = factor;
  for (int i = 0; i < enough; ++i) sum->mine[i] = factor + i % 3;
  MPI_Iallreduce(sum->mine, sum->all, enough, MPI_INT, MPI_SUM, comm, &sum->request);
}
static int sum_is(struct sum* sum, int ranks) {
  int right = 1;
  for (int i = 0; i < enough; ++i) right &= sum->all[i] == ranks * (sum->factor + i % 3);
  free(sum->mine);
  free(sum->all);
  return right;
}

/* The message is too large to leave before it is wanted, and the rank that wants it does not come to the collective without.
 */
static void message_behind_collective(void) {
  int* const data = calloc(many, sizeof(int));
  int mine = rank, sum = 0;
  MPI_Request request = MPI_REQUEST_NULL;
  if (rank == 0) {
    data[many - 1] = 42;
    MPI_Isend(data, many, MPI_INT, 1, 0, MPI_COMM_WORLD, &request);
  } else if (rank == 1) {
    MPI_Recv(data, many, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    expect(data[many - 1] == 42, "the message came wrong");
  }
  MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  expect(sum == size * (size - 1) / 2, "the sum is wrong");
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  free(data);
}

/* The first call on a communicator does not block, and another rank comes to it only after what follows it here. */
static void first_call_returns(void) {
  MPI_Comm fresh;
  int word = 7;
  struct sum sum;
  MPI_Comm_dup(MPI_COMM_WORLD, &fresh);
  if (rank == 1) MPI_Recv(&word, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  start_sum(&sum, 1, fresh);
  if (rank == 0) MPI_Ssend(&word, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
  MPI_Wait(&sum.request, MPI_STATUS_IGNORE);
  expect(sum_is(&sum, size), "the sum is wrong");
  MPI_Comm_free(&fresh);
}

/* Ranks start calls of two communicators in different orders, and wait in others. */
static void crossed(void) {
  MPI_Comm comms[2];
  struct sum sums[2];
  for (int i = 0; i < 2; ++i) MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
  for (int i = 0; i < 2; ++i) {
    const int which = rank % 2 ? 1 - i : i;
    start_sum(&sums[which], 1 + 9 * which, comms[which]);
  }
  for (int i = 0; i < 2; ++i) MPI_Wait(&sums[rank % 3 ? 1 - i : i].request, MPI_STATUS_IGNORE);
  for (int i = 0; i < 2; ++i) expect(sum_is(&sums[i], size), "a sum is wrong");
  for (int i = 0; i < 2; ++i) MPI_Comm_free(&comms[i]);
}

/* Many small calls and some large ones are in flight together; each rank waits for them in an order of its own. */
static void small_and_large(void) {
  enum { calls = 40, every = 8 };
  int mine[calls], all[calls];
  struct sum sums[calls / every];
  MPI_Request requests[calls];
  MPI_Status statuses[calls];
  for (int round = 0; round < 6; ++round) {
    for (int i = 0; i < calls; ++i) {
      struct sum* const large = i % every == 3 ? &sums[i / every] : NULL;
      mine[i] = round + i;
      all[i] = 0;
      if (large != NULL) start_sum(large, mine[i], MPI_COMM_WORLD);
      if (large != NULL) requests[i] = large->request;
      if (large == NULL) MPI_Iallreduce(&mine[i], &all[i], 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &requests[i]);
    }
    for (int i = 0, index = 0, done = 0, indices[calls]; i < calls; ++i) {
      if (requests[(7 * i + rank) % calls] == MPI_REQUEST_NULL) continue;
      if (round % 3 == 0) MPI_Wait(&requests[(7 * i + rank) % calls], MPI_STATUS_IGNORE);
      if (round % 3 == 1) MPI_Waitany(calls, requests, &index, MPI_STATUS_IGNORE);
      if (round % 3 == 2) MPI_Testsome(calls, requests, &done, indices, statuses);
    }
    MPI_Waitall(calls, requests, statuses);
    for (int i = 0; i < calls; ++i) {
      expect(i % every == 3 ? sum_is(&sums[i / every], size) : all[i] == size * mine[i], "a sum is wrong");
    }
  }
}

/* One communicator: what was started first is waited for last, with blocking calls between, and by some ranks after those.
 */
static void outstanding(void) {
  int* const data = malloc(many * sizeof(int));
  for (int i = 0; i < many; ++i) data[i] = rank + i % 7;
  int mine = 1, sum = 0;
  MPI_Request request;
  MPI_Iallreduce(MPI_IN_PLACE, data, many, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
  if (rank % 2) MPI_Wait(&request, MPI_STATUS_IGNORE);
  MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Barrier(MPI_COMM_WORLD);
  expect(sum == size, "the small sum is wrong");
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  for (int i = 0; i < many; ++i) expect(data[i] == size * (size - 1) / 2 + size * (i % 7), "the large sum is wrong");
  free(data);
}

/* Every root may reduce in place. */
static void in_place_at_every_root(void) {
  enum { count = 722 };
  long data[count];
  for (int root = 0; root < size; ++root) {
    for (int i = 0; i < count; ++i) data[i] = rank + i;
    MPI_Reduce(rank == root ? MPI_IN_PLACE : data, rank == root ? data : NULL, count, MPI_LONG, MPI_SUM, root,
               MPI_COMM_WORLD);
    for (int i = 0; i < count; ++i) {
      expect(data[i] == (rank == root ? size * (size - 1) / 2 + (long)size * i : rank + i), "a sum is wrong");
    }
  }
}

/* MPI forbids buffers that overlap; MPICH refuses those that begin at one place, other MPIs go on. */
static void overlapping(void) {
  enum { count = 3000, most = 8 };
  static int data[(most + 2) * count];
  int counts[most], places[most], zeros[most];
  for (int i = 0; i < size; ++i) counts[i] = count, places[i] = i * count, zeros[i] = 0;
  for (int i = 0; i < (most + 2) * count; ++i) data[i] = 1;
  MPI_Comm all = MPI_COMM_WORLD;
  MPI_Allreduce(data, data + count / 2, count, MPI_INT, MPI_SUM, all);
  expect(data[count / 2] == size && data[3 * count / 2 - 1] == size, "a sum is wrong");
  for (int i = 0; i < (most + 2) * count; ++i) data[i] = 1;
  MPI_Reduce(data + 5, data, count, MPI_INT, MPI_SUM, size - 1, all);
  expect(rank != size - 1 || (data[0] == size && data[count - 1] == size), "a sum at the root is wrong");
  for (int i = 0; i < (most + 2) * count; ++i) data[i] = 1;
  MPI_Reduce_scatter_block(data, data + 7, count, MPI_INT, MPI_SUM, all);
  expect(data[7] == size && data[count + 6] == size, "a part of a sum is wrong");
  MPI_Allgather(data + 1, count, MPI_INT, data, count, MPI_INT, all);
  MPI_Alltoall(data + 1, count, MPI_INT, data, count, MPI_INT, all);
  MPI_Gather(data + 1, count, MPI_INT, data, count, MPI_INT, 0, all);
  MPI_Scatter(data, count, MPI_INT, data + 1, count, MPI_INT, 0, all);
  MPI_Alltoallv(data + 1, counts, places, MPI_INT, data, counts, places, MPI_INT, all);
  MPI_Gatherv(data + 1, count, MPI_INT, data, counts, zeros, MPI_INT, 0, all);
  MPI_Scatterv(data, counts, places, MPI_INT, data + 1, count, MPI_INT, 0, all);
  MPI_Barrier(all);
}

/* A communicator may be freed while its calls are under way, and so may types; here each rank gives another one. */
static void freed_early(void) {
  for (int large = 0; large < 2; ++large) {
    const int count = large ? many : 4;
    MPI_Comm fresh;
    MPI_Datatype elements;
    MPI_Request request;
    const int step = rank == 0 ? 1 : 2;
    int* const data = calloc(2 * (size_t)count, sizeof(int));
    for (int i = 0; rank == 0 && i < count; ++i) data[i] = 5 + i % 3;
    MPI_Comm_dup(MPI_COMM_WORLD, &fresh);
    MPI_Type_vector(count, 1, step, MPI_INT, &elements);
    MPI_Type_commit(&elements);
    MPI_Ibcast(data, 1, elements, 0, fresh, &request);
    MPI_Type_free(&elements);
    MPI_Comm_free(&fresh);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    for (int i = 0; i < count; ++i) expect(data[step * i] == 5 + i % 3, "the broadcast is wrong");
    for (int i = 1; rank != 0 && i < 2 * count; i += 2) expect(data[i] == 0, "the broadcast wrote into a gap");
    free(data);
  }
}

/* Each rank has the same elements in a layout of its own: in a row, with gaps, or in pairs whose second element is first. */
struct layout {
  MPI_Datatype type;
  int elements; /* of a unit of the type */
  int memory[64];
};

static struct layout own_layout(void) {
  struct layout layout = {MPI_INT, 1, {0}};
  const int ones[] = {1, 1}, places[] = {1, 0};
  if (rank % 3 == 1) MPI_Type_create_resized(MPI_INT, 0, 2 * sizeof(int), &layout.type);
  if (rank % 3 == 2) {
    MPI_Type_indexed(2, ones, places, MPI_INT, &layout.type);
    layout.elements = 2;
  }
  if (rank % 3 != 0) MPI_Type_commit(&layout.type);
  return layout;
}

static int* element(struct layout* layout, int i) {
  return &layout->memory[rank % 3 == 1 ? 2 * i : rank % 3 == 2 ? i ^ 1 : i];
}

/* Of each collective that moves data: two elements for each rank, or from it. */
static void other_types_elsewhere(void) {
  enum { most = 8 };
  for (int kind = 0; kind < 8; ++kind) {
    for (int root = 0; root < size; ++root) {
      struct layout in = own_layout(), out = own_layout();
      int counts[most], places[most];
      const int share = 2 / in.elements, first = 2 * rank;
      for (int i = 0; i < 2 * size; ++i) *element(&in, i) = 100 * rank + i;
      for (int i = 0; i < size; ++i) counts[i] = share, places[i] = share * i;
      MPI_Comm all = MPI_COMM_WORLD;
      if (kind == 0) MPI_Bcast(in.memory, share * size, in.type, root, all);
      if (kind == 1) MPI_Allgather(in.memory, share, in.type, out.memory, share, out.type, all);
      if (kind == 2) MPI_Allgatherv(in.memory, share, in.type, out.memory, counts, places, out.type, all);
      if (kind == 3) MPI_Gather(in.memory, share, in.type, out.memory, share, out.type, root, all);
      if (kind == 4) MPI_Gatherv(in.memory, share, in.type, out.memory, counts, places, out.type, root, all);
      if (kind == 5) MPI_Scatter(in.memory, share, in.type, out.memory, share, out.type, root, all);
      if (kind == 6) MPI_Scatterv(in.memory, counts, places, in.type, out.memory, share, out.type, root, all);
      if (kind == 7) MPI_Alltoallv(in.memory, counts, places, in.type, out.memory, counts, places, out.type, all);
      for (int from = 0; from < size; ++from) {
        for (int i = 0; i < 2; ++i) {
          const int gathers = kind >= 1 && kind <= 4, to_root_only = kind == 3 || kind == 4;
          if (kind == 0) expect(*element(&in, 2 * from + i) == 100 * root + 2 * from + i, "a broadcast is wrong");
          if (gathers && (rank == root || !to_root_only)) {
            expect(*element(&out, 2 * from + i) == 100 * from + i, "a gather is wrong");
          }
          if (kind == 5 || kind == 6) expect(*element(&out, i) == 100 * root + 2 * rank + i, "a scatter is wrong");
          if (kind == 7) expect(*element(&out, 2 * from + i) == 100 * from + first + i, "an exchange is wrong");
        }
      }
      if (rank % 3 != 0) MPI_Type_free(&in.type);
      if (rank % 3 != 0) MPI_Type_free(&out.type);
    }
  }
}

/* Some messages of a call are small and others large, on some ranks only; again and again, so that ranks get ahead. */
static void sizes_by_pair(void) {
  enum { most = 8, longest = 4000 };
  static int in[most * longest], out[most * longest];
  int ins[most], outs[most], places[most];
  for (int round = 0; round < 60; ++round) {
    for (int i = 0; i < size; ++i) {
      const int to = (7 * rank + 3 * i + round) % 5, from = (7 * i + 3 * rank + round) % 5; /* a kind of size */
      ins[i] = to == 0 ? longest : to == 1 ? 0 : to == 2 ? 500 : 40 * to;
      outs[i] = from == 0 ? longest : from == 1 ? 0 : from == 2 ? 500 : 40 * from;
      places[i] = i * longest;
      for (int j = 0; j < ins[i]; ++j) in[places[i] + j] = 1000 * round + 100 * rank + 10 * i + j % 9;
    }
    for (int i = 0; i < most * longest; ++i) out[i] = -1;
    MPI_Request request;
    if (round % 3 == 0) MPI_Alltoallv(in, ins, places, MPI_INT, out, outs, places, MPI_INT, MPI_COMM_WORLD);
    if (round % 3 == 1) {
      MPI_Ialltoallv(in, ins, places, MPI_INT, out, outs, places, MPI_INT, MPI_COMM_WORLD, &request);
      MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    if (round % 3 == 2) {
      for (int i = 0; i < size; ++i) {
        int theirs[most];
        for (int j = 0; j < size; ++j) theirs[j] = rank == i ? outs[j] : 0;
        if (round % 2) {
          MPI_Gatherv(in + places[i], ins[i], MPI_INT, out, theirs, places, MPI_INT, i, MPI_COMM_WORLD);
        } else {
          MPI_Scatterv(in, ins, places, MPI_INT, out + places[i], outs[i], MPI_INT, i, MPI_COMM_WORLD);
        }
      }
    }
    for (int i = 0; i < size; ++i) {
      for (int j = 0; j < longest; ++j) {
        const int right = j < outs[i] ? 1000 * round + 100 * i + 10 * rank + j % 9 : -1;
        expect(out[places[i] + j] == right, "an element is wrong");
      }
    }
  }
}

/* Persistent calls are started again and again, together with a persistent message, and waited for in another order. */
static void persistent(void) {
#ifdef INIT
  MPI_Datatype gaps;
  MPI_Request requests[4];
  MPI_Status statuses[4];
  int mine = 0, sum = 0, spread[4] = {0}, sent = 0, received = 0, index = 0;
  MPI_Type_create_resized(MPI_INT, 0, 2 * sizeof(int), &gaps);
  MPI_Type_commit(&gaps);
  INIT(Allreduce)(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[0]);
  INIT(Bcast)(spread, 2, gaps, 0, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[1]);
  MPI_Type_free(&gaps);
  MPI_Send_init(&sent, 1, MPI_INT, (rank + 1) % size, 4, MPI_COMM_WORLD, &requests[2]);
  MPI_Recv_init(&received, 1, MPI_INT, (rank + size - 1) % size, 4, MPI_COMM_WORLD, &requests[3]);
  for (int round = 0; round < 5; ++round) {
    mine = rank + round;
    sent = round;
    if (rank == 0) spread[0] = round, spread[2] = 2 * round;
    MPI_Startall(2, requests);
    for (int i = 2; i < 4; ++i) MPI_Start(&requests[i]);
    if (round % 2) {
      MPI_Waitall(4, requests, statuses);
    } else {
      for (int i = 0; i < 4; ++i) MPI_Waitany(4, requests, &index, MPI_STATUS_IGNORE);
    }
    expect(sum == size * (size - 1) / 2 + size * round, "the sum is wrong");
    expect(spread[0] == round && spread[1] == 0 && spread[2] == 2 * round && spread[3] == 0, "the broadcast is wrong");
    expect(received == round, "the message is wrong");
  }
  for (int i = 0; i < 4; ++i) MPI_Request_free(&requests[i]);
#endif
}

/* A call that has begun to live keeps the types that it was given, whatever the program does with their names. */
static void persistent_with_freed_types(void) {
#ifdef INIT
  enum { most = 8 };
  struct layout in = own_layout(), out = own_layout();
  MPI_Request requests[3];
  MPI_Status statuses[3];
  int counts[most], places[most];
  const int share = 2 / in.elements;
  int* const gathered = calloc(2 * (size_t)size, sizeof(int));
  int part[2] = {0, 0};
  for (int i = 0; i < size; ++i) counts[i] = share, places[i] = share * i;
  int twos[most], evens[most];
  for (int i = 0; i < size; ++i) twos[i] = 2, evens[i] = 2 * i;
  MPI_Comm all = MPI_COMM_WORLD;
  INIT(Alltoallv)
  (in.memory, counts, places, in.type, out.memory, counts, places, out.type, all, MPI_INFO_NULL, &requests[0]);
  INIT(Gatherv)(in.memory, share, in.type, gathered, twos, evens, MPI_INT, 0, all, MPI_INFO_NULL, &requests[1]);
  INIT(Scatterv)(in.memory, counts, places, in.type, part, 2, MPI_INT, 0, all, MPI_INFO_NULL, &requests[2]);
  if (rank % 3 != 0) MPI_Type_free(&in.type);
  if (rank % 3 != 0) MPI_Type_free(&out.type);
  struct layout others[most]; /* which may get what the freed ones had */
  for (int i = 0; i < most; ++i) {
    others[i] = own_layout();
    if (rank % 3 == 0) MPI_Type_contiguous(3, MPI_INT, &others[i].type);
  }
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 2 * size; ++i) *element(&in, i) = 1000 * round + 100 * rank + i;
    MPI_Startall(3, requests);
    MPI_Waitall(3, requests, statuses);
    for (int i = 0; i < 2 * size; ++i) {
      const int from = i / 2, of_share = i % 2;
      expect(*element(&out, i) == 1000 * round + 100 * from + 2 * rank + of_share, "an exchange is wrong");
      expect(rank != 0 || gathered[i] == 1000 * round + 100 * from + of_share, "a gather is wrong");
    }
    for (int i = 0; i < 2; ++i) expect(part[i] == 1000 * round + 2 * rank + i, "a scatter is wrong");
  }
  for (int i = 0; i < 3; ++i) MPI_Request_free(&requests[i]);
  for (int i = 0; i < most; ++i) MPI_Type_free(&others[i].type);
  free(gathered);
#endif
}

/* Persistent calls are matched by the order in which they are initialized. Each rank starts and completes them in an order
 * of its own, with other calls on the same communicator between. */
#ifdef INIT
enum { kinds = 7 };
struct several {
  MPI_Comm comm;
  int mine, sum, spread[many / 8], sends[8], receives[8], shares[8], share, gathered[8], counts[8], places[8];
  double large[1000], most[1000];
  MPI_Request requests[kinds];
};

static void initialize(struct several* all, MPI_Comm comm) {
  all->comm = comm;
  for (int i = 0; i < size; ++i) all->counts[i] = 1, all->places[i] = i;
  MPI_Request* const next = all->requests;
  INIT(Allreduce)(&all->mine, &all->sum, 1, MPI_INT, MPI_SUM, comm, MPI_INFO_NULL, &next[0]);
  INIT(Bcast)(all->spread, many / 8, MPI_INT, size - 1, comm, MPI_INFO_NULL, &next[1]);
  INIT(Alltoallv)
  (all->sends, all->counts, all->places, MPI_INT, all->receives, all->counts, all->places, MPI_INT, comm, MPI_INFO_NULL,
   &next[2]);
  INIT(Reduce_scatter_block)(all->shares, &all->share, 1, MPI_INT, MPI_SUM, comm, MPI_INFO_NULL, &next[3]);
  INIT(Allreduce)(all->large, all->most, 1000, MPI_DOUBLE, MPI_MAX, comm, MPI_INFO_NULL, &next[4]);
  INIT(Barrier)(comm, MPI_INFO_NULL, &next[5]);
  INIT(Allgather)(&all->mine, 1, MPI_INT, all->gathered, 1, MPI_INT, comm, MPI_INFO_NULL, &next[6]);
}

static void fill(struct several* all, int round) {
  all->mine = 10 * rank + round;
  for (int i = 0; i < many / 8; ++i) all->spread[i] = rank == size - 1 ? round + i : -1;
  for (int i = 0; i < size; ++i) all->sends[i] = 100 * round + 10 * rank + i, all->shares[i] = rank + round * i;
  for (int i = 0; i < 1000; ++i) all->large[i] = rank * (i % 2 ? 1 : -1) + round;
}

static void check(const struct several* all, int round) {
  expect(all->sum == 10 * size * (size - 1) / 2 + size * round, "the sum is wrong");
  for (int i = 0; i < many / 8; ++i) expect(all->spread[i] == round + i, "the broadcast is wrong");
  for (int i = 0; i < size; ++i) {
    expect(all->receives[i] == 100 * round + 10 * i + rank, "the exchange is wrong");
    expect(all->gathered[i] == 10 * i + round, "the gather is wrong");
  }
  expect(all->share == size * (size - 1) / 2 + size * round * rank, "the share is wrong");
  for (int i = 0; i < 1000; ++i) expect(all->most[i] == (i % 2 ? size - 1 : 0) + round, "the maximum is wrong");
}

static unsigned drawn = 1;
static int draw(int end) { return (int)((drawn = drawn * 1664525U + 1013904223U) >> 8) % end; }

static void shuffle(int* order, int count) {
  for (int i = 0; i < count; ++i) order[i] = i;
  for (int i = count - 1; i > 0; --i) {
    const int other = draw(i + 1), kept = order[i];
    order[i] = order[other];
    order[other] = kept;
  }
}
#endif

static void persistent_in_any_order(void) {
#ifdef INIT
  static struct several sets[2];
  MPI_Comm fresh;
  MPI_Comm_dup(MPI_COMM_WORLD, &fresh);
  drawn = 100U + (unsigned)rank;
  for (int i = 0; i < 2; ++i) initialize(&sets[i], i == 0 ? MPI_COMM_WORLD : fresh);
  for (int round = 0; round < 30; ++round) {
    MPI_Request order_of_this_rank[2 * kinds];
    struct sum beside;
    int order[2 * kinds], one = rank, all = 0;
    shuffle(order, 2 * kinds);
    for (int i = 0; i < 2; ++i) fill(&sets[i], round + i);
    for (int i = 0; i < 2 * kinds; ++i) order_of_this_rank[i] = sets[order[i] / kinds].requests[order[i] % kinds];
    const int first = draw(2 * kinds + 1);
    MPI_Startall(first, order_of_this_rank);
    start_sum(&beside, round, MPI_COMM_WORLD);
    for (int i = first; i < 2 * kinds; ++i) MPI_Start(&order_of_this_rank[i]);
    MPI_Allreduce(&one, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    expect(all == size * (size - 1) / 2, "the sum between is wrong");
    if (draw(2)) {
      for (int left = 2 * kinds, index = 0; left > 0; --left) {
        MPI_Waitany(2 * kinds, order_of_this_rank, &index, MPI_STATUS_IGNORE);
        expect(index != MPI_UNDEFINED, "a request was complete before it was waited for");
      }
    } else {
      for (int i = 0; i < 2 * kinds; ++i) MPI_Wait(&order_of_this_rank[2 * kinds - 1 - i], MPI_STATUS_IGNORE);
    }
    MPI_Wait(&beside.request, MPI_STATUS_IGNORE);
    expect(sum_is(&beside, size), "the sum beside is wrong");
    for (int i = 0; i < 2; ++i) check(&sets[i], round + i);
  }
  for (int i = 0; i < 2 * kinds; ++i) MPI_Request_free(&sets[i / kinds].requests[i % kinds]);
  MPI_Comm_free(&fresh);
#endif
}

/* Rank 0 starts both and waits for the second; the others come to the first only when they have the second. */
static void persistent_independent(void) {
#ifdef INIT
  int mine[2] = {1, 10}, sums[2] = {0, 0}, word = 0;
  MPI_Request requests[2];
  for (int i = 0; i < 2; ++i) {
    INIT(Allreduce)(&mine[i], &sums[i], 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[i]);
  }
  for (int round = 0; round < 10; ++round) {
    sums[0] = sums[1] = 0;
    if (rank == 0) MPI_Start(&requests[0]);
    MPI_Start(&requests[1]);
    MPI_Wait(&requests[1], MPI_STATUS_IGNORE);
    expect(sums[1] == 10 * size, "the second sum is wrong");
    expect(performing_threads() > 0 || getenv("LD_PRELOAD") == NULL, "nobody performs the calls");
    MPI_Bcast(&word, 1, MPI_INT, 0, MPI_COMM_WORLD);
    if (rank != 0) MPI_Start(&requests[0]);
    MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
    expect(sums[0] == size, "the first sum is wrong");
  }
  for (int i = 0; i < 2; ++i) MPI_Request_free(&requests[i]);
#endif
}

/* Requests are freed, by each rank at a time and in an order of its own, and others take their place. */
static void persistent_freed_and_made_again(void) {
#ifdef INIT
  static struct several sets[3];
  MPI_Status statuses[kinds];
  int order[kinds];
  drawn = 200U + (unsigned)rank;
  for (int round = 0; round < 20; ++round) {
    struct several* const now = &sets[round % 3];
    struct several* const before = &sets[(round + 2) % 3];
    initialize(now, MPI_COMM_WORLD);
    fill(now, round);
    shuffle(order, kinds);
    const int soon = draw(2);
    MPI_Startall(kinds, now->requests);
    for (int i = 0; soon && round > 0 && i < kinds; ++i) MPI_Request_free(&before->requests[order[i]]);
    MPI_Waitall(kinds, now->requests, statuses);
    for (int i = 0; !soon && round > 0 && i < kinds; ++i) MPI_Request_free(&before->requests[order[i]]);
    check(now, round);
  }
  for (int i = 0; i < kinds; ++i) MPI_Request_free(&sets[19 % 3].requests[i]);
#endif
}

/* No program may do this: the test's control. */
static void persistent_in_wrong_order(void) {
#ifdef INIT
  int mine[2] = {1, 10}, sums[2] = {0, 0};
  MPI_Request requests[2];
  MPI_Status statuses[2];
  for (int i = 0; i < 2; ++i) {
    const int which = rank == 0 ? i : 1 - i;
    INIT(Allreduce)(&mine[which], &sums[which], 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[which]);
  }
  MPI_Startall(2, requests);
  MPI_Waitall(2, requests, statuses);
  expect(sums[0] == size && sums[1] == 10 * size, "a sum is wrong");
#else
  expect(0, "this MPI has no persistent collectives");
#endif
}

static void errors_that_return(void) {
  int word = 0;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  expect(MPI_Bcast(&word, -1, MPI_INT, 0, MPI_COMM_WORLD) != MPI_SUCCESS, "a negative count was taken");
  expect(MPI_Bcast(&word, 1, MPI_INT, size, MPI_COMM_WORLD) != MPI_SUCCESS, "a root that is none was taken");
  expect(MPI_Allreduce(&word, &word + 1, 1, MPI_DATATYPE_NULL, MPI_SUM, MPI_COMM_WORLD) != MPI_SUCCESS, "no type was taken");
  expect(MPI_Barrier(MPI_COMM_WORLD) == MPI_SUCCESS, "the barrier failed");
}

/* Each thread makes communicators of its own communicator, uses and frees them, each rank's threads in an order of chance.
 */
enum { threads = 4 };
static MPI_Comm comm_of_thread[threads];

static void* make_and_free(void* number) {
  const int mine = (int)(intptr_t)number;
  const MPI_Comm parent = comm_of_thread[mine];
  for (int round = 0; round < 18; ++round) {
    MPI_Comm made;
    struct sum large;
    int one = 1 + mine + round, sum = 0, of = 0;
    if (round % 3 == 0) {
      MPI_Comm_dup(parent, &made);
    } else {
      MPI_Comm_split(parent, round % 3 == 1 ? rank % 2 : 0, -rank, &made);
    }
    MPI_Comm_size(made, &of);
    start_sum(&large, one, made);
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, made);
    MPI_Wait(&large.request, MPI_STATUS_IGNORE);
    expect(sum == of * one && sum_is(&large, of), "a sum is wrong");
#ifdef INIT
    MPI_Request request;
    sum = 0;
    INIT(Allreduce)(&one, &sum, 1, MPI_INT, MPI_SUM, made, MPI_INFO_NULL, &request);
    MPI_Start(&request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Request_free(&request);
    expect(sum == of * one, "a persistent sum is wrong");
#endif
    MPI_Comm_free(&made);
  }
  return NULL;
}

static void threads_make_communicators(void) {
  pthread_t started[threads];
  for (int i = 0; i < threads; ++i) MPI_Comm_dup(MPI_COMM_WORLD, &comm_of_thread[i]);
  for (int i = 0; i < threads; ++i) pthread_create(&started[i], NULL, make_and_free, (void*)(intptr_t)i);
  for (int i = 0; i < threads; ++i) pthread_join(started[i], NULL);
  for (int i = 0; i < threads; ++i) MPI_Comm_free(&comm_of_thread[i]);
}

/* A communicator that one rank has freed is still in use on another, while both make the next one. */
static void freed_and_made_again(void) {
  for (int round = 0; round < 50; ++round) {
    MPI_Comm made[3];
    struct sum sums[3];
    for (int i = 0; i < 3; ++i) {
      MPI_Comm_dup(MPI_COMM_WORLD, &made[i]);
      start_sum(&sums[i], round + i, made[i]);
      if ((rank + i + round) % 2) MPI_Comm_free(&made[i]);
    }
    for (int i = 2; i >= 0; --i) {
      MPI_Wait(&sums[i].request, MPI_STATUS_IGNORE);
      expect(sum_is(&sums[i], size), "a sum is wrong");
      if (!((rank + i + round) % 2)) MPI_Comm_free(&made[i]);
    }
  }
}

/* For the test to look at what is left: one rank goes, the others wait for it. */
static void one_exits(void) {
  struct sum sum;
  MPI_Barrier(MPI_COMM_WORLD);
  start_sum(&sum, 1, MPI_COMM_WORLD);
  if (rank == 1) _exit(3);
  MPI_Wait(&sum.request, MPI_STATUS_IGNORE);
  MPI_Barrier(MPI_COMM_WORLD);
}

static void one_aborts(void) {
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 1) MPI_Abort(MPI_COMM_WORLD, 3);
  MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char** argv) {
  const struct {
    const char* name;
    void (*run)(void);
  } situations[] = {{"message_behind_collective", message_behind_collective},
                    {"first_call_returns", first_call_returns},
                    {"crossed", crossed},
                    {"small_and_large", small_and_large},
                    {"outstanding", outstanding},
                    {"freed_early", freed_early},
                    {"in_place_at_every_root", in_place_at_every_root},
                    {"other_types_elsewhere", other_types_elsewhere},
                    {"persistent", persistent},
                    {"persistent_with_freed_types", persistent_with_freed_types},
                    {"persistent_in_any_order", persistent_in_any_order},
                    {"persistent_independent", persistent_independent},
                    {"persistent_freed_and_made_again", persistent_freed_and_made_again},
                    {"persistent_in_wrong_order", persistent_in_wrong_order},
                    {"overlapping", overlapping},
                    {"sizes_by_pair", sizes_by_pair},
                    {"threads_make_communicators", threads_make_communicators},
                    {"freed_and_made_again", freed_and_made_again},
                    {"errors_that_return", errors_that_return},
                    {"one_exits", one_exits},
                    {"one_aborts", one_aborts}};
  int threading = argc == 2 && strncmp(argv[1], "threads", 7) == 0 ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, threading, &threading);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  int known = 0;
  for (size_t i = 0; i < sizeof situations / sizeof situations[0]; ++i) {
    for (int j = 1; j < argc; ++j) {
      if (strcmp(argv[j], situations[i].name) != 0) continue;
      situations[i].run();
      ++known;
    }
  }
  expect(known == argc - 1 && known > 0, "there is no such situation");
  MPI_Finalize();
  if (performing_threads() == 0) return 0;
  fprintf(stderr, "rank %d: threads are left behind MPI_Finalize\n", rank);
  return 1;
}
