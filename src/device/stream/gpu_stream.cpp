// A stream on a GPU: its tasks put kernels and copies into it and return; events tell when the GPU has reached them.
#include <deque>
#include <vector>

#include "core/log.hpp"
#include "device/computing_in.hpp"
#include "device/gpu.hpp"
#include "device/stream/gpu_clock.hpp"
#include "device/stream/graph_recording.hpp"
#include "device/stream/stream_queue.hpp"

namespace stretto {
namespace {

// A GPU's stream and its events. Shared by all who may still ask for one of the events.
class GpuTimeline {
 public:
  GpuTimeline(Gpu& gpu, GpuStream stream, bool owns_stream)
      : gpu_(gpu), clock_(GpuClock::of(gpu)), stream_(stream), owns_stream_(owns_stream) {}
  ~GpuTimeline() {
    for (const GpuEvent event : unused_) gpu_.destroy(event);
    if (owns_stream_) gpu_.destroy(stream_);
  }
  GpuTimeline(const GpuTimeline&) = delete;
  GpuTimeline& operator=(const GpuTimeline&) = delete;

  Gpu& gpu() { return gpu_; }
  GpuStream stream() const { return stream_; }
  double seconds_at(GpuEvent event) { return clock_->seconds_at(event); }

  GpuEvent take_event() {
    const std::lock_guard lock(mutex_);
    if (unused_.empty()) return gpu_.create_event();
    const GpuEvent event = unused_.back();
    unused_.pop_back();
    return event;
  }
  void give_back(GpuEvent event) {
    const std::lock_guard lock(mutex_);
    unused_.push_back(event);
  }

 private:
  Gpu& gpu_;
  std::shared_ptr<GpuClock> clock_;
  GpuStream stream_;
  bool owns_stream_;
  std::mutex mutex_;
  std::vector<GpuEvent> unused_;
};

class Marks final : public GpuMarks {
 public:
  explicit Marks(std::shared_ptr<GpuTimeline> timeline)
      : captured_(timeline->gpu().is_capturing(timeline->stream())),
        recording_over_(recording != nullptr ? recording->over : nullptr),
        timeline_(std::move(timeline)),
        started_(timeline_->take_event()),
        done_(timeline_->take_event()) {}
  ~Marks() override {
    if (captured_) {  // the graph refers to them, so they cannot be recorded again
      timeline_->gpu().destroy(started_);
      timeline_->gpu().destroy(done_);
      return;
    }
    timeline_->give_back(started_);
    timeline_->give_back(done_);
  }

  bool captured() const { return captured_; }
  // If true, other streams can no longer wait for this task, neither as part of the graph nor otherwise.
  bool graph_is_complete() const { return captured_ && recording_over_ && *recording_over_; }
  void begin() { timeline_->gpu().record(started_, timeline_->stream()); }
  void end() { timeline_->gpu().record(done_, timeline_->stream()); }
  GpuEvent done_event() const { return done_; }

  // A thread that records a graph must not query the GPU, so it gets false.
  bool started() override { return !captured_ && recording == nullptr && timeline_->gpu().reached(started_); }
  bool done() override { return !captured_ && recording == nullptr && timeline_->gpu().reached(done_); }
  void wait_started() override { wait(started_); }
  void wait_done() override { wait(done_); }
  WorkTimes times(double enqueued) override {
    // CUDA returns the time between events as an f32 of milliseconds: the longer it is, the less exact.
    const double started = timeline_->seconds_at(started_);
    return {enqueued, started, started + timeline_->gpu().seconds_between(started_, done_), 0};
  }

 private:
  void wait(GpuEvent event) {
    require(!captured_, "A work that became part of a graph was waited for; wait for a launch of the graph instead.");
    require(recording == nullptr,
            "A work was waited for while this thread records a graph; wait for it before or after the recording.");
    timeline_->gpu().synchronize(event);
  }

  bool captured_;
  std::shared_ptr<const std::atomic<bool>> recording_over_;  // of the graph that contains it
  std::shared_ptr<GpuTimeline> timeline_;
  GpuEvent started_, done_;
};

class GpuQueue final : public Stream::Queue {
 public:
  GpuQueue(std::string name, Priority priority)
      : Queue(std::move(name), priority),
        timeline_(std::make_shared<GpuTimeline>(gpu(), gpu().create_stream(priority), true)) {}
  GpuQueue(std::string name, GpuStream of_the_program)
      : Queue(std::move(name), Priority::normal), timeline_(std::make_shared<GpuTimeline>(gpu(), of_the_program, false)) {}

