#include "stand_in/host_gpu.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "core/fail.hpp"

namespace stretto {
namespace {

std::uintptr_t next_number() {
  static std::atomic<std::uintptr_t> last = 0;
  return ++last;
}

thread_local std::uint64_t put_by_thread = 0;

std::uintptr_t number_of(const void* handle) { return reinterpret_cast<std::uintptr_t>(handle); }

// Destructors call these functions, so they must not throw; the violation is kept.
template <class Function>
void without_throwing(Function function) {
  try {
    function();
  } catch (const Error&) {
  }
}

}  // namespace

struct HostGpu::Capture {
  Number origin;
  std::thread::id thread;
  Functions functions;             // in the order of the calls, which satisfies all waits
  std::map<Number, Seen> streams;  // the streams that take part
  bool ended = false;
};

HostGpu::HostGpu(const HostGpuOptions& options, std::unique_ptr<GpuKernels> kernels)
    : options_(options),
      info_{"stand-in of threads", 0, 9, 0, std::size_t{1} << 36, 1, fmt::format("stand-in-{}", next_number())},
      kernels_(std::move(kernels)) {
  if (kernels_ == nullptr) kernels_ = std::make_unique<HostKernels>(*this);
}

// Streams may wait for each other, so all are closed before any is joined.
HostGpu::~HostGpu() {
  for (const auto& [number, each] : queues_) each.stream->close();
  for (const auto& each : ending_) each->close();
}

// ---- Rules

void HostGpu::violate(const std::string& sentence) {
  {
    const std::lock_guard lock(violations_mutex_);
    violations_.push_back(sentence);
  }
  throw Error(ErrorCode::internal, sentence);
}

std::vector<std::string> HostGpu::violations() const {
  const std::lock_guard lock(violations_mutex_);
  return violations_;
}

HostGpu::Queue& HostGpu::queue(GpuStream stream, const char* who) {
  const auto found = queues_.find(number_of(stream));
  if (found == queues_.end()) {
    violate(fmt::format("{} got stream {}, which was destroyed or is another GPU's.", who, number_of(stream)));
  }
  return found->second;
}

HostGpu::EventRecord& HostGpu::latest_record(GpuEvent event, const char* who) {
  const auto found = events_.find(number_of(event));
  if (found == events_.end()) {
    violate(fmt::format("{} got event {}, which was destroyed or is another GPU's.", who, number_of(event)));
  }
  return found->second;
}

void HostGpu::require_no_capture_here(const char* who) {
  if (capturing_threads_.contains(std::this_thread::get_id())) {
    violate(
        fmt::format("{} was called by a thread that captures a graph; nothing may be asked or waited for meanwhile.", who));
  }
}

void HostGpu::require_memory(const char* who, const void* first, std::size_t bytes) {
  if (bytes > 0 && !is_here(first, bytes)) {
    violate(fmt::format("{} got {} bytes at {} that are not in this GPU's memory, or were released.", who, bytes, first));
  }
}

void HostGpu::throw_if_failed() const {
  if (const std::string what = failure_->what(); !what.empty()) throw Error(ErrorCode::unavailable, what);
}

// ---- Streams

std::size_t HostGpu::streams_in_use() const {
  const std::lock_guard lock(mutex_);
  return queues_.size();
}

std::size_t HostGpu::events_in_use() const {
  const std::lock_guard lock(mutex_);
  return events_.size();
}

GpuStream HostGpu::create_stream(Priority /*priority*/) {
  const Number number = next_number();
  const auto stream =
      std::make_shared<HostStream>(failure_, HostStream::Delays{options_.seed * 7919 + number, options_.longest_delay_us});
  const std::lock_guard lock(mutex_);
  join_ended();
  queues_[number].stream = stream;
  return reinterpret_cast<GpuStream>(number);
}

void HostGpu::destroy(GpuStream stream) {
  without_throwing([&] {
    const std::lock_guard lock(mutex_);
    const Queue& ends = queue(stream, "destroy");
    if (ends.capture) violate("destroy got a stream that takes part in a capture.");
    ends.stream->close();
    ending_.push_back(ends.stream);
    queues_.erase(number_of(stream));
  });
}

void HostGpu::join_ended() {
  std::erase_if(ending_, [](const auto& stream) { return stream->ended(); });
}

std::uint64_t HostGpu::put_by_this_thread() { return put_by_thread; }

void HostGpu::put(GpuStream stream, std::function<void()> function) {
  ++put_by_thread;
  const std::lock_guard lock(mutex_);
  put_into(queue(stream, "put"), number_of(stream), std::move(function));
}

void HostGpu::put_into(Queue& queue, Number number, std::function<void()> function) {
  if (!queue.capture) return queue.stream->put(std::move(function));
  queue.capture->functions.push_back(std::move(function));
  ++queue.capture->streams[number][number];
}

// ---- Events

GpuEvent HostGpu::create_event() {
  const Number number = next_number();
  const std::lock_guard lock(mutex_);
  events_[number];
  return reinterpret_cast<GpuEvent>(number);
}

void HostGpu::destroy(GpuEvent event) {
  without_throwing([&] {
    const std::lock_guard lock(mutex_);
    latest_record(event, "destroy");
    events_.erase(number_of(event));
  });
}

void HostGpu::record(GpuEvent event, GpuStream stream) {
  ++put_by_thread;
  const std::lock_guard lock(mutex_);
  EventRecord& here = latest_record(event, "record");
  Queue& in = queue(stream, "record");
  if (in.capture) {
    here = {nullptr, in.capture, in.capture->streams[number_of(stream)]};
    return;
  }
  here = {std::make_shared<Marker>(), nullptr, {}};
  in.stream->put([marker = here.marker] { marker->reach(now_seconds()); }, true);
}

void HostGpu::wait(GpuStream stream, GpuEvent event) {
  ++put_by_thread;
  const std::lock_guard lock(mutex_);
  const EventRecord& there = latest_record(event, "wait");
  Queue& here = queue(stream, "wait");
  if (there.capture) {
    if (there.capture->ended || (here.capture && here.capture != there.capture)) {
      violate("wait got an event that was recorded in another capture; wait for a launch of the graph.");
    }
    const auto [joined, is_new] = there.capture->streams.try_emplace(number_of(stream));
    here.capture = there.capture;
    Seen& seen = joined->second;
    for (const auto& [number, count] : there.seen) seen[number] = std::max(seen[number], count);
    if (is_new) seen[number_of(stream)] = 1;  // the capture's stream must wait for this one even if it does nothing
    return;
  }
  if (!there.marker) return;
  if (here.capture) violate("A stream that takes part in a capture got an event to wait for that was recorded outside.");
  if (!options_.ignores_waits) here.stream->put([marker = there.marker] { marker->wait(); }, true);
}

std::shared_ptr<Marker> HostGpu::marker_to_ask(GpuEvent event, const char* who) {
  const std::lock_guard lock(mutex_);
  const EventRecord& there = latest_record(event, who);
  require_no_capture_here(who);
  if (there.capture) violate(fmt::format("{} got an event that was recorded in a capture.", who));
  return there.marker;
}

bool HostGpu::reached(GpuEvent event) {
  const auto marker = marker_to_ask(event, "reached");
  throw_if_failed();
  return options_.foresees_events || !marker || marker->reached();
}

void HostGpu::synchronize(GpuEvent event) {
  const auto marker = marker_to_ask(event, "synchronize");
  if (marker) marker->wait();
  throw_if_failed();
}

double HostGpu::seconds_between(GpuEvent earlier, GpuEvent later) {
  const auto from = marker_to_ask(earlier, "seconds_between");
  const auto to = marker_to_ask(later, "seconds_between");
  if (!from || !to || !from->reached() || !to->reached()) violate("seconds_between got an event that is not reached.");
  return to->seconds() - from->seconds();
}

void HostGpu::wait_until_here(GpuStream stream, const char* who) {
  const auto marker = std::make_shared<Marker>();
  {
    const std::lock_guard lock(mutex_);
    const Queue& in = queue(stream, who);
    require_no_capture_here(who);
    if (in.capture) violate(fmt::format("{} would wait for a stream that takes part in a capture.", who));
    in.stream->put([marker] { marker->reach(now_seconds()); }, true);
  }
  marker->wait();
  throw_if_failed();
}

// ---- Memory

std::byte* HostGpu::allocate(std::size_t bytes, GpuStream stream) {
  const std::lock_guard lock(mutex_);
  const Queue& in = queue(stream, "allocate");
  if (in.capture) violate("allocate was called for a stream that takes part in a capture.");
  std::byte* const block = memory_.take(bytes);
  in.stream->put([block, bytes] { HostMemory::poison(block, bytes); });
  return block;
}

void HostGpu::release(std::byte* memory, GpuStream stream) {
  without_throwing([&] {
    const std::lock_guard lock(mutex_);
    const Queue& in = queue(stream, "release");
    if (in.capture) violate("release was called for a stream that takes part in a capture.");
    if (!memory_.holds(memory, 1)) violate("release got memory that is not this GPU's, or was released.");
    const std::size_t bytes = memory_.forget(memory);
    in.stream->put(
        [this, memory, bytes] {
          HostMemory::poison(memory, bytes);
          memory_.give_back(memory, bytes);
        },
        true);
  });
}

std::byte* HostGpu::allocate_pinned(std::size_t bytes) {
  std::byte* const block = pinned_.take(bytes);
  HostMemory::poison(block, bytes);
  return block;
}

void HostGpu::release_pinned(std::byte* memory) {
  without_throwing([&] {
    const std::size_t bytes = pinned_.holds(memory, 1) ? pinned_.forget(memory) : 0;
    if (bytes == 0) violate("release_pinned got memory that is not pinned, or was released.");
    HostMemory::poison(memory, bytes);
    pinned_.give_back(memory, bytes);
  });
}

void HostGpu::release_shared(std::byte* memory) {
  without_throwing([&] {
    if (const std::string broken = sharing_.release(memory); !broken.empty()) violate(broken);
  });
}

std::byte* HostGpu::open_shared(const GpuShareHandle& handle) {
  if (options_.cannot_open) throw Error(ErrorCode::unavailable, "This GPU opens no other process's memory.");
  std::string broken;
  std::byte* const memory = sharing_.open(handle, broken);
  if (!broken.empty()) violate(broken);
  return memory;
}

void HostGpu::close_shared(std::byte* memory) {
  without_throwing([&] {
    if (const std::string broken = sharing_.close(memory); !broken.empty()) violate(broken);
  });
}

void HostGpu::copy(void* to, const void* from, std::size_t bytes, GpuStream stream) {
  const auto is_ordered = [&](const void* memory) { return is_device_memory(memory) || pinned_.holds(memory, bytes); };
  const bool both_here = is_ordered(to) && is_ordered(from);
  if (is_device_memory(to)) require_memory("copy", to, bytes);
  if (is_device_memory(from)) require_memory("copy", from, bytes);
  if (!both_here) {
    const std::lock_guard lock(mutex_);
    require_no_capture_here("copy from or to ordinary host memory");
    if (queue(stream, "copy").capture) violate("copy from or to ordinary host memory cannot become part of a graph.");
  }
  put(stream, [to, from, bytes] { std::memmove(to, from, bytes); });
  if (!both_here) wait_until_here(stream, "copy");
}

void HostGpu::copy_rows(void* to, std::size_t to_step, const void* from, std::size_t from_step, std::size_t bytes,
                        std::int64_t rows, GpuStream stream) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto i = static_cast<std::size_t>(row);
    copy(static_cast<std::byte*>(to) + i * to_step, static_cast<const std::byte*>(from) + i * from_step, bytes, stream);
  }
}

