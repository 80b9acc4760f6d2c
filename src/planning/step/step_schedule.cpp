// A schedule's description in words.
#include <algorithm>
#include <set>

#include <fmt/ranges.h>

#include "core/fail.hpp"
#include "stretto/planning/planner.hpp"

namespace stretto {

const char* name(Form form) { return form == Form::whole ? "whole" : "by_level"; }

std::string to_string(const Partition& partition) {
  return partition.chunks == 1 ? name(partition.form) : fmt::format("{}/{}", name(partition.form), partition.chunks);
}

CollectiveKind kind_of(const StepNode& node) {
  const StepCollective& own = *node.collective;
  return {own.payload, node.phase, own.kind, own.payload == Payload::gradient ? 0 : own.elements, own.group};
}

std::string to_string(const CollectiveKind& kind) {
  return fmt::format("{} {} in {}{} over {} ranks", name(kind.kind), name(kind.payload), name(kind.phase),
                     kind.elements > 0 ? fmt::format(" of {} elements", kind.elements) : "", kind.group.size);
}

std::string to_string(const StepStage& stage) {
  const char* const where[] = {"", " inside nodes", " between nodes"};
  return fmt::format("{} by {}{}, {} ranks, {:.1f} us", name(stage.collective), to_string(stage.method),
                     where[static_cast<int>(stage.level)], stage.ranks, stage.seconds * 1e6);
}

std::string StepSchedule::choice() const {
  if (knobs.blocking) return "blocking";
  std::map<std::string, std::set<int>> chunks;  // by payload and form
  for (const auto& [kind, partition] : knobs.partitions) {
    chunks[fmt::format("{} {}", name(kind.payload), name(partition.form))].insert(partition.chunks);
  }
  std::vector<std::string> words;
  words.reserve(chunks.size());
  for (const auto& [what, counts] : chunks) {
    words.push_back(counts == std::set<int>{1} ? what : fmt::format("{}/{}", what, fmt::join(counts, " or ")));
  }
  bool gathers = false;
  int buckets = 0;
  for (const ScheduledCollective& each : collectives) {
    gathers |= each.kind.payload == Payload::parameter;
    buckets = std::max(buckets, each.bucket + 1);
  }
  if (buckets > 0) words.push_back(fmt::format("{} bucket{}", buckets, buckets == 1 ? "" : "s"));
  const auto postponed = std::count(knobs.postponed.begin(), knobs.postponed.end(), true);
  if (postponed > 0) words.push_back(fmt::format("{} postponed", postponed));
  if (gathers) words.push_back(fmt::format("{} ahead", knobs.ahead));
  if (knobs.early) words.emplace_back("dgrad first");
  return words.empty() ? "nothing partitioned" : fmt::format("{}", fmt::join(words, ", "));
}

namespace {

// Everything but the name and the position in the step.
std::string what_is_done(const ScheduledCollective& of) {
  std::string text =
      fmt::format("{} {} of {} bytes over {} ranks, {}, on stream {} ({})", name(of.kind.phase), name(of.kind.kind),
                  of.bytes, of.kind.group.size, to_string(of.partition), of.stream, name(of.priority));
  if (of.nodes.size() > 1) text += fmt::format("; {} gradients", of.nodes.size());
  if (of.method.algorithm != Algorithm::automatic) text += fmt::format("; as {}", to_string(of.method));
  text += "\n";
  for (const StepStage& stage : of.stages) text += fmt::format("  {}\n", to_string(stage));
  for (const StepStage& stage : of.postponed) text += fmt::format("  next forward: {}\n", to_string(stage));
  return text;
}

// "computed in 4 chunks: 3 nodes, 1, 5, 9"
std::string chunked_text(const std::map<int, int>& chunks_of) {
  std::map<int, std::vector<int>> by_count;
  for (const auto& [node, chunks] : chunks_of) by_count[chunks].push_back(node);
  std::string text;
  for (const auto& [chunks, nodes] : by_count) {
    text += fmt::format("computed in {} chunks: {} nodes, {}\n", chunks, nodes.size(), fmt::join(nodes, ", "));
  }
  return text;
}

// "0-3 5 of 8"; for many runs only their number: "40 in 20 runs of 64".
std::string runs_text(const std::vector<bool>& flags) {
  constexpr std::size_t most_runs = 16;
  std::vector<std::string> runs;
  std::size_t count = 0;
  for (std::size_t begin = 0; begin < flags.size(); ++begin) {
    if (!flags[begin]) continue;
    std::size_t last = begin;
    while (last + 1 < flags.size() && flags[last + 1]) ++last;
    runs.push_back(begin == last ? fmt::format("{}", begin) : fmt::format("{}-{}", begin, last));
    count += last - begin + 1;
    begin = last;
  }
  if (runs.empty()) return "none";
  if (runs.size() > most_runs) return fmt::format("{} in {} runs of {}", count, runs.size(), flags.size());
  return fmt::format("{} of {}", fmt::join(runs, " "), flags.size());
}

}  // namespace

std::string StepSchedule::to_string() const {
  std::string text = fmt::format("step {:.3f} ms: {}\n", predicted_seconds * 1e3, choice());
  text += fmt::format("busy: computing {:.3f} ms, links inside nodes {:.3f} ms, between nodes {:.3f} ms\n",
                      computing_seconds * 1e3, inside_seconds * 1e3, between_seconds * 1e3);
  text += fmt::format("knobs: bucket_bytes {}, first_bucket_bytes {}, postponed {}, ahead {}\n", knobs.bucket_bytes,
                      knobs.first_bucket_bytes, runs_text(knobs.postponed), knobs.ahead);
  for (std::size_t i = 0; i < collectives.size(); ++i) {
    const ScheduledCollective& each = collectives[i];
    const auto is_like_it = [&](const ScheduledCollective& other) { return what_is_done(other) == what_is_done(each); };
    const auto begin = collectives.begin();
    if (std::any_of(begin, begin + static_cast<std::ptrdiff_t>(i), is_like_it)) continue;
    text += each.name + ": " + what_is_done(each);
    std::vector<std::string> issued;
    for (const ScheduledCollective& other : collectives) {
      if (is_like_it(other)) issued.push_back(other.issued_after < 0 ? "begin" : fmt::format("{}", other.issued_after));
    }
    text += fmt::format("  {}issued after node {}\n", issued.size() > 1 ? fmt::format("{} like it, ", issued.size()) : "",
                        fmt::join(issued, ", "));
  }
  text += chunked_text(compute_chunks);
  for (const std::string& reason : reasons) text += fmt::format("because: {}\n", reason);
  return text;
}

}  // namespace stretto
