#pragma once
#include <limits.h>
#include <stddef.h>

#include "stretto/export.hpp"

// The C interface: NCCL 2.28's calls under the prefix stretto, from C11 and C++. docs/c-api.md has a complete program, and
// says what differs from NCCL.
//
// Every call returns strettoSuccess or what went wrong; strettoGetLastError() then has it in one sentence with the values.
// A call that returns strettoInvalidArgument or strettoInvalidUsage has done nothing and harmed nothing. Handles are
// checked: one that was never made, or is destroyed, is refused. All functions may be called from any thread, but
// operations on one communicator by one thread at a time. Pointers may be to any host memory; to a GPU's memory where the
// stream is one of the GPU (strettoStreamFromCuda). Counts are in elements.
#ifdef __cplusplus
extern "C" {
#endif

#define STRETTO_MAJOR 0
#define STRETTO_MINOR 2
#define STRETTO_PATCH 0
#define STRETTO_VERSION(X, Y, Z) ((X)*10000 + (Y)*100 + (Z))
#define STRETTO_VERSION_CODE STRETTO_VERSION(STRETTO_MAJOR, STRETTO_MINOR, STRETTO_PATCH)

typedef struct strettoComm* strettoComm_t;      // one rank's end of a communicator
typedef struct strettoStream* strettoStream_t;  // see below; NULL is the calling thread
typedef struct strettoWindow* strettoWindow_t;
#define STRETTO_COMM_NULL NULL

// Tells ranks where they meet; plain bytes, to be passed on by whatever means. It contains a secret: who knows it can join.
#define STRETTO_UNIQUE_ID_BYTES 128
typedef struct {
  char internal[STRETTO_UNIQUE_ID_BYTES];
} strettoUniqueId;

typedef enum {
  strettoSuccess = 0,
  strettoUnhandledCudaError = 1,  // a call to CUDA failed, or there is no GPU where one is asked for
  strettoSystemError = 2,         // a resource of the machine is missing: memory, port, address
  strettoInternalError = 3,       // a bug in Stretto
  strettoInvalidArgument = 4,     // a value is wrong
  strettoInvalidUsage = 5,        // the call is wrong here: a handle that does not exist, a group that was never begun
  strettoRemoteError = 6,         // a rank was lost, gave up or did not answer: the communicator is no longer usable
  strettoInProgress = 7,          // strettoStreamQuery only: not done yet
  strettoNumResults = 8
} strettoResult_t;

// What the code means in general, and what happened in the last call that failed: on this communicator (by any thread; also
// an error that strettoCommGetAsyncError has noticed), or with NULL in this thread, whatever it was about. Empty when there
// was none. The text stays where it is until the next failure of the same communicator or thread.
STRETTO_API const char* strettoGetErrorString(strettoResult_t result);
STRETTO_API const char* strettoGetLastError(strettoComm_t comm);
STRETTO_API strettoResult_t strettoGetVersion(int* version);  // STRETTO_VERSION_CODE of the library

// ---- streams

// A queue in which operations run in order, beside the calling thread. NULL in its place is the calling thread: the call
// then returns when the operation is done.
STRETTO_API strettoResult_t strettoStreamCreate(strettoStream_t* stream, const char* name);  // a thread; name may be NULL
// A cudaStream_t of the program's own (NULL: the legacy default stream) of the GPU that this process uses. It goes on to be
// the program's, which keeps it until all operations there are done, uses no handle that outlives it but to destroy that,
// and does not capture it into a graph while operations are put there.
STRETTO_API strettoResult_t strettoStreamFromCuda(strettoStream_t* stream, void* cuda_stream);
// Blocks until everything that was put there is done; returns the error with which an operation ended, if one did. After an
// error a stream takes nothing more.
STRETTO_API strettoResult_t strettoStreamSynchronize(strettoStream_t stream);
// strettoInProgress, or when all operations that were put there are done what strettoStreamSynchronize would return.
STRETTO_API strettoResult_t strettoStreamQuery(strettoStream_t stream);
// What is put into the stream from now on begins when what is in the other one now is done.
STRETTO_API strettoResult_t strettoStreamWait(strettoStream_t stream, strettoStream_t other);
STRETTO_API strettoResult_t strettoStreamDestroy(strettoStream_t stream);  // blocks until it is empty

// ---- communicators

#define STRETTO_CONFIG_UNDEF_INT INT_MIN
#define STRETTO_CONFIG_UNDEF_PTR NULL
#define STRETTO_SPLIT_NOCOLOR (-1)

typedef struct {
  size_t size;  // these three as STRETTO_CONFIG_INITIALIZER sets them
  unsigned int magic;
  unsigned int version;
  int blocking;          // 1 or undefined; 0 is refused: every call here returns when it has happened
  const char* commName;  // in errors, traces and the ledger; undefined: "world", and of parts that name with the color
} strettoConfig_t;
#define STRETTO_CONFIG_INITIALIZER \
  { sizeof(strettoConfig_t), 0x53747265U, STRETTO_VERSION_CODE, STRETTO_CONFIG_UNDEF_INT, STRETTO_CONFIG_UNDEF_PTR }

// Opens the place where ranks meet, on all of this host's addresses until they have met. Call it once for each
// communicator, in the process that will have rank 0, and give the id to all ranks. Other hosts are told the address in
// STRETTO_ADDRESS, or this host's name.
STRETTO_API strettoResult_t strettoGetUniqueId(strettoUniqueId* id);
// Collective over nranks ranks, each a process or a thread with a number of its own; returns when all have come, or with an
// error after STRETTO_MEET_TIMEOUT seconds. An id makes one communicator; a process may be in any number of them, several
// times in each. Ranks that one thread makes must stand between strettoGroupStart and strettoGroupEnd.
STRETTO_API strettoResult_t strettoCommInitRank(strettoComm_t* comm, int nranks, strettoUniqueId id, int rank);
STRETTO_API strettoResult_t strettoCommInitRankConfig(strettoComm_t* comm, int nranks, strettoUniqueId id, int rank,
                                                      strettoConfig_t* config);
// A communicator whose ndev ranks are all in this process: comms[r] becomes rank r, in whatever thread it is used. devlist
// must be NULL: a process uses one GPU, or none.
STRETTO_API strettoResult_t strettoCommInitAll(strettoComm_t* comms, int ndev, const int* devlist);
// Collective over comm: ranks that give the same color form a new communicator, ordered by key, then by rank.
// STRETTO_SPLIT_NOCOLOR: NULL. All that come from one unique id share its fate: when a rank of one is lost, all are
// unusable.
STRETTO_API strettoResult_t strettoCommSplit(strettoComm_t comm, int color, int key, strettoComm_t* newcomm,
                                             strettoConfig_t* config);

STRETTO_API strettoResult_t strettoCommCount(const strettoComm_t comm, int* count);
STRETTO_API strettoResult_t strettoCommUserRank(const strettoComm_t comm, int* rank);
STRETTO_API strettoResult_t strettoCommCuDevice(const strettoComm_t comm, int* device);  // an error where there is no GPU

// Whether the communicator is still usable: strettoSuccess, or why it is not. Never blocks.
STRETTO_API strettoResult_t strettoCommGetAsyncError(strettoComm_t comm, strettoResult_t* asyncError);
// Blocks until everything that this rank put into streams on it is done; then it takes no more operations.
STRETTO_API strettoResult_t strettoCommFinalize(strettoComm_t comm);
// The same, and frees it, in any case, with its reductions, registrations and windows. The last handle of a unique id also
// waits until the other ranks have come as far, or ended. An error with which operations under way ended is returned.
STRETTO_API strettoResult_t strettoCommDestroy(strettoComm_t comm);
// Frees it at once: its operations end with an error, here and on all ranks that have a communicator of the same unique id.
// May be called while another thread is in an operation on it, which then returns strettoRemoteError.
STRETTO_API strettoResult_t strettoCommAbort(strettoComm_t comm);

// ---- memory

// Host memory that local ranks read and write in place (stretto/memory.hpp): collectives of large buffers are fastest there.
STRETTO_API strettoResult_t strettoMemAlloc(void** ptr, size_t size);
STRETTO_API strettoResult_t strettoMemFree(void* ptr);  // NULL is nothing; refused while it is registered

// Memory from strettoMemAlloc needs no registration, and no other memory can have what it brings. So these assert: success
// means that the buffer is such memory, which stays while it is registered; else strettoInvalidArgument, and the buffer can
// be used as it is, only slower.
STRETTO_API strettoResult_t strettoCommRegister(const strettoComm_t comm, void* buff, size_t size, void** handle);
STRETTO_API strettoResult_t strettoCommDeregister(const strettoComm_t comm, void* handle);
// Collective: success means so for the buffers of all ranks, of which each gives the same size.
#define STRETTO_WIN_DEFAULT 0x00
#define STRETTO_WIN_COLL_SYMMETRIC 0x01
STRETTO_API strettoResult_t strettoCommWindowRegister(strettoComm_t comm, void* buff, size_t size, strettoWindow_t* win,
                                                      int winFlags);
STRETTO_API strettoResult_t strettoCommWindowDeregister(strettoComm_t comm, strettoWindow_t win);

// ---- types and reductions

typedef enum {
  strettoInt8 = 0,
  strettoChar = 0,
  strettoUint8 = 1,
  strettoInt32 = 2,
  strettoInt = 2,
  strettoUint32 = 3,
  strettoInt64 = 4,
  strettoUint64 = 5,
  strettoFloat16 = 6,
  strettoHalf = 6,
  strettoFloat32 = 7,
  strettoFloat = 7,
  strettoFloat64 = 8,
  strettoDouble = 8,
  strettoBfloat16 = 9,
  strettoFloat8e4m3 = 10,
  strettoFloat8e5m2 = 11,
  strettoNumTypes = 12
} strettoDataType_t;

// An average is the sum, divided once by the number of ranks; of integers rounded towards zero. Sums of 16- and 8-bit
// floats are formed in 32 bits and rounded once.
typedef enum {
  strettoSum = 0,
  strettoProd = 1,
  strettoMax = 2,
  strettoMin = 3,
  strettoAvg = 4,
  strettoNumOps = 5,  // from here on those that strettoRedOpCreatePreMulSum makes
  strettoMaxRedOp = 0x7fffffff
} strettoRedOp_t;

typedef enum {
  strettoScalarDevice = 0,  // refused: it would be read while the operation runs
  strettoScalarHostImmediate = 1
} strettoScalarResidence_t;

// The sum of all ranks' contributions, each multiplied first by the scalar that its rank gave here: one element of the type,
// which is read now. For operations of that type on this communicator.
STRETTO_API strettoResult_t strettoRedOpCreatePreMulSum(strettoRedOp_t* op, void* scalar, strettoDataType_t datatype,
                                                        strettoScalarResidence_t residence, strettoComm_t comm);
STRETTO_API strettoResult_t strettoRedOpDestroy(strettoRedOp_t op, strettoComm_t comm);  // also while operations use it

// ---- operations
//
// All ranks of a communicator call the same operations in the same order, with the same counts, types and roots. A call
// returns when its operation is in the stream; buffers must be left alone until it is done there. In place means the
// pointers named; otherwise buffers do not overlap.

// recvbuff[i] = the reduction of all ranks' sendbuff[i]; in place: sendbuff == recvbuff.
STRETTO_API strettoResult_t strettoAllReduce(const void* sendbuff, void* recvbuff, size_t count, strettoDataType_t datatype,
                                             strettoRedOp_t op, strettoComm_t comm, strettoStream_t stream);
// The root gets the reduction, recvbuff is not used elsewhere; in place: sendbuff == recvbuff.
STRETTO_API strettoResult_t strettoReduce(const void* sendbuff, void* recvbuff, size_t count, strettoDataType_t datatype,
                                          strettoRedOp_t op, int root, strettoComm_t comm, strettoStream_t stream);
// sendbuff: nranks * recvcount elements; rank r gets the r-th share of the reduction; in place: recvbuff == sendbuff + rank
// * recvcount.
STRETTO_API strettoResult_t strettoReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
                                                 strettoDataType_t datatype, strettoRedOp_t op, strettoComm_t comm,
                                                 strettoStream_t stream);
