/* Persistent calls. */
#include <stdlib.h>

#include "situations.h"

/* Persistent calls are started again and again, together with a persistent message, and waited for in another order. */
void persistent(void) {
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
void persistent_with_freed_types(void) {
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

void persistent_in_any_order(void) {
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
void persistent_independent(void) {
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
    expect(threads_named(PERFORMING) > 0 || getenv("LD_PRELOAD") == NULL, "nobody performs the calls");
    MPI_Bcast(&word, 1, MPI_INT, 0, MPI_COMM_WORLD);
    if (rank != 0) MPI_Start(&requests[0]);
    MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
    expect(sums[0] == size, "the first sum is wrong");
  }
  for (int i = 0; i < 2; ++i) MPI_Request_free(&requests[i]);
#endif
}

/* Requests are freed, by each rank at a time and in an order of its own, and others take their place. */
void persistent_freed_and_made_again(void) {
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
void persistent_in_wrong_order(void) {
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
