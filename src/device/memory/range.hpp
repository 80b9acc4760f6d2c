#pragma once
#include <string>

namespace stretto {

bool profiler_listens();

// Names a stretch of the calling thread's time for a profiler (NVTX: Nsight Systems and others), which shows beside it what
// the thread has put onto a GPU meanwhile. Where no profiler listens, or the build has no CUDA, it is a look at one flag.
class ProfilerRange {
 public:
  // text() gives the name; it is called only where a profiler listens.
  template <class Text>
  explicit ProfilerRange(const Text& text) : listens_(profiler_listens()) {
    if (listens_) [[unlikely]]
      begin(text());
  }
  ~ProfilerRange() {
    if (listens_) [[unlikely]]
      end();
  }
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;

 private:
  static void begin(const std::string& text);
  static void end();
  bool listens_;
};

}  // namespace stretto
