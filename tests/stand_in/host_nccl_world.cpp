#include "stand_in/host_nccl_world.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "stretto/kernels.hpp"

namespace stretto::host_nccl {
namespace {

using Clock = std::chrono::steady_clock;

Clock::time_point in_seconds(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

bool is_floating(DType dtype) { return is_narrow(dtype) || dtype == DType::f32 || dtype == DType::f64; }

// Reduces elements [first, first + count) of all ranks' inputs. As in NCCL, an average of floats multiplies by 1/size first.
std::vector<std::byte> reduced(const std::vector<GpuCollective>& calls, std::int64_t first, std::int64_t count) {
  const GpuCollective& call = calls[0];
  const auto size = static_cast<std::int64_t>(calls.size());
  const std::size_t bytes = static_cast<std::size_t>(count) * size_of(call.dtype);
  const bool multiplies = call.op == ReduceOp::avg && is_floating(call.dtype);
  std::vector<std::vector<std::byte>> multiplied;
  std::vector<const void*> sources;
  for (const GpuCollective& each : calls) {
    const std::byte* const source = each.input + static_cast<std::size_t>(first) * size_of(call.dtype);
    sources.push_back(source);
    if (!multiplies) continue;
    multiplied.emplace_back(bytes);
    kernels::multiply(call.dtype, source, multiplied.back().data(), count, 1.0 / static_cast<double>(size));
  }
  for (std::size_t i = 0; i < multiplied.size(); ++i) sources[i] = multiplied[i].data();
  std::vector<std::byte> result(bytes);
  const bool divides = call.op == ReduceOp::avg && !multiplies;
  kernels::reduce_all(call.op, call.dtype, sources.data(), static_cast<int>(size), result.data(), count, divides ? size : 1);
  return result;
}

}  // namespace

void Report::note(const std::string& sentence) {
  const std::lock_guard lock(mutex_);
  sentences_.push_back(sentence);
}

std::vector<std::string> Report::all() const {
  const std::lock_guard lock(mutex_);
  return sentences_;
}

std::string text_of(const GpuCollective& call) {
  std::string text = fmt::format("{} of {} {}", name(call.collective), call.count, name(call.dtype));
  if (reduces(call.collective)) text += fmt::format(" by {}", name(call.op));
  if (has_root(call.collective)) text += fmt::format(", root {}", call.root);
  return text;
}

std::int64_t input_counts(const GpuCollective& call, int rank, int size) {
  switch (call.collective) {
    case Collective::reduce_scatter:
    case Collective::all_to_all: return size;
    case Collective::broadcast: return rank == call.root ? 1 : 0;
    default: return 1;
  }
}

std::int64_t output_counts(const GpuCollective& call, int rank, int size) {
  switch (call.collective) {
    case Collective::all_gather:
    case Collective::all_to_all: return size;
    case Collective::reduce: return rank == call.root ? 1 : 0;
    default: return 1;
  }
}

World::World(int ranks, double seconds, std::shared_ptr<Report> report)
    : size(ranks),
      timeout(seconds),
      joined(static_cast<std::size_t>(size)),
      report_(std::move(report)),
      boxes_(static_cast<std::size_t>(size) * size) {}

void World::ask_for_connections(int rank, const Batch& batch) {
  for (const GpuMessage& message : batch.messages) asked_.emplace(rank, message.peer);
  if (!batch.collectives.empty()) asked_.emplace(rank, everybody);
}

bool World::connected(int rank, const Batch& batch) const {
  for (const GpuMessage& message : batch.messages) {
    if (!asked_.contains({message.peer, rank})) return false;
  }
  for (int other = 0; other < size && !batch.collectives.empty(); ++other) {
    if (!asked_.contains({other, everybody})) return false;
  }
  return true;
}

void World::fail(const std::string& sentence) {
  report_->note(sentence);
  if (failure_.empty()) failure_ = sentence;
  changed.notify_all();
}

void World::run(Member& member, const Batch& batch) {
  Lock lock(mutex);
  const bool early = !batch.captured && batch.number != member.finished && !ended(member);
  if ((member.running_in != nullptr && member.running_in != batch.stream) || early) {
    fail(
        fmt::format("Rank {} has operations of one communicator in several streams, and one began before the one called "
                    "earlier was done; let one stream wait for the other.",
                    member.rank));
  }
  member.running_in = batch.stream;
  for (const GpuCollective& call : batch.collectives) {
    if (!ended(member)) meet(member, call, lock);
  }
  if (!ended(member)) exchange(member, batch.messages, lock);
  if (!member.aborted) member.failure = failure_;
  member.running_in = nullptr;
  if (!batch.captured) ++member.finished;
  changed.notify_all();
}

void World::meet(Member& member, const GpuCollective& call, Lock& lock) {
  const std::uint64_t number = member.collectives++;
  Meeting& meeting = meetings_[number];
  meeting.calls.resize(static_cast<std::size_t>(size));
  meeting.came.resize(static_cast<std::size_t>(size));
  meeting.calls[member.rank] = call;
  meeting.came[member.rank] = true;
  if (std::count(meeting.came.begin(), meeting.came.end(), true) == size) {
    for (int rank = 1; rank < size; ++rank) {
      const std::string first = text_of(meeting.calls[0]);
      const std::string other = text_of(meeting.calls[rank]);
      if (first == other) continue;
      return fail(fmt::format("Ranks 0 and {} differ in collective {}: {}, and {}.", rank, number, first, other));
    }
    compute(meeting.calls);
    meeting.done = true;
    changed.notify_all();
  }
  const bool in_time = changed.wait_until(lock, in_seconds(timeout), [&] { return meeting.done || ended(member); });
  if (!in_time) {
    std::vector<int> missing;
    for (int rank = 0; rank < size; ++rank) {
      if (!meeting.came[rank]) missing.push_back(rank);
    }
    return fail(fmt::format("Rank {} has waited {} s in {} (collective {}) for rank {}.", member.rank, timeout,
                            text_of(call), number, fmt::join(missing, ", ")));
  }
  if (!meeting.done) return;
  if (++meeting.left == size) meetings_.erase(number);
}

void World::compute(const std::vector<GpuCollective>& calls) {
  const GpuCollective& call = calls[0];
  const std::size_t share = static_cast<std::size_t>(call.count) * size_of(call.dtype);
  // In place, an output may be an input of other ranks, so all results are computed before any is written.
  std::vector<std::vector<std::byte>> results(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    std::vector<std::byte>& result = results[rank];
    const auto append = [&](const std::byte* from) { result.insert(result.end(), from, from + share); };
    switch (call.collective) {
      case Collective::all_reduce: result = reduced(calls, 0, call.count); break;
      case Collective::reduce:
        if (rank == call.root) result = reduced(calls, 0, call.count);
        break;
      case Collective::reduce_scatter: result = reduced(calls, call.count * rank, call.count); break;
      case Collective::all_gather:
        for (const GpuCollective& each : calls) append(each.input);
        break;
      case Collective::all_to_all:
        for (const GpuCollective& each : calls) append(each.input + share * static_cast<std::size_t>(rank));
        break;
      case Collective::broadcast: append(calls[call.root].input); break;
      default: break;
    }
  }
  for (int rank = 0; rank < size; ++rank) {
    if (!results[rank].empty()) std::memcpy(calls[rank].output, results[rank].data(), results[rank].size());
  }
}

void World::exchange(Member& member, const std::vector<GpuMessage>& messages, Lock& lock) {
  std::vector<std::pair<int, std::shared_ptr<Post>>> sent;
  std::deque<GpuMessage> wanted;
  for (const GpuMessage& message : messages) {
    if (!message.sends) {
      wanted.push_back(message);
      continue;
    }
    sent.emplace_back(message.peer, std::make_shared<Post>(Post{message.data, message.bytes, false}));
    box(member.rank, message.peer).push_back(sent.back().second);
  }
  changed.notify_all();
  auto end = in_seconds(timeout);
  while (!ended(member)) {
    bool moved = false;
    std::vector<bool> blocked(static_cast<std::size_t>(size));
    for (auto one = wanted.begin(); one != wanted.end();) {
      auto& posts = box(one->peer, member.rank);
      if (blocked[one->peer] || posts.empty()) {
        blocked[one->peer] = true;
        ++one;
        continue;
      }
      Post& post = *posts.front();
      if (post.bytes != one->bytes) {
        fail(fmt::format("Rank {} sends {} bytes to rank {}, which receives {}.", one->peer, post.bytes, member.rank,
                         one->bytes));
        break;
      }
      if (post.bytes > 0) std::memmove(one->data, post.data, post.bytes);
      post.taken = true;
      posts.pop_front();
      one = wanted.erase(one);
      moved = true;
    }
    const std::size_t before = sent.size();
    std::erase_if(sent, [](const auto& each) { return each.second->taken; });
    if (moved) changed.notify_all();
    if (wanted.empty() && sent.empty()) return;
    if (moved || sent.size() < before) end = in_seconds(timeout);
    if (changed.wait_until(lock, end) == std::cv_status::no_timeout || ended(member)) continue;
    std::vector<std::string> waits;
    for (const GpuMessage& one : wanted) waits.push_back(fmt::format("for {} bytes from rank {}", one.bytes, one.peer));
    for (const auto& [peer, post] : sent) waits.push_back(fmt::format("for rank {} to receive {} bytes", peer, post->bytes));
    fail(fmt::format("Rank {} has waited {} s {}.", member.rank, timeout, fmt::join(waits, " and ")));
  }
  for (const auto& [peer, post] : sent) std::erase(box(member.rank, peer), post);  // its data must not be read any more
}

}  // namespace stretto::host_nccl