void HostGpu::zero(void* memory, std::size_t bytes, GpuStream stream) {
  require_memory("zero", memory, bytes);
  put(stream, [memory, bytes] { std::memset(memory, 0, bytes); });
}

// ---- Graphs

void HostGpu::begin_capture(GpuStream stream) {
  const std::lock_guard lock(mutex_);
  Queue& in = queue(stream, "begin_capture");
  require_no_capture_here("begin_capture");
  if (in.capture) violate("begin_capture got a stream that takes part in a capture.");
  in.capture = std::make_shared<Capture>();
  in.capture->origin = number_of(stream);
  in.capture->thread = std::this_thread::get_id();
  in.capture->streams[in.capture->origin];
  capturing_threads_.insert(in.capture->thread);
}

bool HostGpu::is_capturing(GpuStream stream) {
  const std::lock_guard lock(mutex_);
  return queue(stream, "is_capturing").capture != nullptr;
}

GpuGraph HostGpu::end_capture(GpuStream stream) {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<Capture> capture = queue(stream, "end_capture").capture;
  if (!capture || capture->origin != number_of(stream)) violate("end_capture got a stream that began no capture.");
  if (capture->thread != std::this_thread::get_id()) violate("end_capture was called by another thread than begin_capture.");
  capture->ended = true;
  capturing_threads_.erase(capture->thread);
  const Seen& joined = capture->streams[capture->origin];
  std::size_t forgotten = 0;
  for (const auto& [number, seen] : capture->streams) {
    if (const auto found = queues_.find(number); found != queues_.end()) found->second.capture = nullptr;
    const auto own = seen.find(number);
    const auto known = joined.find(number);
    if (own != seen.end() && (known == joined.end() || known->second < own->second)) ++forgotten;
  }
  if (forgotten > 0) {
    violate(fmt::format("At the end of a capture its stream has not waited for {} of those that took part.", forgotten));
  }
  const Number number = next_number();
  graphs_[number].functions = std::make_shared<const Functions>(std::move(capture->functions));
  return reinterpret_cast<GpuGraph>(number);
}

void HostGpu::launch(GpuGraph graph, GpuStream stream) {
  const std::lock_guard lock(mutex_);
  const auto found = graphs_.find(number_of(graph));
  if (found == graphs_.end()) violate("launch got a graph that was destroyed or is another GPU's.");
  Queue& in = queue(stream, "launch");
  // Launches of one graph follow each other, also in different streams.
  if (const auto before = found->second.last_launch; before && !in.capture) {
    in.stream->put([before] { before->wait(); }, true);
  }
  const auto functions = found->second.functions;
  for (std::size_t i = 0; i < functions->size(); ++i) {
    put_into(in, number_of(stream), [functions, i] { (*functions)[i](); });
  }
  if (in.capture) return;
  const auto done = found->second.last_launch = std::make_shared<Marker>();
  in.stream->put([done] { done->reach(now_seconds()); }, true);
}

void HostGpu::destroy(GpuGraph graph) {
  without_throwing([&] {
    const std::lock_guard lock(mutex_);
    if (graphs_.erase(number_of(graph)) == 0) violate("destroy got a graph that was destroyed or is another GPU's.");
  });
}

}  // namespace stretto
