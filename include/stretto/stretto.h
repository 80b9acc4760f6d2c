#pragma once
#include <limits.h>
#include <stddef.h>

#include "stretto/export.hpp"

// The C interface, for C11 and C++: NCCL 2.28's calls under the prefix stretto. docs/c-api.md has a complete program
// and the differences from NCCL.
//
// Errors: every call returns strettoSuccess or an error code; strettoGetLastError() then returns one sentence with the
// values. A call that returns strettoInvalidArgument or strettoInvalidUsage has had no effect. A handle that was never
// made, or was destroyed, is refused.
//
// Threads: any thread may call any function, but only one thread at a time may start operations on a communicator.
//
// Buffers: pointers may be to any host memory. They may be to GPU memory if the stream is one of the GPU
// (strettoStreamFromCuda). Counts are in elements.
#ifdef __cplusplus
extern "C" {
#endif

// NOLINTBEGIN(modernize-use-using): C has no other way

#define STRETTO_MAJOR 0
#define STRETTO_MINOR 3
#define STRETTO_PATCH 0
#define STRETTO_VERSION(X, Y, Z) ((X)*10000 + (Y)*100 + (Z))
#define STRETTO_VERSION_CODE STRETTO_VERSION(STRETTO_MAJOR, STRETTO_MINOR, STRETTO_PATCH)

typedef struct strettoComm* strettoComm_t;      // one rank's end of a communicator
typedef struct strettoStream* strettoStream_t;  // see "streams" below; NULL is the calling thread
typedef struct strettoWindow* strettoWindow_t;
typedef struct strettoMove* strettoMove_t;
#define STRETTO_COMM_NULL NULL

// Tells ranks where they meet. Plain bytes, which the program passes on by any means. They contain a secret: any
// process that knows it can join.
#define STRETTO_UNIQUE_ID_BYTES 128
typedef struct {
  char internal[STRETTO_UNIQUE_ID_BYTES];
} strettoUniqueId;

typedef enum {
  strettoSuccess = 0,
  strettoUnhandledCudaError = 1,  // a call to CUDA failed, or there is no GPU and the call needs one
  strettoSystemError = 2,         // a resource of the machine is missing: memory, port, address
  strettoInternalError = 3,       // a bug in Stretto
  strettoInvalidArgument = 4,     // a value is wrong
  strettoInvalidUsage = 5,        // the call is wrong here: a handle that does not exist, a group that was not started
  strettoRemoteError = 6,         // a rank was lost, gave up or did not answer: the communicator is no longer usable
  strettoInProgress = 7,          // strettoStreamQuery only: not done yet
  strettoNumResults = 8
} strettoResult_t;

// strettoGetErrorString: the meaning of a code. strettoGetLastError: one sentence about the last call that failed. With a
// communicator: its last failure, in any thread, or noticed by strettoCommGetAsyncError. With NULL: this thread's last
// failure, of any call. Empty if there was none. The text stays valid until the next failure of the same communicator or
// thread.
STRETTO_API const char* strettoGetErrorString(strettoResult_t result);
STRETTO_API const char* strettoGetLastError(strettoComm_t comm);
STRETTO_API strettoResult_t strettoGetVersion(int* version);  // STRETTO_VERSION_CODE of the library

// ---- streams

// A stream is a queue in which operations run in order, beside the calling thread. If NULL is passed as the stream of
// an operation, the call returns when the operation is done.
STRETTO_API strettoResult_t strettoStreamCreate(strettoStream_t* stream, const char* name);  // a thread; name may be NULL
// Wraps the program's own cudaStream_t of the GPU that this process uses (NULL: the legacy default stream). The program
// still owns it. It must exist until all operations there are done; after that, the handle may only be destroyed. It
// must not be captured into a graph while operations are put there.
STRETTO_API strettoResult_t strettoStreamFromCuda(strettoStream_t* stream, void* cuda_stream);
// Blocks until all operations in the stream are done; returns the error of the first that failed, if any. After an
// error the stream takes no more operations.
STRETTO_API strettoResult_t strettoStreamSynchronize(strettoStream_t stream);
// Returns strettoInProgress until all operations in the stream are done; then the result of strettoStreamSynchronize.
STRETTO_API strettoResult_t strettoStreamQuery(strettoStream_t stream);
// Operations put into `stream` from now on begin when all operations that are in `other` now are done.
STRETTO_API strettoResult_t strettoStreamWait(strettoStream_t stream, strettoStream_t other);
STRETTO_API strettoResult_t strettoStreamDestroy(strettoStream_t stream);  // blocks until the stream is empty

// ---- communicators

#define STRETTO_CONFIG_UNDEF_INT INT_MIN
#define STRETTO_CONFIG_UNDEF_PTR NULL
#define STRETTO_SPLIT_NOCOLOR (-1)

typedef struct {
  size_t size;  // set these three by STRETTO_CONFIG_INITIALIZER
  unsigned int magic;
  unsigned int version;
  int blocking;          // 1 or undefined; 0 is refused: every call returns when it is complete
  const char* commName;  // in errors, traces and the ledger; undefined: "world", or after a split "<parent>.<color>"
} strettoConfig_t;
#define STRETTO_CONFIG_INITIALIZER \
  { sizeof(strettoConfig_t), 0x53747265U, STRETTO_VERSION_CODE, STRETTO_CONFIG_UNDEF_INT, STRETTO_CONFIG_UNDEF_PTR }

// Opens a port where ranks meet, on all addresses of this host, until they have met. Call it once per communicator, in
// the process of rank 0, and give the id to all ranks. Ranks on other hosts use the address in STRETTO_ADDRESS, or this
// host's name.
STRETTO_API strettoResult_t strettoGetUniqueId(strettoUniqueId* id);
// Collective over nranks ranks, each a process or a thread with its own rank number. Returns when all have come, or
// with an error after STRETTO_MEET_TIMEOUT seconds. An id makes one communicator. A process may have any number of
// communicators, and several ranks of each. If one thread makes several ranks, it must call this between
// strettoGroupStart and strettoGroupEnd.
STRETTO_API strettoResult_t strettoCommInitRank(strettoComm_t* comm, int nranks, strettoUniqueId id, int rank);
STRETTO_API strettoResult_t strettoCommInitRankConfig(strettoComm_t* comm, int nranks, strettoUniqueId id, int rank,
                                                      strettoConfig_t* config);
// Makes a communicator whose ndev ranks are all in this process. comms[r] becomes rank r; any thread may use it.
// devlist must be NULL: a process uses at most one GPU.
STRETTO_API strettoResult_t strettoCommInitAll(strettoComm_t* comms, int ndev, const int* devlist);
// Collective over comm: ranks with the same color form a new communicator, ordered by key, then by rank. With the color
// STRETTO_SPLIT_NOCOLOR, *newcomm becomes NULL. All communicators that come from one unique id fail together: when a
// rank of one is lost, all are unusable.
STRETTO_API strettoResult_t strettoCommSplit(strettoComm_t comm, int color, int key, strettoComm_t* newcomm,
                                             strettoConfig_t* config);

STRETTO_API strettoResult_t strettoCommCount(const strettoComm_t comm, int* count);
STRETTO_API strettoResult_t strettoCommUserRank(const strettoComm_t comm, int* rank);
STRETTO_API strettoResult_t strettoCommCuDevice(const strettoComm_t comm, int* device);  // an error if there is no GPU

// Sets asyncError to strettoSuccess if the communicator is usable, else to the reason. Never blocks.
STRETTO_API strettoResult_t strettoCommGetAsyncError(strettoComm_t comm, strettoResult_t* asyncError);
// Blocks until all of this rank's operations on the communicator are done. After that it takes no more operations.
STRETTO_API strettoResult_t strettoCommFinalize(strettoComm_t comm);
// Like strettoCommFinalize; then frees the communicator, even after an error, with its reductions, registrations and
// windows. For the last communicator of a unique id it also blocks until the other ranks have done the same, or have
// ended. Returns the error of an operation that failed, if any.
STRETTO_API strettoResult_t strettoCommDestroy(strettoComm_t comm);
// Frees the communicator at once. Its operations end with an error, here and on all ranks that have a communicator of
// the same unique id. Another thread may be in an operation on it: that call then returns strettoRemoteError.
STRETTO_API strettoResult_t strettoCommAbort(strettoComm_t comm);

// ---- memory

// Host memory that ranks of the same host read and write in place (stretto/memory.hpp). Collectives of large buffers
// are fastest in it.
STRETTO_API strettoResult_t strettoMemAlloc(void** ptr, size_t size);
STRETTO_API strettoResult_t strettoMemFree(void* ptr);  // NULL has no effect; refused while the memory is registered

// Memory from strettoMemAlloc needs no registration, and other memory cannot gain by it. So these calls only check.
// strettoSuccess: the buffer is memory from strettoMemAlloc, which cannot be freed while it is registered.
// strettoInvalidArgument: it is not; it can still be used, only slower.
STRETTO_API strettoResult_t strettoCommRegister(const strettoComm_t comm, void* buff, size_t size, void** handle);
STRETTO_API strettoResult_t strettoCommDeregister(const strettoComm_t comm, void* handle);
// Collective: returns strettoSuccess if the buffers of all ranks are memory from strettoMemAlloc. All ranks must give the
// same size.
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

// An average is the sum divided once by the number of ranks; integer averages round towards zero. Sums of 16- and 8-bit
// floats are formed in 32 bits and rounded once.
typedef enum {
  strettoSum = 0,
  strettoProd = 1,
  strettoMax = 2,
  strettoMin = 3,
  strettoAvg = 4,
  strettoNumOps = 5,  // larger values are made by strettoRedOpCreatePreMulSum
  strettoMaxRedOp = 0x7fffffff
} strettoRedOp_t;

typedef enum {
  strettoScalarDevice = 0,  // refused: the scalar would be read while the operation runs
  strettoScalarHostImmediate = 1
} strettoScalarResidence_t;

// A reduction that multiplies each rank's contribution by the scalar that the rank gives here, and sums the products.
// The scalar is one element of the given type; it is read in this call. The reduction is valid for that type on this
// communicator.
STRETTO_API strettoResult_t strettoRedOpCreatePreMulSum(strettoRedOp_t* op, void* scalar, strettoDataType_t datatype,
                                                        strettoScalarResidence_t residence, strettoComm_t comm);
STRETTO_API strettoResult_t strettoRedOpDestroy(strettoRedOp_t op, strettoComm_t comm);  // even if operations still use it

// ---- operations
//
// All ranks of a communicator must call the same operations in the same order, with the same counts, types and roots. A
// call returns when its operation is in the stream; the caller must leave the buffers alone until it is done. "In
// place" gives the pointers for the in-place form; otherwise buffers must not overlap.

// recvbuff[i] = the reduction of sendbuff[i] over all ranks; in place: sendbuff == recvbuff.
STRETTO_API strettoResult_t strettoAllReduce(const void* sendbuff, void* recvbuff, size_t count, strettoDataType_t datatype,
                                             strettoRedOp_t op, strettoComm_t comm, strettoStream_t stream);
// The root gets the reduction; other ranks' recvbuff is ignored. In place: sendbuff == recvbuff.
STRETTO_API strettoResult_t strettoReduce(const void* sendbuff, void* recvbuff, size_t count, strettoDataType_t datatype,
                                          strettoRedOp_t op, int root, strettoComm_t comm, strettoStream_t stream);
// sendbuff: nranks * recvcount elements; rank r gets the r-th share of the reduction. In place: recvbuff == sendbuff +
// rank * recvcount.
STRETTO_API strettoResult_t strettoReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
                                                 strettoDataType_t datatype, strettoRedOp_t op, strettoComm_t comm,
                                                 strettoStream_t stream);
