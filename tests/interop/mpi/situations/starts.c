/* Calls that are started in one order and completed in another, beside messages and calls that block. */
#include <stdlib.h>

#include "situations.h"

/* The message is too large to leave before it is wanted, and the rank that wants it does not come to the collective without.
 */
void message_behind_collective(void) {
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
void first_call_returns(void) {
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
void crossed(void) {
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
void small_and_large(void) {
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
void outstanding(void) {
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
