// The ranks are processes of this program. Each contributes its number; all get the average.
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <stretto/stretto.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(call)                                                  \
  do {                                                               \
    if ((call) != strettoSuccess) {                                  \
      fprintf(stderr, "%s: %s\n", #call, strettoGetLastError(NULL)); \
      exit(1);                                                       \
    }                                                                \
  } while (0)

enum { ranks = 4, count = 1000 };

static void run(int rank, strettoUniqueId id) {
  strettoComm_t comm;
  CHECK(strettoCommInitRank(&comm, ranks, id, rank));
  strettoStream_t stream;
  CHECK(strettoStreamCreate(&stream, "averages"));
  void* memory;
  CHECK(strettoMemAlloc(&memory, count * sizeof(float)));
  float* values = memory;
  for (int i = 0; i < count; ++i) values[i] = (float)rank;

  CHECK(strettoAllReduce(values, values, count, strettoFloat, strettoAvg, comm, stream));
  // ... other work, while the stream's thread communicates ...
  CHECK(strettoStreamSynchronize(stream));
  if (rank == 0) printf("the average is %g\n", values[count - 1]);

  CHECK(strettoStreamDestroy(stream));
  CHECK(strettoCommDestroy(comm));
  CHECK(strettoMemFree(memory));
}

int main(void) {
  strettoUniqueId id;  // in a job of several hosts, rank 0 makes the id and sends it to the others by other means
  CHECK(strettoGetUniqueId(&id));
  for (int rank = 1; rank < ranks; ++rank) {
    if (fork() == 0) {
      run(rank, id);
      return 0;
    }
  }
  run(0, id);
  int failed = 0;
  for (int status; wait(&status) > 0;) failed |= status != 0;
  return failed;
}
