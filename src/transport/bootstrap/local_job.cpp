#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "core/fail.hpp"
#include "transport/bootstrap/job.hpp"

namespace stretto {
namespace {

struct Board {
  explicit Board(int size) : contributions(size) {}

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Bytes> contributions;
  std::shared_ptr<const std::vector<Bytes>> result;  // of the latest complete exchange
  int arrived = 0;
  std::uint64_t exchanges = 0;
  int left = 0;
  std::atomic<bool> failed = false;
  std::string reason;
};

class LocalJob : public Job {
 public:
  LocalJob(int rank, int size, std::shared_ptr<Board> board) : rank_(rank), size_(size), board_(std::move(board)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::vector<Bytes> exchange(const Bytes& mine) override {
    std::unique_lock lock(board_->mutex);
    board_->contributions[rank_] = mine;
    const std::uint64_t number = board_->exchanges;
    if (++board_->arrived == size_) {
      board_->result = std::make_shared<const std::vector<Bytes>>(board_->contributions);
      board_->arrived = 0;
      ++board_->exchanges;
      board_->changed.notify_all();
    }
    board_->changed.wait(lock, [&] { return board_->exchanges != number || board_->failed; });
    if (board_->exchanges == number) fail(ErrorCode::peer_gave_up, "{}", board_->reason);
    return *board_->result;
  }

  void check() const override {
    if (!board_->failed.load(std::memory_order_acquire)) return;
    const std::lock_guard lock(board_->mutex);
    fail(ErrorCode::peer_gave_up, "{}", board_->reason);
  }

  void abort(const std::string& reason) override {
    const std::lock_guard lock(board_->mutex);
    give_up(reason);
  }

  void leave(double timeout) override {
    std::unique_lock lock(board_->mutex);
    ++board_->left;
    board_->changed.notify_all();
    const auto all_left = [&] { return board_->left == size_; };
    const std::chrono::duration<double> patience(timeout);
    if (!board_->changed.wait_for(lock, patience, [&] { return all_left() || board_->failed; })) {
      return give_up(left_early(timeout));
    }
    board_->changed.wait_for(lock, grace_after_failure, all_left);
  }

 private:
  // The mutex is held.
  void give_up(const std::string& reason) {
    if (board_->failed) return;
    board_->reason = fmt::format("Rank {} gave up: {}", rank_, reason);
    board_->failed.store(true, std::memory_order_release);
    board_->changed.notify_all();
  }

  int rank_;
  int size_;
  std::shared_ptr<Board> board_;
};

}  // namespace

std::string left_early(double timeout) {
  return fmt::format("it has left the job, and has waited {} s for the others to leave, too.", timeout);
}

std::vector<std::unique_ptr<Job>> make_local_jobs(int size) {
  const auto board = std::make_shared<Board>(size);
  std::vector<std::unique_ptr<Job>> jobs;
  jobs.reserve(size);
  for (int rank = 0; rank < size; ++rank) jobs.push_back(std::make_unique<LocalJob>(rank, size, board));
  return jobs;
}

}  // namespace stretto
