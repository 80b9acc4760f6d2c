#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "stretto/stream.hpp"

// The devices on which tensors lie and kernels run: host memory and threads, or a GPU's memory and CUDA streams.
// Stream, Event, Work, Tensor, Communicator, kernels and layers have the same interface on both.
namespace stretto {

STRETTO_API const char* name(Device device);                   // "cpu", "cuda"
STRETTO_API Device device_from_name(const std::string& text);  // throws Error naming the choices

// The reason why this process cannot use a GPU, in one sentence; empty if it can. Looks for a driver once.
STRETTO_API std::string cuda_obstacle();

struct GpuInfo {
  std::string name;          // "NVIDIA H200"
  int index = 0;             // in 0..count-1
  int major = 0, minor = 0;  // compute capability
  std::size_t memory_bytes = 0;
  int multiprocessors = 0;
  std::string uuid = {};  // "GPU-8d0a...", as nvidia-smi prints it: the same in all processes that use this GPU
  int count = 1;          // GPUs that this process sees
};
// The GPU that this process uses; nothing if it cannot use one. Rank r of a host, as launch() or a launcher numbers it,
// uses GPU r modulo the number of GPUs, unless STRETTO_GPU names another.
STRETTO_API std::optional<GpuInfo> gpu_info();
// Makes this process use the GPU with that index. A program that assigns GPUs to its processes must call it before anything
// else uses a GPU. Throws Error(invalid_argument) if the process already uses another GPU, or if STRETTO_GPU names another.
STRETTO_API void choose_gpu(int index);

// While the object lives, this thread's new tensors and streams are on that device, and the kernels that this thread calls
// run there, in a stream of this thread (see computation()). OnDevice objects may be nested; on one GPU, kernels then still
// run in the order in which the thread calls them. The constructor throws Error(unavailable) with cuda_obstacle() if there
// is no such device.
class STRETTO_API OnDevice {
 public:
  explicit OnDevice(Device device);
  ~OnDevice();  // blocks until the kernels are done
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  Stream before_;
};
STRETTO_API Device current_device();  // this thread's device

// The stream in which this thread's kernels run, in the order of their calls. On the host it is Stream::inline_(), and
// a kernel is done when it returns. A stream that uses a kernel's results must wait for computation(), and
// computation() must wait for data that arrives in another stream. On the host, waiting for computation() has no
// effect, and computation().wait() blocks. Communicator operations on a GPU stream wait for computation() by
// themselves.
//
//   communication.wait(computation());   // behind the kernels called so far
//   Work sum = group.all_reduce(gradient, ReduceOp::sum, communication);
//   ...
//   computation().wait(sum);             // the kernels called from now on see the sum
STRETTO_API Stream computation();

// The cudaStream_t of a stream, for code that calls CUDA or NCCL itself; null for a host stream. The Stream owns it.
STRETTO_API void* native_handle(const Stream& stream);

// A CUDA graph: the GPU work of a function, recorded once and then launched any number of times at the cost of one
// launch. Inside the function, computation() is the given stream. It may use other streams that first wait for this one
// and for which this one waits in the end. It must not block on the host, make streams, or wait for work outside the
// graph. The graph owns the memory of tensors made in the function, which is the same at each launch, and the function
// with everything that it captured. A Work made in the function cannot be waited for. The Work of a launch can, and
// launches run one after the other.
class STRETTO_API Graph {
 public:
  Graph(const Stream& stream, const std::function<void()>& function);
  Work launch(const Stream& stream) const;

 private:
  struct STRETTO_HIDDEN Captured;
  std::shared_ptr<Captured> captured_;
};

}  // namespace stretto
