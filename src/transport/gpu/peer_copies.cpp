#include "transport/gpu/peer_copies.hpp"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>

#include "core/fail.hpp"
#include "core/log.hpp"
#include "transport/gpu/own_messages.hpp"

namespace stretto {

// One lock for all members: the work under it takes microseconds, and never waits for a GPU.
class CopyBoard {
 public:
  struct Post {  // a message that its sender has posted
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
    GpuEvent ready = nullptr;
    GpuEvent taken = nullptr;  // recorded behind the copy, once that is in the receiver's stream
  };

  explicit CopyBoard(int members) : members_(members), posts_(static_cast<std::size_t>(members) * members) {}
  // The last member is gone: no stream will be made to wait for these events any more.
  ~CopyBoard() {
    for (const auto& [event, gpu] : events_) {
      try {
        gpu->destroy(event);
      } catch (const std::exception& error) {
        log().error("{}", error.what());
      }
    }
  }

  int members() const { return members_; }
  std::deque<std::shared_ptr<Post>>& posts(int sender, int receiver) {
    return posts_[static_cast<std::size_t>(sender) * members_ + receiver];
  }
  // An event for the end of a copy. It is free again when the sender's stream has been made to wait for it.
  GpuEvent take_event(Gpu& gpu) {
    std::vector<GpuEvent>& free = free_[&gpu];
    if (free.empty()) {
      const GpuEvent event = gpu.create_event();
      events_[event] = &gpu;
      return event;
    }
    const GpuEvent event = free.back();
    free.pop_back();
    return event;
  }
  void give_back(GpuEvent event) { free_[events_.at(event)].push_back(event); }
  void keep(GpuEvent event, Gpu& gpu) { events_[event] = &gpu; }

  std::mutex mutex;
  std::condition_variable changed;
  std::string failure;  // of any member; every later exchange throws

 private:
  int members_;
  std::vector<std::deque<std::shared_ptr<Post>>> posts_;  // by sender and receiver, in order
  std::map<GpuEvent, Gpu*> events_;
  std::map<Gpu*, std::vector<GpuEvent>> free_;
};

namespace {

using SteadyClock = std::chrono::steady_clock;

struct Offers {
  std::mutex mutex;
  std::uint64_t last = 0;
  std::map<std::uint64_t, std::pair<std::shared_ptr<CopyBoard>, int>> boards;  // with the number of members still to take it
};
Offers& offers() {
  static auto& all = *new Offers;
  return all;
}

// One member's part of one exchange.
class CopyExchange {
 public:
  CopyExchange(Gpu& gpu, CopyBoard& board, const CopyMember& member, GpuEvent ready, GpuStream stream)
      : gpu_(gpu), board_(board), member_(member), ready_(ready), stream_(stream), lock_(board.mutex) {}

  void run(const std::vector<GpuMessage>& messages) {
    throw_failure();
    // All messages are posted before any is awaited, so that all members may send to all.
    bool sends = false;
    for (const GpuMessage& message : messages) sends |= message.sends;
    if (sends) gpu_.record(ready_, stream_);
    for (const GpuMessage& message : messages) {
      if (message.sends) {
        auto post = std::make_shared<CopyBoard::Post>();
        *post = {message.data, message.bytes, ready_, nullptr};
        board_.posts(member_.rank, message.peer).push_back(post);
        sent_.emplace_back(message.peer, std::move(post));
      } else {
        wanted_.push_back(message);
      }
    }
    board_.changed.notify_all();
    // Every peer that has posted is served, whatever the order of the list: a peer may have to be served before it can post
    // the message that this member waits for.
    while (!wanted_.empty()) {
      if (!take_what_is_there()) wait_for("to send to it", wanted_.front().peer);
    }
    for (const auto& [peer, post] : sent_) {
      while (post->taken == nullptr) wait_for("to receive from it", peer);
      idle_since_ = SteadyClock::now();
      gpu_.wait(stream_, post->taken);
      board_.give_back(post->taken);
    }
  }

  void give_up(const std::string& reason) {
    if (!lock_) lock_.lock();
    if (board_.failure.empty()) board_.failure = reason;
    board_.changed.notify_all();
  }

