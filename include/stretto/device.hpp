#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "stretto/stream.hpp"

// Where tensors lie and kernels run: host memory and threads, or a GPU's memory and CUDA streams. The vocabulary (Stream,
// Event, Work, Tensor, Communicator, kernels, layers) is the same on both.
namespace stretto {

STRETTO_API const char* name(Device device);                   // "cpu", "cuda"
STRETTO_API Device device_from_name(const std::string& text);  // throws Error naming the choices

// Why this process cannot use a GPU, in one sentence; empty where it can. Looks for a driver once.
STRETTO_API std::string cuda_obstacle();

struct GpuInfo {
  std::string name;          // "NVIDIA H200"
  int index = 0;             // among the count that this process sees
  int major = 0, minor = 0;  // compute capability
  std::size_t memory_bytes = 0;
  int multiprocessors = 0;
  std::string uuid = {};  // "GPU-8d0a...", as nvidia-smi prints it: the same for all who use this very GPU
  int count = 1;
};
// The GPU that this process uses; nothing where it can use none. Rank r of a host (as launch() or a launcher has numbered
// it) takes GPU r modulo their number, STRETTO_GPU another one.
STRETTO_API std::optional<GpuInfo> gpu_info();
// For programs that choose by themselves: the GPU of that number is this process's from now on. Before anything else asks
// for a GPU; where the process uses another one already, or STRETTO_GPU names another, throws Error(invalid_argument).
STRETTO_API void choose_gpu(int index);

// From its construction to its destruction, new tensors and streams of this thread are the device's, and kernels run in a
// stream of this thread's own there. Nests: an inner one of the same GPU begins behind what the outer one has been given,
// and has ended where the outer one goes on. Throws Error(unavailable) with cuda_obstacle() where there is no such device.
class STRETTO_API OnDevice {
 public:
  explicit OnDevice(Device device);
  ~OnDevice();  // waits for the kernels
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  Stream before_;
};
STRETTO_API Device current_device();  // of this thread

// The stream in which this thread's kernels run, in the order of their calls: on the host Stream::inline_(), for kernels
// there are done when they return. What communicates a kernel's results waits for it, and what computes with what has
// arrived makes it wait; both are nothing on the host but what they say:
//
//   communication.wait(computation());   // behind the kernels called so far
//   Work sum = group.all_reduce(gradient, ReduceOp::sum, communication);
//   ...
//   computation().wait(sum);             // the kernels called from now on see the sum
STRETTO_API Stream computation();

// The cudaStream_t of a stream, for code that calls CUDA or NCCL itself; null for one of the host. The stream keeps it.
STRETTO_API void* native_handle(const Stream& stream);

// What a function puts into GPU streams, recorded once and launched again and again at the cost of one launch (a CUDA
// graph). The function sees the stream as computation(); it may use others that wait for this one first and for which it
// waits in the end. It must not wait on the host, make streams, or wait in a stream for what is outside of the graph. The
// memory of tensors that it makes stays the graph's, the same at each launch; the graph keeps the function, and with it
// what it holds. Works that became part of the graph cannot be waited for; launches can, and follow each other.
class STRETTO_API Graph {
 public:
  Graph(const Stream& stream, const std::function<void()>& function);
  Work launch(const Stream& stream) const;

 private:
  struct STRETTO_HIDDEN Captured;
  std::shared_ptr<Captured> captured_;
};

}  // namespace stretto