// recvbuff: nranks * sendcount elements, in rank order. In place: sendbuff == recvbuff + rank * sendcount.
STRETTO_API strettoResult_t strettoAllGather(const void* sendbuff, void* recvbuff, size_t sendcount,
                                             strettoDataType_t datatype, strettoComm_t comm, strettoStream_t stream);
// Only the root's sendbuff is read. In place, at the root: sendbuff == recvbuff. strettoBcast is always in place.
STRETTO_API strettoResult_t strettoBroadcast(const void* sendbuff, void* recvbuff, size_t count, strettoDataType_t datatype,
                                             int root, strettoComm_t comm, strettoStream_t stream);
STRETTO_API strettoResult_t strettoBcast(void* buff, size_t count, strettoDataType_t datatype, int root, strettoComm_t comm,
                                         strettoStream_t stream);
// Both buffers: nranks blocks of count elements. Block r of this rank's sendbuff becomes block `rank` of rank r's
// recvbuff. Not in place.
STRETTO_API strettoResult_t strettoAlltoAll(const void* sendbuff, void* recvbuff, size_t count, strettoDataType_t datatype,
                                            strettoComm_t comm, strettoStream_t stream);
// Only the root's recvbuff is written: nranks * count elements. In place, at the root: sendbuff == recvbuff + root *
// count.
STRETTO_API strettoResult_t strettoGather(const void* sendbuff, void* recvbuff, size_t count, strettoDataType_t datatype,
                                          int root, strettoComm_t comm, strettoStream_t stream);
