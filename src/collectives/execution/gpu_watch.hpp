#pragma once
#include <condition_variable>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "stretto/stream.hpp"
#include "transport/bootstrap/job.hpp"
#include "transport/gpu/gpu_links.hpp"

namespace stretto {

// Makes sure that works that a communicator puts into GPU streams come to an end. A GPU waits for a lost peer forever. So
// does all work behind it in the stream, and sometimes the thread that enqueues it. The watch's thread looks at the job, at
// the links and at the clock. If one of them shows that the peer will not come, the works fail with that error, and the
// links are aborted, so that the streams continue.
class GpuWatch {
 public:
  // others: the other members, as ranks of the job.
  // timeout: seconds from the time at which a work is put into its stream, and again from its beginning on the GPU.
  // on_failure: called once, by the watching thread.
  GpuWatch(Gpu& gpu, JobControl& job, GpuLinks& links, std::vector<int> others, double timeout,
           std::function<void()> on_failure);
  // Blocks until the GPU has completed the works, which need the links, and watches over them until then.
  ~GpuWatch();
  GpuWatch(const GpuWatch&) = delete;
  GpuWatch& operator=(const GpuWatch&) = delete;

  // Must be called before a work is put into a GPU's stream, since that may have to wait for peers. what: for the error's
  // sentence. After a failure the work fails at once, and must not be put into its stream.
  void add(const Work& work, std::string what);
  // Makes the works fail with this error.
  void give_up(const std::exception_ptr& why);

 private:
  struct Watched {
    Work work;
    std::string what;
    double waits_since = 0;  // when this thread first saw that it may be waiting for others; 0: it does not wait
  };
  void look_after();
  std::exception_ptr trouble();  // the caller must hold the mutex, as for fail()
  void fail(const std::exception_ptr& why);

  Gpu& gpu_;
  JobControl& job_;
  GpuLinks& links_;
  std::vector<int> others_;
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
