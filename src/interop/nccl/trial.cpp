#include "interop/nccl/trial.hpp"

#include <exception>
#include <thread>

#include "interop/nccl/calls/answers.hpp"
#include "interop/nccl/libraries/cuda_calls.hpp"

namespace stretto::nccl_door {
namespace {

// One element in the GPU's memory, and a stream.
struct Place {
  void* memory = nullptr;
  cudaStream_t stream = nullptr;
  strettoStream_t wrapped = nullptr;

  Place() {
    memory = cuda().allocate(sizeof(float));
    try {
      stream = cuda().create_stream();
      check(strettoStreamFromCuda(&wrapped, stream));
    } catch (...) {
      end();
      throw;
    }
  }
  ~Place() { end(); }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

 private:
  void end() {
    if (wrapped != nullptr) strettoStreamDestroy(wrapped);
    if (stream != nullptr) cuda().destroy(stream);
    cuda().release(memory);
  }
};

// Uses another GPU for a while. The program's thread then continues with the GPU that it used before.
class UsingDevice {
 public:
  explicit UsingDevice(int device) : before_(cuda().device()) { use(device); }
  ~UsingDevice() {
    try {
      use(before_);
    } catch (const Refusal&) {  // CUDA has failed for good; the program's next call reports it
    }
  }
  UsingDevice(const UsingDevice&) = delete;
  UsingDevice& operator=(const UsingDevice&) = delete;

 private:
  void use(int device) const {
    if (device != cuda().device()) cuda().use_device(device);
  }
  int before_;
};

void sum_of_one_element(const RankOnGpu& rank) {
  const UsingDevice device(rank.device);
  const Place place;
  check(strettoAllReduce(place.memory, place.memory, 1, strettoFloat32, strettoSum, rank.ranks, place.wrapped));
  check(strettoStreamSynchronize(place.wrapped));
}

}  // namespace

// The first sum of a communicator makes connections and so needs all ranks at once: ranks of one thread run in parallel.
void try_gpus(const std::vector<RankOnGpu>& ranks) {
  if (ranks.size() == 1) return sum_of_one_element(ranks.front());
  std::vector<std::exception_ptr> errors(ranks.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      threads.emplace_back([&, i] {
        try {
          sum_of_one_element(ranks[i]);
        } catch (...) {
          errors[i] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace stretto::nccl_door
