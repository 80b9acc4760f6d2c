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

// Makes sure that works that a communicator puts into GPU streams come to an end. A GPU waits for a lost peer for ever, and
// so does everything behind it in the stream, and sometimes the thread that puts it there. The watch's thread looks at the
// job, at the links and at the clock; if one of them says that the peer will not come, the works fail with that sentence,
// and the links are aborted, so that the streams go on.
class GpuWatch {
 public:
  // timeout: seconds from the time at which a work is put into its stream, and again from its beginning on the GPU.
  // on_failure: called once, by the watching thread.
  GpuWatch(Gpu& gpu, Job& job, GpuLinks& links, double timeout, std::function<void()> on_failure);
  // Waits until the GPU has passed the works, which need the links, and watches over them until then.
  ~GpuWatch();
  GpuWatch(const GpuWatch&) = delete;
  GpuWatch& operator=(const GpuWatch&) = delete;

  // Call it before a work is put into a GPU's stream, since that may have to wait for peers. what: for the sentence. After a
  // failure the work fails at once, and its stream will not take it.
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
  std::exception_ptr trouble();  // the mutex is held, as in fail()
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