// recvbuff: nranks * sendcount elements, in the order of the ranks; in place: sendbuff == recvbuff + rank * sendcount.
STRETTO_API strettoResult_t strettoAllGather(const void* sendbuff, void* recvbuff, size_t sendcount,
                                             strettoDataType_t datatype, strettoComm_t comm, strettoStream_t stream);
// sendbuff is used at the root only; in place there: sendbuff == recvbuff. strettoBcast is always in place.
STRETTO_API strettoResult_t strettoBroadcast(const void* sendbuff, void* recvbuff, size_t count, strettoDataType_t datatype,
                                             int root, strettoComm_t comm, strettoStream_t stream);
STRETTO_API strettoResult_t strettoBcast(void* buff, size_t count, strettoDataType_t datatype, int root, strettoComm_t comm,
                                         strettoStream_t stream);
// Both buffers: nranks blocks of count elements; block r of sendbuff becomes this rank's block in r's recvbuff. Not in
// place.
STRETTO_API strettoResult_t strettoAlltoAll(const void* sendbuff, void* recvbuff, size_t count, strettoDataType_t datatype,
                                            strettoComm_t comm, strettoStream_t stream);
// recvbuff is used at the root only: nranks * count elements; in place there: sendbuff == recvbuff + root * count.
STRETTO_API strettoResult_t strettoGather(const void* sendbuff, void* recvbuff, size_t count, strettoDataType_t datatype,
                                          int root, strettoComm_t comm, strettoStream_t stream);
