// The C interface on buffers of a GPU and in a stream of the program's own, over the stand-in for a GPU.
#include <gmock/gmock.h>

#include "interop/c/c_ranks.hpp"
#include "stand_in/on_host_gpu.hpp"
#include "stretto/device.hpp"
#include "transport/gpu/gpu_ranks.hpp"

namespace stretto {
namespace {

using testing::HasSubstr;

using CApiOnAGpu = OnHostGpu<>;

// The two ranks are threads and share the GPU; what they compute and what they communicate is in one stream of theirs.
TEST_F(CApiOnAGpu, OperationsGoIntoAStreamOfThePrograms) {
  on_ranks_of_c(2, [&](strettoComm_t& comm, int rank) {
    int device = -1;
    EXPECT_SUCCESS(strettoCommCuDevice(comm, &device));
    EXPECT_EQ(device, gpu.info().index);
    const StreamInUse own(gpu);
    {
      const OnGpu<float> values(gpu, own, 1000, static_cast<float>(rank + 1));
      strettoStream_t stream = nullptr;
      ASSERT_SUCCESS(strettoStreamFromCuda(&stream, static_cast<GpuStream>(own)));
      for (int round = 0; round < 3; ++round) {
        gpu.put(own, [&] {
          for (int i = 0; i < 1000; ++i) *values.at(i) += 1;
        });
        ASSERT_SUCCESS(strettoAllReduce(values.at(), values.at(), 1000, strettoFloat, strettoSum, comm, stream));
      }
      EXPECT_EQ(strettoAllReduce(values.at(), values.at(), 1000, strettoFloat, strettoSum, comm, nullptr),
                strettoInvalidArgument);
      EXPECT_THAT(last_error(comm), HasSubstr("the host's"));
      ASSERT_SUCCESS(strettoStreamSynchronize(stream));
      // (1 + 2) + 2, then twice: twice that and 2.
      EXPECT_THAT(values.values(), testing::Each(26));
      EXPECT_SUCCESS(strettoStreamDestroy(stream));
    }
    EXPECT_SUCCESS(strettoCommDestroy(comm));
    comm = nullptr;
  });
  EXPECT_EQ(gpu.streams_in_use(), 0U);
}

}  // namespace
}  // namespace stretto
