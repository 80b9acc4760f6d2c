// A stream on a GPU: its tasks put kernels and copies there and return; events tell when the GPU has come to them.
#include <deque>
#include <vector>

#include "core/log.hpp"
#include "device/computing_in.hpp"
#include "device/gpu.hpp"
#include "device/stream_queue.hpp"

namespace stretto {
namespace {

// While this thread records a graph: where the works go that are part of it.
thread_local std::vector<std::shared_ptr<Work::State>>* kept_for_graph = nullptr;

// A GPU's stream and its events; lives as long as anybody may ask for one of these.
class GpuTimeline {
 public:
  GpuTimeline(Gpu& gpu, Priority priority) : gpu_(gpu), stream_(gpu.create_stream(priority)), clock_(gpu.create_event()) {
    gpu_.record(clock_, stream_);
    gpu_.synchronize(clock_);
    clock_seconds_ = now_seconds();
  }
  ~GpuTimeline() {
    gpu_.destroy(clock_);
    for (const GpuEvent event : unused_) gpu_.destroy(event);
    gpu_.destroy(stream_);
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
  Gpu& gpu_;
  GpuStream stream_;
  GpuEvent clock_;  // reached at this time of the host's clock
  double clock_seconds_ = 0;
  std::mutex mutex_;
  std::vector<GpuEvent> unused_;
};

class Marks final : public GpuMarks {
 public:
  explicit Marks(std::shared_ptr<GpuTimeline> timeline)
      : captured_(timeline->gpu().is_capturing(timeline->stream())),
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
  void begin() { timeline_->gpu().record(started_, timeline_->stream()); }
  void end() { timeline_->gpu().record(done_, timeline_->stream()); }
  GpuEvent done_event() const { return done_; }

  bool started() override { return !captured_ && timeline_->gpu().reached(started_); }
  bool done() override { return !captured_ && timeline_->gpu().reached(done_); }
  void wait_started() override { wait(started_); }
  void wait_done() override { wait(done_); }
  WorkTimes times(double enqueued) override {
    return {enqueued, timeline_->seconds_at(started_), timeline_->seconds_at(done_), 0};
  }

 private:
  void wait(GpuEvent event) {
    require(!captured_, "A work that became part of a graph was waited for; wait for a launch of the graph.");
    timeline_->gpu().synchronize(event);
  }

  bool captured_;
  std::shared_ptr<GpuTimeline> timeline_;
  GpuEvent started_, done_;
};

class GpuQueue final : public Stream::Queue {
 public:
  GpuQueue(std::string name, Priority priority)
      : Queue(std::move(name), priority), timeline_(std::make_shared<GpuTimeline>(gpu(), priority)) {}

  // What the tasks hold is in use until they are done.
  ~GpuQueue() override {
    try {
      for (const auto& work : under_way_) work->wait_for_end();
    } catch (const std::exception& error) {
      log().error("Stream '{}' on the GPU ended with an error: {}", name(), error.what());
    }
    report(failed_);
  }

  void push(const std::shared_ptr<Work::State>& work) override {
    const std::lock_guard lock(mutex_);
    drop_done();
    if (failed_) return work->run(failed_);
    const auto marks = std::make_shared<Marks>(timeline_);
    marks->begin();
    try {
      const ComputingIn scope{Stream(shared_from_this())};
      work->task();
    } catch (...) {
      const std::exception_ptr error = std::current_exception();
      marks->end();
      if (!marks->captured()) marks->wait_done();  // what is there already uses what the task holds
      failed_ = work;
      return work->end(error);
    }
    marks->end();
    work->go_on(marks);
    if (!marks->captured()) {
      under_way_.push_back(work);
    } else if (kept_for_graph != nullptr) {
      kept_for_graph->push_back(work);
    }
  }

  void wait(const Work& work) override {
    const std::shared_ptr<Work::State>& other = work.state();
    if (!other) return;
    std::shared_ptr<GpuMarks> marks;
    std::exception_ptr error;
    {
      std::unique_lock lock(other->mutex);
      const double from = now_seconds();
      if (!other->finished && !other->marks) {  // a task of the host, or one that another thread is putting in
        other->changed.wait(lock, [&] { return other->finished || other->marks; });
        other->times.waited += now_seconds() - from;
      }
      marks = other->marks;
      error = other->error;
    }
    const std::lock_guard lock(mutex_);
    if (marks) timeline_->gpu().wait(timeline_->stream(), static_cast<const Marks&>(*marks).done_event());
    if (error && !failed_) failed_ = other;
  }

  Device device() const override { return Device::cuda; }
  GpuStream handle() const { return timeline_->stream(); }

 private:
  void drop_done() {
    while (!under_way_.empty() && under_way_.front()->settle()) under_way_.pop_front();
  }

  std::shared_ptr<GpuTimeline> timeline_;
  std::recursive_mutex mutex_;  // a task may put more into its own stream
  std::deque<std::shared_ptr<Work::State>> under_way_;
  std::shared_ptr<Work::State> failed_;
};

}  // namespace

std::shared_ptr<Stream::Queue> gpu_queue(std::string name, Priority priority) {
  return std::make_shared<GpuQueue>(std::move(name), priority);
}

GpuStream handle_of(const Stream& stream) {
  require(stream.device() == Device::cuda, "Stream '{}' belongs to the host; give one of a GPU.", stream.name());
  return static_cast<const GpuQueue&>(*stream.queue()).handle();
}

// ---- graphs

struct Graph::Captured {
  Gpu* gpu = nullptr;
  GpuGraph graph = nullptr;
  std::vector<std::shared_ptr<Work::State>> works;  // with what they hold
  ~Captured() {
    if (graph != nullptr) gpu->destroy(graph);
  }
};

Graph::Graph(const Stream& stream, const std::function<void()>& function) : captured_(std::make_shared<Captured>()) {
  const GpuStream handle = handle_of(stream);
  captured_->gpu = &gpu();
  captured_->gpu->begin_capture(handle);
  auto* const before = std::exchange(kept_for_graph, &captured_->works);
  std::exception_ptr error;
  try {
    const ComputingIn scope(stream);
    function();
  } catch (...) {
    error = std::current_exception();
  }
  kept_for_graph = before;
  captured_->graph = captured_->gpu->end_capture(handle);
  if (error) std::rethrow_exception(error);
}

Work Graph::launch(const Stream& stream) const {
  return stream.enqueue(
      [captured = captured_, handle = handle_of(stream)] { captured->gpu->launch(captured->graph, handle); });
}

}  // namespace stretto
