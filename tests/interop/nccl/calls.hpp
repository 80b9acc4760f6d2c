#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "interop/nccl/oracle.hpp"
#include "interop/nccl/stand_in.hpp"
#include "transport/gpu/gpu_ranks.hpp"

// A program's calls of NCCL, with buffers on its GPU, and whether they did what they say.
namespace stretto::nccl_door {

#define EXPECT_NCCL(call) EXPECT_EQ(call, ncclSuccess) << ncclGetLastError(nullptr)
#define ASSERT_NCCL(call) ASSERT_EQ(call, ncclSuccess) << ncclGetLastError(nullptr)

// One collective on its way: the buffers live until it was looked at.
class Started {
 public:
  Started(const Problem& problem, int rank, ncclComm_t comm, HostGpu& gpu, GpuStream stream, ncclRedOp_t op = ncclSum)
      : problem_(problem), rank_(rank), stream_(stream), input_(gpu, stream, inputs()), output_(gpu, stream, outputs()) {
    result = call(comm, op);
  }

  // Waits for the stream; wrong elements.
  std::size_t wrong() const {
    if (!problem_.has_output(rank_)) return 0;
    const std::vector<float> got = output_.values();
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < got.size(); ++i) wrong += got[i] != problem_.output(rank_, i);
    return wrong;
  }

  ncclResult_t result = ncclSuccess;

 private:
  std::vector<float> inputs() const {
    std::vector<float> values(problem_.has_input(rank_) ? problem_.inputs() : 0);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = problem_.input(rank_, i);
    return values;
  }
  std::vector<float> outputs() const {
    return std::vector<float>(problem_.has_output(rank_) ? problem_.outputs() : 0, -1.0F);
  }
  ncclResult_t call(ncclComm_t comm, ncclRedOp_t op) const {
    // What a program need not give on ranks where it does not matter is null.
    const void* in = problem_.has_input(rank_) ? input_.at() : nullptr;
    void* out = problem_.has_output(rank_) ? output_.at() : nullptr;
    const std::size_t n = problem_.count;
    const int root = problem_.root;
    cudaStream_t stream = cuda_stream(stream_);
    switch (problem_.collective) {
      case Collective::all_reduce: return ncclAllReduce(in, out, n, ncclFloat, op, comm, stream);
      case Collective::reduce: return ncclReduce(in, out, n, ncclFloat, op, root, comm, stream);
      case Collective::reduce_scatter: return ncclReduceScatter(in, out, n, ncclFloat, op, comm, stream);
      case Collective::all_gather: return ncclAllGather(in, out, n, ncclFloat, comm, stream);
      case Collective::all_to_all: return ncclAlltoAll(in, out, n, ncclFloat, comm, stream);
      case Collective::broadcast: return ncclBroadcast(in, out, n, ncclFloat, root, comm, stream);
      case Collective::gather: return ncclGather(in, out, n, ncclFloat, root, comm, stream);
      case Collective::scatter: return ncclScatter(in, out, n, ncclFloat, root, comm, stream);
      default: return ncclInternalError;
    }
  }

  Problem problem_;
  int rank_;
  GpuStream stream_;
  OnGpu<float> input_, output_;
};

constexpr Collective collectives[] = {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
                                      Collective::all_to_all, Collective::broadcast,      Collective::reduce,
                                      Collective::gather,     Collective::scatter};

inline void expect_right(const Problem& problem, int rank, ncclComm_t comm, HostGpu& gpu, GpuStream stream,
                         ncclRedOp_t op = ncclSum) {
  const Started started(problem, rank, comm, gpu, stream, op);
  ASSERT_EQ(started.result, ncclSuccess) << ncclGetLastError(comm);
  ASSERT_EQ(started.wrong(), 0U) << name(problem.collective) << " of " << problem.count << " over " << problem.size;
}

}  // namespace stretto::nccl_door