  // Waits for the tasks: the GPU uses the memory that they hold until they are done.
  ~GpuQueue() override {
    bool gpu_failed = false;
    for (const auto& work : under_way_) {
      try {
        if (!gpu_failed) work->wait_until_ended();
      } catch (const std::exception& error) {  // all further tasks end with the same error
        log().error("Stream '{}' on the GPU ended with an error: {}", name(), error.what());
        gpu_failed = true;
      }
      if (work->settle() && !gpu_failed) note_failure_of(work);
    }
    report(failed_);
  }

  void push(const std::shared_ptr<Work::State>& work) override {
    const std::lock_guard lock(mutex_);
    if (recording == nullptr) {
      drop_done();
      drop_awaited();
    }
    if (failed_) return work->run(failed_);
    if (const std::exception_ptr error = work->failure()) {  // a watcher has failed it already
      failed_ = work;
      return work->end(error);
    }
    std::shared_ptr<Marks> marks;
    try {
      marks = std::make_shared<Marks>(timeline_);
      require(!marks->captured() || recording != nullptr,
              "Stream '{}' was given a task while another thread records a graph of it; wait until the graph is made.",
              name());
      marks->begin();
      const ComputingIn scope{Stream(shared_from_this())};
      work->task();
      marks->end();
    } catch (...) {
      const std::exception_ptr error = std::current_exception();
      if (marks) wait_for_what_is_there(*marks);
      failed_ = work;
      return work->end(error);
    }
    std::vector<std::shared_ptr<Work::State>> follows;
    if (!marks->captured()) {
      follows.assign(awaited_.begin(), awaited_.end());
      awaited_.clear();
      if (!under_way_.empty()) follows.push_back(under_way_.back());
    }
    work->go_on(marks, std::move(follows));
    if (marks->captured()) {
      recording->works.push_back(work);
    } else {
      under_way_.push_back(work);
    }
  }

  void wait(const Work& work) override {
    const std::shared_ptr<Work::State>& other = work.state();
    if (!other) return;
    const std::shared_ptr<GpuMarks> marks = marks_of(*other);
    const std::lock_guard lock(mutex_);
    if (marks) {
      const auto& there = static_cast<const Marks&>(*marks);
      require(!there.graph_is_complete(),
              "A work that became part of a graph was waited for in stream '{}'; wait for a launch of the graph.", name());
      require(there.captured() || !timeline_->gpu().is_capturing(timeline_->stream()),
              "A graph of stream '{}' cannot wait for what is outside of it; wait before the graph is recorded.", name());
      timeline_->gpu().wait(timeline_->stream(), there.done_event());
      if (there.captured()) return;
      drop_awaited();
      awaited_.push_back(other);
      return;
    }
    note_failure_of(other);
  }

  Device device() const override { return Device::cuda; }
  GpuStream handle() const { return timeline_->stream(); }
  std::shared_ptr<GpuStreamHandle> kept_handle() const { return {timeline_, timeline_->stream()}; }

 private:
  void drop_done() {
    while (!under_way_.empty()) {
      const std::shared_ptr<Work::State> first = under_way_.front();
      if (!first->settle()) return;
      note_failure_of(first);
      // settle() destroys the task, which may run code that calls drop_done() again.
      if (!under_way_.empty() && under_way_.front() == first) under_way_.pop_front();
    }
  }
  void drop_awaited() {
    while (!awaited_.empty()) {
      const std::shared_ptr<Work::State> first = awaited_.front();
      if (!first->settle()) return;
      note_failure_of(first);
      if (!awaited_.empty() && awaited_.front() == first) awaited_.pop_front();
    }
  }
  // `work` must have ended. If it failed, everything after it in this stream fails too.
  void note_failure_of(const std::shared_ptr<Work::State>& work) {
    if (!failed_ && work->failure()) failed_ = work;
  }

  // Kernels that a failed task has put into the stream still use the memory that the task holds.
  static void wait_for_what_is_there(Marks& marks) {
    try {
      marks.end();
      if (!marks.captured() && recording == nullptr) marks.wait_done();
    } catch (const std::exception&) {  // the GPU itself has failed, and uses nothing any more
    }
  }