 private:
  bool take_what_is_there() {
    bool took = false;
    std::vector<bool> blocked(member_.job_ranks.size());  // by member: an earlier message of it is still to come
    for (auto wanted = wanted_.begin(); wanted != wanted_.end();) {
      auto& posts = board_.posts(wanted->peer, member_.rank);
      if (blocked[wanted->peer] || posts.empty()) {
        blocked[wanted->peer] = true;
        ++wanted;
        continue;
      }
      CopyBoard::Post& post = *posts.front();
      require(post.bytes == wanted->bytes, "Rank {} sends {} bytes to rank {}, which receives {}; give both the same.",
              member_.job_ranks[wanted->peer], post.bytes, member_.job_ranks[member_.rank], wanted->bytes);
      const GpuEvent taken = board_.take_event(gpu_);
      gpu_.wait(stream_, post.ready);
      gpu_.copy(wanted->data, post.data, post.bytes, stream_);
      gpu_.record(taken, stream_);
      post.taken = taken;
      posts.pop_front();
      wanted = wanted_.erase(wanted);
      took = true;
    }
    if (took) {
      board_.changed.notify_all();
      idle_since_ = SteadyClock::now();
    }
    return took;
  }

  // Waits a moment for a change of the board; the caller then looks again.
  void wait_for(const char* what, int peer) {
    throw_failure();
    if (SteadyClock::now() - idle_since_ > std::chrono::duration<double>(member_.timeout)) {
      fail(ErrorCode::timeout,
           "Rank {} has waited {} s (STRETTO_TIMEOUT) for rank {} {} over their GPU; let all ranks issue the operations of "
           "all communicators in the same order.",
           member_.job_ranks[member_.rank], member_.timeout, member_.job_ranks[peer], what);
    }
    if (board_.changed.wait_for(lock_, std::chrono::milliseconds(20)) == std::cv_status::no_timeout) return;
    if (!member_.check) return;
    lock_.unlock();
    member_.check();
    lock_.lock();
  }

  void throw_failure() const {
    if (!board_.failure.empty()) fail(ErrorCode::peer_gave_up, "{}", board_.failure);
  }

  Gpu& gpu_;
  CopyBoard& board_;
  const CopyMember& member_;
  GpuEvent ready_;
  GpuStream stream_;
  std::unique_lock<std::mutex> lock_;
  std::vector<std::pair<int, std::shared_ptr<CopyBoard::Post>>> sent_;
  std::deque<GpuMessage> wanted_;
  SteadyClock::time_point idle_since_ = SteadyClock::now();
};

}  // namespace

PeerCopies::PeerCopies(Gpu& gpu, std::shared_ptr<CopyBoard> board, CopyMember member)
    : gpu_(gpu), board_(std::move(board)), member_(std::move(member)), ready_(gpu.create_event()) {
  ensure(board_->members() == static_cast<int>(member_.job_ranks.size()), "A board for {} members was given to one of {}.",
         board_->members(), member_.job_ranks.size());
  const std::lock_guard lock(board_->mutex);
  board_->keep(ready_, gpu_);
}

PeerCopies::~PeerCopies() = default;

void PeerCopies::exchange(const std::vector<GpuMessage>& messages, GpuStream stream) {
  const std::vector<GpuMessage> others =
      without_own(messages, member_.rank, static_cast<int>(member_.job_ranks.size()), gpu_, stream);
  if (others.empty()) return;
  if (gpu_.is_capturing(stream)) {
    fail(ErrorCode::unavailable,
         "Ranks that are threads and share a GPU cannot communicate in a graph; make the calls without one, or start one "
         "process per GPU.");
  }
  CopyExchange run(gpu_, *board_, member_, ready_, stream);
  try {
    run.run(others);
  } catch (const std::exception& error) {
    run.give_up(fmt::format("Rank {} gave up: {}", member_.job_ranks[member_.rank], error.what()));
    throw;
  }
}

std::string PeerCopies::failure() {
  const std::lock_guard lock(board_->mutex);
  return board_->failure;
}

void PeerCopies::abort() {
  const std::lock_guard lock(board_->mutex);
  if (board_->failure.empty()) {
    board_->failure = fmt::format("Rank {} has aborted the communicator.", member_.job_ranks[member_.rank]);
  }
  board_->changed.notify_all();
}

std::shared_ptr<CopyBoard> make_copy_board(int members) { return std::make_shared<CopyBoard>(members); }

std::uint64_t offer_copy_board(std::shared_ptr<CopyBoard> board, int takers) {
  const std::lock_guard lock(offers().mutex);
  const std::uint64_t number = ++offers().last;
  if (takers > 0) offers().boards[number] = {std::move(board), takers};
  return number;
}

std::shared_ptr<CopyBoard> take_copy_board(std::uint64_t number) {
  const std::lock_guard lock(offers().mutex);
  const auto found = offers().boards.find(number);
  if (found == offers().boards.end()) return nullptr;
  std::shared_ptr<CopyBoard> board = found->second.first;
  if (--found->second.second == 0) offers().boards.erase(found);
  return board;
}

}  // namespace stretto