// Only the root's sendbuff is read: nranks * count elements. In place, at the root: recvbuff == sendbuff + root *
// count.
STRETTO_API strettoResult_t strettoScatter(const void* sendbuff, void* recvbuff, size_t count, strettoDataType_t datatype,
                                           int root, strettoComm_t comm, strettoStream_t stream);
// Messages from one rank to another arrive in the order in which they were sent. The stream blocks until the peer has
// taken part; a send of a small message may finish earlier. Messages that must progress together belong in one group.
STRETTO_API strettoResult_t strettoSend(const void* sendbuff, size_t count, strettoDataType_t datatype, int peer,
                                        strettoComm_t comm, strettoStream_t stream);
STRETTO_API strettoResult_t strettoRecv(void* recvbuff, size_t count, strettoDataType_t datatype, int peer,
                                        strettoComm_t comm, strettoStream_t stream);

// ---- moves
//
// Tensors that lie divided over some ranks of a communicator come to other ranks of it, divided otherwise
// (stretto/move.hpp): trained weights to ranks that generate, for example. A move is planned once and run as often as
// wanted.

// The records in which messages travel in place of elements; f32, bf16 and f16 only (stretto/quantization.hpp).
typedef enum {
  strettoFormatNone = 0,
  strettoFormatInt8 = 1,
  strettoFormatInt4 = 2,
  strettoFormatFp8 = 3,
  strettoFormatOnebit = 4,
  strettoNumFormats = 5
} strettoFormat_t;

