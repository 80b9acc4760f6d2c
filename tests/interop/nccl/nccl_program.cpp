// A program of NCCL's that knows nothing of Stretto: says in lines what its calls returned. Needs no GPU, and makes no
// communicator without one.
#include <nccl.h>

#include <cstdio>
#include <cstring>

int main() {
  int version = 0;
  std::printf("version %d", ncclGetVersion(&version));
  std::printf(" %d\n", version);
  ncclUniqueId id;
  const ncclResult_t made = ncclGetUniqueId(&id);
  unsigned word = 0;
  std::memcpy(&word, &id, sizeof word);
  std::printf("id %d %08x\n", made, word);
  ncclComm_t comm = nullptr;
  std::printf("lone rank %d", ncclCommInitRank(&comm, 1, id, 0));
  std::printf(" %s\n", ncclGetLastError(nullptr));
  std::printf("several %d\n", ncclCommInitAll(&comm, 1, nullptr));
  std::printf("group %d", ncclGroupStart());
  std::printf(" %d\n", ncclGroupEnd());
  std::printf("no communicator %d\n", ncclAllReduce(nullptr, nullptr, 1, ncclFloat, ncclSum, nullptr, nullptr));
  return 0;
}
