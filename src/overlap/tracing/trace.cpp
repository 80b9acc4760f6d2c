#include "stretto/overlap/trace.hpp"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "core/fail.hpp"
#include "core/log.hpp"
#include "overlap/tracing/trace_arrows.hpp"
#include "overlap/tracing/trace_clock.hpp"
#include "overlap/tracing/trace_tracks.hpp"
#include "overlap/tracing/trace_write.hpp"
#include "stretto/device.hpp"
#include "stretto/output_file.hpp"

namespace stretto {

// A span between two points of computation().
struct SpanNote {
  std::string name;
  const char* category;
  Work begin;
  std::optional<Work> end;
};

// One rank's notes.
struct TraceNotes {
  Communicator world;  // the trace's own; its operations do not appear in the trace
  std::string clock = clock_name();
  ClockReading first;
  KernelNotes kernels;
  std::vector<SpanNote> spans;
  std::vector<Record> operations;    // only operations that were done when they were copied from the ledger
  std::uint64_t next_operation = 0;  // the ledger's sequence number of the first that is not copied
  std::uint64_t lost = 0;            // operations that the ledger dropped before they were copied
};

namespace {

Work mark_in_computation() {
  return computation().enqueue([] {});
}

}  // namespace

Trace::Trace(const Communicator& world) : notes_(std::make_unique<TraceNotes>()) {
  require(kernel_notes == nullptr, "This thread has a trace already; destroy it before another is made.");
  notes_->world = world.duplicate("trace");
  notes_->first = compare_with_rank_0(notes_->world, notes_->clock, now_seconds);
  notes_->next_operation = world.job().ledger().next_sequence();
  kernel_notes = &notes_->kernels;
}

Trace::~Trace() {
  if (kernel_notes == &notes_->kernels) kernel_notes = nullptr;
}

Trace::Span::Span(Span&& other) noexcept : notes_(std::exchange(other.notes_, nullptr)), index_(other.index_) {}

Trace::Span::~Span() {
  if (notes_ != nullptr) notes_->spans[index_].end = mark_in_computation();
}

Trace::Span Trace::step(std::int64_t number) {
  harvest();
  notes_->spans.push_back({fmt::format("step {}", number), "step", mark_in_computation(), {}});
  return {notes_.get(), notes_->spans.size() - 1};
}

Trace::Span Trace::part(std::string name) {
  notes_->spans.push_back({std::move(name), "part", mark_in_computation(), {}});
  return {notes_.get(), notes_->spans.size() - 1};
}

// Copies the ledger's records up to the first operation that is not done; the next call starts there again.
void Trace::harvest() {
  TraceNotes& notes = *notes_;
  notes.kernels.settle();
  std::vector<Record> records = notes.world.job().ledger().records(notes.next_operation);
  if (records.empty()) return;
  const std::uint64_t oldest = records.front().sequence;
  if (oldest > notes.next_operation) {
    log().warn(
        "A trace has lost {} operations of rank {}, #{} to #{}, which the ledger had dropped; raise STRETTO_LEDGER={} or "
        "mark more steps.",
        oldest - notes.next_operation, notes.world.rank(), notes.next_operation, oldest - 1,
        notes.world.job().ledger().most_records());
    notes.lost += oldest - notes.next_operation;
    notes.next_operation = oldest;
  }
  const auto end = std::find_if(records.begin(), records.end(), [](const Record& record) { return record.times.done == 0; });
  notes.next_operation += static_cast<std::uint64_t>(end - records.begin());
  std::remove_copy_if(std::make_move_iterator(records.begin()), std::make_move_iterator(end),
                      std::back_inserter(notes.operations),
                      [&](const Record& record) { return record.partners->group_id == notes.world.id(); });
}

void Trace::write(const std::string& path) {
  computation().synchronize();  // a GPU's times are known only then
  harvest();
  TraceNotes& notes = *notes_;
  std::vector<NamedSpan> spans;
  for (const SpanNote& note : notes.spans) {
    spans.push_back({note.name, note.category, note.begin.times().done, note.end ? note.end->times().done : 0});
  }
  const double now = now_seconds();
  const ClockLine clock(notes.first, compare_with_rank_0(notes.world, notes.clock, now_seconds));
  const int rank = notes.world.job_ranks()[static_cast<std::size_t>(notes.world.rank())];
  const TraceTracks tracks = lay_out(notes.kernels.spans, notes.operations, spans, clock, now);
  const RankArrows arrows = arrows_of(rank, notes.operations, tracks.slices);
  write_trace(notes.world, {rank, tracks, arrows, notes.lost, clock.error()}, path);
}

void Trace::check_writable(const std::string& path) { check_output_file(path); }

}  // namespace stretto
