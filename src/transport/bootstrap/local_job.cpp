#include <sys/random.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "core/fail.hpp"
#include "transport/bootstrap/job.hpp"

namespace stretto {
namespace {

struct LocalJobState {
  explicit LocalJobState(int size)
      : contributions(size), left(size), goes_on(size), named(size), spared(size), losses(size), observed(size) {
    ensure(getrandom(&identity, sizeof identity, 0) == sizeof identity, "The kernel gives no random number.");
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Bytes> contributions;
  std::shared_ptr<const std::vector<Bytes>> result;  // of the latest complete exchange
  int arrived = 0;
  std::uint64_t exchanges = 0;
  std::uint64_t identity = 0;
  std::vector<bool> left;            // by rank
  std::vector<bool> goes_on, named;  // by rank: has called shrink(); is named as lost there
  std::vector<int> spared;           // by rank: calls of do_without() that need() has not taken back
  std::vector<std::string> losses;   // by rank
  bool has_shrunk = false;
  std::vector<std::unique_ptr<JobControl>> next;  // by rank of this job; null for those that stay behind
  std::vector<int> survivors;
  std::atomic<bool> any_left = false;
  std::atomic<bool> failed = false;
  std::string reason;
  std::vector<std::shared_ptr<Observed>> observed;  // by rank
};

class LocalJob : public JobControl {
 public:
  LocalJob(int rank, int size, std::shared_ptr<LocalJobState> state) : rank_(rank), size_(size), state_(std::move(state)) {
    state_->observed[rank] = observed();
  }