// sendbuff is used at the root only: nranks * count elements; in place there: recvbuff == sendbuff + root * count.
STRETTO_API strettoResult_t strettoScatter(const void* sendbuff, void* recvbuff, size_t count, strettoDataType_t datatype,
                                           int root, strettoComm_t comm, strettoStream_t stream);
// Messages from one rank to another arrive in the order in which they were sent. A stream does not go on before the peer has
// taken part (a small message may leave earlier): what must happen at the same time stands in one group.
STRETTO_API strettoResult_t strettoSend(const void* sendbuff, size_t count, strettoDataType_t datatype, int peer,
                                        strettoComm_t comm, strettoStream_t stream);
STRETTO_API strettoResult_t strettoRecv(void* recvbuff, size_t count, strettoDataType_t datatype, int peer,
                                        strettoComm_t comm, strettoStream_t stream);

// ---- groups
//
// What this thread calls between the two is collected, and begins in strettoGroupEnd: operations on any communicators so
// that they progress together; or strettoCommInitRank, strettoCommSplit and strettoCommWindowRegister of several ranks,
// whose results are there when strettoGroupEnd returns. Not both in one group. Groups nest; the outermost counts. When a
// call inside has failed, strettoGroupEnd returns its error and begins nothing.
STRETTO_API strettoResult_t strettoGroupStart(void);
STRETTO_API strettoResult_t strettoGroupEnd(void);

#ifdef __cplusplus
}
#endif
