#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "stretto/stream.hpp"

// The devices on which tensors lie and kernels run: the host with its threads, or a GPU with its CUDA streams. Stream,
// Event, Work, Tensor, Communicator, kernels and layers have the same interface on both.
namespace stretto {

STRETTO_API const char* name(Device device);                   // "cpu", "cuda"
STRETTO_API Device device_from_name(const std::string& text);  // throws Error naming the choices

// "AMD EPYC 9654 (family 25, model 17)": virtual machines may call processors of several families "AMD EPYC".
STRETTO_API std::string processor_name();

// The seconds for which the calling thread has run on a core, and for which it was ready to run while others ran there.
// Zeros where Linux does not count them. Cost: a file of /proc, some microseconds.
struct CoreTime {
  double running = 0, waiting = 0;
};
STRETTO_API CoreTime core_time();

// Returns one sentence that says why this process cannot use a GPU, or an empty string if it can. The process looks for
// a driver only once.
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
// The GPU that this process uses; nullopt if the process cannot use a GPU. Unless STRETTO_GPU names another GPU, the
// process with local rank r on its host uses GPU r modulo the number of GPUs. launch() or the launcher assigns local
// ranks.
STRETTO_API std::optional<GpuInfo> gpu_info();
// Makes this process use the GPU with that index. A program that assigns GPUs to its processes must call this function
// before it calls any other function that uses a GPU. Throws Error(invalid_argument) if the process already uses another
// GPU, or if STRETTO_GPU names another GPU.
STRETTO_API void choose_gpu(int index);

// Sets the calling thread's device while the object lives. New tensors and streams of this thread are on that device,
// and the kernels that this thread calls run on it, in a stream of this thread (see computation()). OnDevice objects may
// be nested; kernels on one GPU then still run in the order in which the thread calls them. The constructor throws
// Error(unavailable) with cuda_obstacle() if there is no such device.
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

// The stream in which this thread's kernels run, in the order of their calls. On the host, this stream is
// Stream::inline_(), and a kernel is done when it returns. A stream that uses a kernel's results must wait for
// computation(), and computation() must wait for data that arrives in another stream. On the host, a wait for
// computation() has no effect, and computation().wait() blocks. A Communicator operation on a GPU stream waits for
// computation() by itself.
//
//   communication.wait(computation());   // after the kernels called so far
//   Work sum = group.all_reduce(gradient, ReduceOp::sum, communication);
//   ...
//   computation().wait(sum);             // the kernels called from now on see the sum
STRETTO_API Stream computation();

// Returns the cudaStream_t of a stream, for code that calls CUDA or NCCL itself; null for a host stream. The Stream owns
// the cudaStream_t.
STRETTO_API void* native_handle(const Stream& stream);

// A CUDA graph: the GPU work of a function, which is recorded once and may then be launched any number of times, each
// time at the cost of one launch. While the function runs, computation() is the given stream. The function may use
// another stream if that stream first waits for computation(), and computation() waits for that stream before the
// function returns. The function must not block on the host, make streams, or wait for work outside the graph. The graph
// owns the function with everything that it captured, and the memory of tensors made in the function; each launch uses
// the same memory. A Work made in the function cannot be waited for; wait for the Work that launch() returns instead.
// Launches run one after the other.
class STRETTO_API Graph {
 public:
  Graph(const Stream& stream, const std::function<void()>& function);
  Work launch(const Stream& stream) const;

 private:
  struct STRETTO_HIDDEN Captured;
  std::shared_ptr<Captured> captured_;
};

}  // namespace stretto
