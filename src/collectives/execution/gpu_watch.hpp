#pragma once
#include <condition_variable>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

#include "stretto/stream.hpp"
#include "transport/bootstrap/job.hpp"
#include "transport/gpu/gpu_links.hpp"

namespace stretto {

// Sees that what a communicator puts into GPU streams comes to an end. A GPU waits for a lost peer for ever, and so does
// whatever follows in the stream, and at times the thread that puts it there; this thread looks at the job, at the links and
// at the clock, and where one of them says that it will not come, the works fail with that sentence and the links are
// aborted, so that the streams go on.
class GpuWatch {
 public:
  // timeout: seconds from when a work is put in, and again from its beginning on the GPU. on_failure: told once, from the
  // watching thread.
  GpuWatch(Gpu& gpu, Job& job, GpuLinks& links, double timeout, std::function<void()> on_failure);
  // Waits until the GPU has come past the works, which need the links: over them it watches to the end.
  ~GpuWatch();
  GpuWatch(const GpuWatch&) = delete;
  GpuWatch& operator=(const GpuWatch&) = delete;

  // A work that is about to be put into a GPU's stream: before, for that may have to wait for peers; what: for the sentence.
  // After a failure the work fails at once, and its stream will not take it.
  void add(const Work& work, std::string what);
  // As if this had gone wrong by itself.
  void give_up(const std::exception_ptr& why);

 private:
  struct Watched {
    Work work;
    std::string what;
    double waits_since = 0;  // that it may be waiting for others, as this thread first saw it; 0: it does not
  };
  void look_after();
  std::exception_ptr trouble();  // under the mutex, as fail()
  void fail(const std::exception_ptr& why);

  Gpu& gpu_;
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
