/* Communicators that are made and freed while calls are under way. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "situations.h"

/* A communicator may be freed while its calls are under way, and so may types; here each rank gives another one. */
void freed_early(void) {
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

/* A communicator that one rank has freed is still in use on another, while both make the next one. */
void freed_and_made_again(void) {
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

/* Of what is freed, a part is kept for the next communicators of the same ranks in the same order: here are many orders. */
void freed_in_many_orders(void) {
  enum { most_kept = 16 };
  const int before = threads_named("");
  for (unsigned round = 0; round < 120; ++round) {
    MPI_Comm made;
    struct sum sum;
    unsigned key = (unsigned)(rank + 1) * (round * round + 1);
    for (int i = 0; i < 3; ++i) key = (key ^ key >> 7) * 2654435761U;
    MPI_Comm_split(MPI_COMM_WORLD, 0, (int)(key >> 8), &made);
    start_sum(&sum, (int)round, made);
    MPI_Wait(&sum.request, MPI_STATUS_IGNORE);
    expect(sum_is(&sum, size), "a sum is wrong");
    MPI_Comm_free(&made);
  }
  expect(threads_named("") <= before + most_kept, "freed communicators keep too many threads");
}

static long resident_kilobytes(void) {
  long all = 0, one = 0;
  char line[200];
  FILE* const file = fopen("/proc/self/status", "r");
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    if (sscanf(line, "RssAnon: %ld", &one) == 1 || sscanf(line, "RssShmem: %ld", &one) == 1) all += one;
  }
  if (file != NULL) fclose(file);
  return all;
}

void unused_communicators_take_little(void) {
  enum { many_of_them = 100 };
  MPI_Comm made[many_of_them];
  const long before = resident_kilobytes();
  for (int i = 0; i < many_of_them; ++i) MPI_Comm_dup(MPI_COMM_WORLD, &made[i]);
  expect(resident_kilobytes() - before < 16 << 10, "communicators take too much before they are used");
  for (int i = 0; i < many_of_them; ++i) MPI_Comm_free(&made[i]);
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

void threads_make_communicators(void) {
  pthread_t started[threads];
  for (int i = 0; i < threads; ++i) MPI_Comm_dup(MPI_COMM_WORLD, &comm_of_thread[i]);
  for (int i = 0; i < threads; ++i) pthread_create(&started[i], NULL, make_and_free, (void*)(intptr_t)i);
  for (int i = 0; i < threads; ++i) pthread_join(started[i], NULL);
  for (int i = 0; i < threads; ++i) MPI_Comm_free(&comm_of_thread[i]);
}
