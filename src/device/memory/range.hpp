#pragma once
#include <string>

namespace stretto {

bool profiler_listens();

// Names a range of the calling thread's time for a profiler (NVTX: Nsight Systems and others), which shows beside it the
// work that the thread put onto a GPU meanwhile. Without a profiler, or in a build without CUDA, it costs a test of one
// flag.
class ProfilerRange {
 public:
  // text() returns the name; it is called only if a profiler listens.
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
