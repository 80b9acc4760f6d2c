#pragma once
#include <condition_variable>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

#include "stretto/stream.hpp"
#include "transport/gpu_links.hpp"
#include "transport/job.hpp"

namespace stretto {

// Sees that what a communicator has put into GPU streams comes to an end. A GPU waits for a lost peer for ever, and so does
// whatever follows in the stream; this thread looks at the job, at the links and at the clock, and where one of them says
// that it will not come, the works fail with that sentence and the links are aborted, so that the streams go on.
class GpuWatch {
 public:
  // timeout: seconds from a work's beginning on the GPU. on_failure: told once, from the watching thread.
  GpuWatch(Job& job, GpuLinks& links, double timeout, std::function<void()> on_failure);
  ~GpuWatch();
  GpuWatch(const GpuWatch&) = delete;
  GpuWatch& operator=(const GpuWatch&) = delete;

  // A work that is in a GPU's stream; what: for the sentence.
  void add(const Work& work, std::string what);

 private:
  struct Watched {
    Work work;
    std::string what;
    double started = 0;  // on the GPU, as this thread first saw it
  };
  void look_after();
  std::exception_ptr trouble();  // under the mutex

  Job& job_;
  GpuLinks& links_;
  double timeout_;
  std::function<void()> on_failure_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Watched> watched_;
  bool closing_ = false;
  std::exception_ptr failed_;
  std::thread thread_;
};

}  // namespace stretto
