// A stream on a GPU: its tasks put kernels and copies there and return; events tell when the GPU has come to them.
#include <deque>
#include <vector>

#include "core/log.hpp"
#include "device/computing_in.hpp"
#include "device/gpu.hpp"
#include "device/graph_recording.hpp"
#include "device/stream_queue.hpp"

namespace stretto {
namespace {

// A GPU's stream and its events; lives as long as anybody may ask for one of these.
class GpuTimeline {
 public:
  GpuTimeline(Gpu& gpu, Priority priority)
      : gpu_(gpu), stream_(gpu.create_stream(priority)), owns_stream_(true), clock_(gpu.create_event()) {
    start_clock(stream_);
  }
  // The program's stream may be busy with what waits for this very thread: the clock starts in an empty one.
  GpuTimeline(Gpu& gpu, GpuStream of_the_program)
      : gpu_(gpu), stream_(of_the_program), owns_stream_(false), clock_(gpu.create_event()) {
    const GpuStream empty = gpu.create_stream(Priority::normal);
    start_clock(empty);
    gpu.destroy(empty);
  }
  ~GpuTimeline() {
    gpu_.destroy(clock_);
    for (const GpuEvent event : unused_) gpu_.destroy(event);
    if (owns_stream_) gpu_.destroy(stream_);
  }
  GpuTimeline(const GpuTimeline&) = delete;
  GpuTimeline& operator=(const GpuTimeline&) = delete;

  Gpu& gpu() { return gpu_; }
  GpuStream stream() const { return stream_; }
  double seconds_at(GpuEvent event) { return clock_seconds_ + gpu_.seconds_between(clock_, event); }

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
  void start_clock(GpuStream stream) {
    gpu_.record(clock_, stream);
    gpu_.synchronize(clock_);
    clock_seconds_ = now_seconds();
  }

  Gpu& gpu_;
  GpuStream stream_;
  bool owns_stream_;
  GpuEvent clock_;  // reached at this time of the host's clock
  double clock_seconds_ = 0;
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
    if (captured_) {  // the graph speaks of them
      timeline_->gpu().destroy(started_);
      timeline_->gpu().destroy(done_);
      return;
    }
    timeline_->give_back(started_);
    timeline_->give_back(done_);
  }

  bool captured() const { return captured_; }
  // Then other streams cannot wait for it any more, as part of the graph or otherwise.
  bool graph_is_complete() const { return captured_ && recording_over_ && *recording_over_; }
  void begin() { timeline_->gpu().record(started_, timeline_->stream()); }
  void end() { timeline_->gpu().record(done_, timeline_->stream()); }
  GpuEvent done_event() const { return done_; }

  // While this thread records a graph, it may ask the GPU for nothing, and does not know.
  bool started() override { return !captured_ && recording == nullptr && timeline_->gpu().reached(started_); }
  bool done() override { return !captured_ && recording == nullptr && timeline_->gpu().reached(done_); }
  void wait_started() override { wait(started_); }
  void wait_done() override { wait(done_); }
  WorkTimes times(double enqueued) override {
    return {enqueued, timeline_->seconds_at(started_), timeline_->seconds_at(done_), 0};
  }

 private:
  void wait(GpuEvent event) {
    require(!captured_, "A work that became part of a graph was waited for; wait for a launch of the graph.");
    require(recording == nullptr, "A work was waited for while this thread records a graph; wait for it before or behind.");
    timeline_->gpu().synchronize(event);
  }

  bool captured_;
  std::shared_ptr<const std::atomic<bool>> recording_over_;  // of the graph that it is part of
  std::shared_ptr<GpuTimeline> timeline_;
  GpuEvent started_, done_;
};

class GpuQueue final : public Stream::Queue {
 public:
  GpuQueue(std::string name, Priority priority)
      : Queue(std::move(name), priority), timeline_(std::make_shared<GpuTimeline>(gpu(), priority)) {}
  GpuQueue(std::string name, GpuStream of_the_program)
      : Queue(std::move(name), Priority::normal), timeline_(std::make_shared<GpuTimeline>(gpu(), of_the_program)) {}

  // What the tasks hold is in use until they are done.
  ~GpuQueue() override {
    for (const auto& work : under_way_) {
      try {
        work->wait_for_end();
      } catch (const std::exception& error) {  // the same for all that follow
        log().error("Stream '{}' on the GPU ended with an error: {}", name(), error.what());
        break;
      }
    }
    report(failed_);
  }

  void push(const std::shared_ptr<Work::State>& work) override {
    const std::lock_guard lock(mutex_);
    if (recording == nullptr) drop_done();
    if (failed_) return work->run(failed_);
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
    work->go_on(marks);
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
      return;
    }
    const std::lock_guard other_lock(other->mutex);
    if (other->error && !failed_) failed_ = other;
  }

  Device device() const override { return Device::cuda; }
  GpuStream handle() const { return timeline_->stream(); }
  std::shared_ptr<GpuStreamHandle> kept_handle() const { return {timeline_, timeline_->stream()}; }

 private:
  void drop_done() {
    while (!under_way_.empty()) {
      const std::shared_ptr<Work::State> first = under_way_.front();
      if (!first->settle()) return;
      // What it held may have been the last handle of something that came back here.
      if (!under_way_.empty() && under_way_.front() == first) under_way_.pop_front();
    }
  }

  // What a task that failed has put there uses what the task holds.
  static void wait_for_what_is_there(Marks& marks) {
    try {
      marks.end();
      if (!marks.captured() && recording == nullptr) marks.wait_done();
    } catch (const std::exception&) {  // the GPU itself has failed
    }
  }

  // Where a work is done on a GPU; nothing when it is done. Waits for tasks of the host, and for one that another thread is
  // putting in.
  static std::shared_ptr<GpuMarks> marks_of(Work::State& other) {
    std::unique_lock lock(other.mutex);
    if (!other.finished && !other.marks) {
      require(recording == nullptr, "A task of the host was waited for while this thread records a graph; wait before.");
      const double from = now_seconds();
      other.changed.wait(lock, [&] { return other.finished || other.marks; });
      if (!on_worker_thread) other.times.waited += now_seconds() - from;
    }
    return other.marks;
  }

  std::shared_ptr<GpuTimeline> timeline_;
  std::recursive_mutex mutex_;  // a task may put more into its own stream
  std::deque<std::shared_ptr<Work::State>> under_way_;
  std::shared_ptr<Work::State> failed_;
};

}  // namespace

std::shared_ptr<Stream::Queue> gpu_queue(std::string name, Priority priority) {
  require(recording == nullptr, "Stream '{}' cannot be made while this thread records a graph; make it before.", name);
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
  std::function<void()> function;  // with what it holds
  std::shared_ptr<GraphMemory> memory;
  std::vector<std::shared_ptr<Work::State>> works;  // these as well
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
  try {
    captured_->graph = on.end_capture(handle);
  } catch (...) {  // often for the reason that the function stopped
    if (!error) error = std::current_exception();
  }
  recording = nullptr;
  if (error) std::rethrow_exception(error);
  captured_->memory->wait_until_allocated();
}

Work Graph::launch(const Stream& stream) const {
  return stream.enqueue(
      [captured = captured_, handle = handle_of(stream)] { captured->gpu->launch(captured->graph, handle); });
}

}  // namespace stretto