#define STRETTO_REPLICATED (-1)
typedef struct {
  int nranks;
  const int* ranks;  // each at most once, in any order
  // ranks[i] has the i-th of balanced parts along this dimension, of which the larger ones come first, as a row-major array;
  // STRETTO_REPLICATED: each has the whole.
  int dimension;
} strettoDivision_t;

typedef struct {
  strettoDataType_t datatype;
  int ndims;            // 1 to 6
  const size_t* shape;  // of the whole tensor
  strettoDivision_t from, to;
  strettoFormat_t format;
} strettoMovedTensor_t;

// Collective over comm, whose ranks must all give the same tensors; others are refused on all of them. maxBufferBytes bounds
// the messages that a rank holds at a time, without quantized records that it is to pass on: at least 65536, or 0 for no
// bound. The call copies what it needs. The communicator owns the move, and frees it at the latest when it is destroyed. Not
// between strettoGroupStart and strettoGroupEnd.
STRETTO_API strettoResult_t strettoMoveCreate(strettoMove_t* move, const strettoMovedTensor_t* tensors, int ntensors,
                                              size_t maxBufferBytes, strettoComm_t comm);
// The elements of a tensor that this rank has before the move and behind it. Either pointer may be NULL.
STRETTO_API strettoResult_t strettoMoveCounts(const strettoMove_t move, int tensor, size_t* sendcount, size_t* recvcount,
                                              strettoComm_t comm);
// Collective. sendbuffs[t] has this rank's elements of tensor t before the move, recvbuffs[t] gets those behind it; NULL
// where the rank has none. Host memory only; a send buffer must not overlap a receive buffer. A move runs once at a time.
// Not between strettoGroupStart and strettoGroupEnd.
STRETTO_API strettoResult_t strettoMoveStart(const void* const* sendbuffs, void* const* recvbuffs, strettoMove_t move,
                                             strettoComm_t comm, strettoStream_t stream);
STRETTO_API strettoResult_t strettoMoveDestroy(strettoMove_t move, strettoComm_t comm);  // even if it is in flight

// ---- groups
//
// Calls of this thread between the two are collected, and begin in strettoGroupEnd. A group holds either operations, on
// any communicators, which then progress together; or strettoCommInitRank, strettoCommSplit and
// strettoCommWindowRegister of several ranks, whose results are valid when strettoGroupEnd returns. It must not hold
// both. Groups nest; only the outermost begins anything. If a call inside has failed, strettoGroupEnd returns its error
// and begins nothing.
STRETTO_API strettoResult_t strettoGroupStart(void);
STRETTO_API strettoResult_t strettoGroupEnd(void);

// NOLINTEND(modernize-use-using)

#ifdef __cplusplus
}
#endif