  // The place of a work in a GPU's stream; null if the work has ended. Waits until a task of the host has ended, and until
  // another thread has put the work into its stream.
  static std::shared_ptr<GpuMarks> marks_of(Work::State& other) {
    std::unique_lock lock(other.mutex);
    if (!other.finished && !other.marks) {
      require(recording == nullptr,
              "A task of the host was waited for while this thread records a graph; wait before the recording.");
      const double from = now_seconds();
      other.changed.wait(lock, [&] { return other.finished || other.marks; });
      if (!on_worker_thread) other.times.waited += now_seconds() - from;
    }
    return other.marks;
  }

  std::shared_ptr<GpuTimeline> timeline_;
  std::recursive_mutex mutex_;  // a task may put more into its own stream
  std::deque<std::shared_ptr<Work::State>> under_way_;
  // Works of other streams that the next task of this stream comes after.
  std::deque<std::shared_ptr<Work::State>> awaited_;
  std::shared_ptr<Work::State> failed_;
};

}  // namespace

std::shared_ptr<Stream::Queue> gpu_queue(std::string name, Priority priority) {
  require(recording == nullptr,
          "Stream '{}' cannot be made while this thread records a graph; make it before the recording.", name);
  return std::make_shared<GpuQueue>(std::move(name), priority);
}

Stream Stream::of_cuda(void* cuda_stream, std::string name) {
  const auto handle = static_cast<GpuStream>(cuda_stream);
  require(recording == nullptr && !gpu().is_capturing(handle),
          "Stream '{}' cannot be made of a CUDA stream while a graph is recorded; make it before.", name);
  return Stream(std::make_shared<GpuQueue>(std::move(name), handle));
}

GpuStream handle_of(const Stream& stream) {
  require(stream.device() == Device::cuda, "Stream '{}' belongs to the host; give one of a GPU.", stream.name());
  return static_cast<const GpuQueue&>(*stream.queue()).handle();
}

std::shared_ptr<GpuStreamHandle> kept_handle_of(const Stream& stream) {
  handle_of(stream);
  return static_cast<const GpuQueue&>(*stream.queue()).kept_handle();
}

// ---- graphs

struct Graph::Captured {
  std::function<void()> function;  // keeps what it captured alive
  std::shared_ptr<GraphMemory> memory;
  std::vector<std::shared_ptr<Work::State>> works;  // the works in the graph; kept alive, too
  std::map<const void*, std::function<void(const Work& launch)>> before_launch;
  Gpu* gpu = nullptr;
  GpuGraph graph = nullptr;
  ~Captured() {
    if (graph != nullptr) gpu->destroy(graph);
  }
};

Graph::Graph(const Stream& stream, const std::function<void()>& function) : captured_(std::make_shared<Captured>()) {
  const GpuStream handle = handle_of(stream);
  require(recording == nullptr, "A graph cannot be recorded inside another; make it before.");
  Gpu& on = gpu();
  captured_->gpu = &on;
  captured_->function = function;
  captured_->memory = std::make_shared<GraphMemory>(on);
  GraphRecording here;
  here.memory = captured_->memory;
  on.begin_capture(handle);
  recording = &here;
  std::exception_ptr error;
  try {
    const ComputingIn scope(stream);
    function();
  } catch (...) {
    error = std::current_exception();
  }
  *here.over = true;
  captured_->works = std::move(here.works);
  captured_->before_launch = std::move(here.before_launch);
  try {
    captured_->graph = on.end_capture(handle);
  } catch (...) {  // often because the function threw
    if (!error) error = std::current_exception();
  }
  recording = nullptr;
  if (error) std::rethrow_exception(error);
  captured_->memory->wait_until_allocated();
}

Work Graph::launch(const Stream& stream) const {
  const GpuStream handle = handle_of(stream);
  Work work = Work::reserve();
  for (const auto& [who, tell] : captured_->before_launch) {
    recording == nullptr ? tell(work) : void(recording->before_launch.emplace(who, tell));
  }
  stream.enqueue([captured = captured_, handle] { captured->gpu->launch(captured->graph, handle); }, work);
  return work;
}

}  // namespace stretto
