// The header in plain C11, and a program in it: ranks as threads sum, exchange and average.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "stretto/stretto.h"

#define CHECK(call)                                                                                      \
  do {                                                                                                   \
    strettoResult_t result_ = (call);                                                                    \
    if (result_ != strettoSuccess) {                                                                     \
      fprintf(stderr, "%s: %s, %s\n", #call, strettoGetErrorString(result_), strettoGetLastError(NULL)); \
      exit(1);                                                                                           \
    }                                                                                                    \
  } while (0)
#define EXPECT(condition)                                \
  do {                                                   \
    if (!(condition)) {                                  \
      fprintf(stderr, "It is not so: %s\n", #condition); \
      exit(1);                                           \
    }                                                    \
  } while (0)

_Static_assert(sizeof(strettoUniqueId) == 128, "as NCCL's");
_Static_assert(STRETTO_VERSION_CODE == STRETTO_MAJOR * 10000 + STRETTO_MINOR * 100 + STRETTO_PATCH, "as NCCL's");

enum { size = 3, count = 1000 };
static strettoUniqueId id;

static void* run(void* argument) {
  const int rank = *(int*)argument;
  strettoConfig_t config = STRETTO_CONFIG_INITIALIZER;
  config.commName = "c11";
  strettoComm_t comm = STRETTO_COMM_NULL;
  CHECK(strettoCommInitRankConfig(&comm, size, id, rank, &config));
  strettoStream_t stream = NULL;
  CHECK(strettoStreamCreate(&stream, "c11"));
  void* memory = NULL;
  CHECK(strettoMemAlloc(&memory, count * sizeof(double)));
  double* values = memory;
  for (int i = 0; i < count; ++i) values[i] = rank;
  double quarter = 1.0 / 4;
  strettoRedOp_t op;
  CHECK(strettoRedOpCreatePreMulSum(&op, &quarter, strettoDouble, strettoScalarHostImmediate, comm));
  CHECK(strettoAllReduce(values, values, count, strettoDouble, op, comm, stream));
  CHECK(strettoRedOpDestroy(op, comm));
  CHECK(strettoStreamSynchronize(stream));
  EXPECT(values[count - 1] == 0.75);

  int right = -1;
  CHECK(strettoGroupStart());
  CHECK(strettoSend(&rank, 1, strettoInt, (rank + size - 1) % size, comm, stream));
  CHECK(strettoRecv(&right, 1, strettoInt, (rank + 1) % size, comm, stream));
  CHECK(strettoGroupEnd());
  CHECK(strettoStreamSynchronize(stream));
  EXPECT(right == (rank + 1) % size);

  EXPECT(strettoBcast(values, 1, strettoInt, size, comm, NULL) == strettoInvalidArgument);
  EXPECT(strettoGetLastError(comm)[0] != '\0');
  strettoResult_t state = strettoInternalError;
  CHECK(strettoCommGetAsyncError(comm, &state));
  EXPECT(state == strettoSuccess);
  CHECK(strettoStreamDestroy(stream));
  CHECK(strettoCommDestroy(comm));
  CHECK(strettoMemFree(memory));
  return NULL;
}

int main(void) {
  int version = 0;
  CHECK(strettoGetVersion(&version));
  EXPECT(version == STRETTO_VERSION_CODE);
  CHECK(strettoGetUniqueId(&id));
  pthread_t threads[size];
  int ranks[size];
  for (int rank = 0; rank < size; ++rank) {
    ranks[rank] = rank;
    EXPECT(pthread_create(&threads[rank], NULL, run, &ranks[rank]) == 0);
  }
  for (int rank = 0; rank < size; ++rank) pthread_join(threads[rank], NULL);
  puts("c11: ok");
  return 0;
}