  // A rank that ends without leave() is lost to the others.
  ~LocalJob() override {
    const std::lock_guard lock(state_->mutex);
    if (!state_->left[rank_]) give_up("it ended without a word.");
    note_left();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::uint64_t identity() const override { return state_->identity; }

  std::vector<Bytes> exchange(const Bytes& mine) override {
    std::unique_lock lock(state_->mutex);
    state_->contributions[rank_] = mine;
    const std::uint64_t number = state_->exchanges;
    if (!state_->failed && ++state_->arrived == size_) {
      state_->result = std::make_shared<const std::vector<Bytes>>(state_->contributions);
      state_->arrived = 0;
      ++state_->exchanges;
      state_->changed.notify_all();
    }
    state_->changed.wait(lock, [&] { return state_->exchanges != number || state_->failed; });
    if (state_->exchanges == number) fail(ErrorCode::peer_gave_up, "{}", state_->reason);
    return *state_->result;
  }

  void check() const override {
    if (!state_->failed.load(std::memory_order_acquire) && !any_left()) return;
    const std::lock_guard lock(state_->mutex);
    if (state_->failed) fail(ErrorCode::peer_gave_up, "{}", state_->reason);
    // The others go on without this rank, which has given up.
    if (!state_->losses[rank_].empty()) fail(ErrorCode::peer_gave_up, "{}", state_->losses[rank_]);
  }

  void do_without(const std::vector<int>& ranks) override { spare(ranks, 1); }
  void need(const std::vector<int>& ranks) override { spare(ranks, -1); }
  std::string loss_of(int rank) const override {
    if (!any_left()) return "";
    const std::lock_guard lock(state_->mutex);
    return state_->losses[rank];
  }

  void abort(const std::string& reason) override {
    {
      const std::lock_guard lock(state_->mutex);
      if (!give_up(reason)) return;
    }
    for (const auto& each : state_->observed) each->trouble(state_->reason);
  }

  std::vector<RankAccount> ask(const std::vector<int>& ranks, double /*seconds*/, const OperationId& wanted) override {
    std::vector<RankAccount> accounts;
    accounts.reserve(ranks.size());
    for (const int rank : ranks) accounts.push_back(state_->observed[rank]->account(rank_, wanted));
    return accounts;
  }

  bool any_left() const override { return state_->any_left.load(std::memory_order_relaxed); }
  bool has_left(int rank) const override {
    const std::lock_guard lock(state_->mutex);
    return state_->left[rank];
  }
  std::string news_of(int rank) const override {
    return has_left(rank) ? fmt::format("Rank {} has left the job.", rank) : "";
  }

  void leave(double timeout) override {
    std::unique_lock lock(state_->mutex);
    note_left();
    const auto all_left = [&] { return std::find(state_->left.begin(), state_->left.end(), false) == state_->left.end(); };
    const std::chrono::duration<double> patience(timeout);
    if (!state_->changed.wait_for(lock, patience, [&] { return all_left() || state_->failed; })) {
      lock.unlock();
      return abort(left_early(timeout));
    }
    state_->changed.wait_for(lock, grace_after_failure, all_left);
  }

  Survivors shrink(const std::vector<int>& lost, double patience) override {
    std::unique_lock lock(state_->mutex);
    require(!went_on_, "{}", went_on);
    state_->goes_on[rank_] = true;
    for (const int rank : lost) state_->named[rank] = true;
    state_->changed.notify_all();
    const auto all_known = [&] {
      for (int rank = 0; rank < size_; ++rank) {
        if (!state_->goes_on[rank] && !state_->named[rank] && !state_->left[rank]) return false;
      }
      return true;
    };
    state_->changed.wait_for(lock, std::chrono::duration<double>(patience),
                             [&] { return state_->has_shrunk || all_known(); });
    if (!state_->has_shrunk) divide();
    std::unique_ptr<JobControl> mine = std::move(state_->next[rank_]);
    if (!mine) fail(ErrorCode::peer_gave_up, "{}", left_behind(rank_));
    went_on_ = true;
    return {std::move(mine), state_->survivors};
  }

 private:
  void spare(const std::vector<int>& ranks, int calls) {
    const std::lock_guard lock(state_->mutex);
    for (const int rank : ranks) state_->spared[rank] += rank_ == 0 && rank != 0 ? calls : 0;
  }

  // Called with the mutex held, like the functions below.
  void note_left() {
    state_->left[rank_] = state_->any_left = true;
    state_->changed.notify_all();
  }

  void divide() {
    std::vector<int>& survivors = state_->survivors;
    for (int rank = 0; rank < size_; ++rank) {
      if (state_->goes_on[rank] && !state_->named[rank] && !state_->left[rank]) survivors.push_back(rank);
    }
    std::vector<std::unique_ptr<JobControl>> jobs = make_local_jobs(static_cast<int>(survivors.size()));
    state_->next.resize(static_cast<std::size_t>(size_));
    for (std::size_t i = 0; i < jobs.size(); ++i) state_->next[survivors[i]] = std::move(jobs[i]);
    state_->has_shrunk = true;
    if (!state_->failed) state_->reason = went_on;
    state_->failed.store(true, std::memory_order_release);
    state_->changed.notify_all();
  }

  // Returns whether this is the job's first failure.
  bool give_up(const std::string& reason) {
    if (state_->failed) return false;
    const std::string sentence = fmt::format("Rank {} gave up: {}", rank_, reason);
    if (state_->spared[rank_] > 0) {
      state_->losses[rank_] = sentence;
      note_left();
      return false;
    }
    state_->reason = sentence;
    state_->failed.store(true, std::memory_order_release);
    state_->changed.notify_all();
    return true;
  }

  int rank_;
  int size_;
  bool went_on_ = false;
  std::shared_ptr<LocalJobState> state_;
};

}  // namespace

std::string left_early(double timeout) {
  return fmt::format("it has left the job, and has waited {} s for the others to leave, too.", timeout);
}

std::string left_behind(int rank) { return fmt::format("The other ranks have gone on without rank {}.", rank); }

std::vector<std::unique_ptr<JobControl>> make_local_jobs(int size) {
  const auto state = std::make_shared<LocalJobState>(size);
  std::vector<std::unique_ptr<JobControl>> jobs;
  jobs.reserve(size);
  for (int rank = 0; rank < size; ++rank) jobs.push_back(std::make_unique<LocalJob>(rank, size, state));
  return jobs;
}

}  // namespace stretto
