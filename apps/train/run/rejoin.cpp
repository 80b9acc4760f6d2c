#include "apps/train/run/rejoin.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <new>

#include "apps/common/fail.hpp"
#include "stretto/grow.hpp"

namespace apps {

using namespace stretto;

namespace {

constexpr const char* this_host = "127.0.0.1";
constexpr useconds_t us_to_look_again = 5000;  // us

struct SharedPage {
  std::atomic<int> trains = 0;              // ranks
  std::atomic<int> waiting = 0;             // processes that have come, and that nobody has taken in yet
  std::atomic<int> meetings = 0, next = 0;  // meetings that were opened, and the next rank in the last one
  std::atomic<int> port = 0;                // of the last one
  std::atomic<pid_t> rank0 = 0;             // its process
  std::atomic<bool> over = false;
  std::array<char, 128> secret{};  // of the last meeting; written before it is counted
};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

SharedPage* page = nullptr;

MeetingPoint last_meeting() { return {this_host, page->port, page->secret.data()}; }

}  // namespace

Rejoin::Rejoin(int ranks, int most) : ranks_(ranks), most_(most) {
  void* const memory = mmap(nullptr, sizeof(SharedPage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    fail(ErrorCode::unavailable, "Cannot share a page of memory between ranks: {}.", std::strerror(errno));
  }
  page = new (memory) SharedPage;
}

int Rejoin::wanted(int left) {
  const int trains = page->trains;
  const bool others_have_left = trains > 0 && left - trains == page->waiting;
  if (!others_have_left || left >= ranks_ || starts_ == most_) return 0;
  ++starts_;
  return ranks_ - left;
}

Communicator Rejoin::join() {
  const int before = page->meetings;
  ++page->waiting;
  while (page->meetings == before) {
    if (page->over || kill(page->rank0, 0) != 0) _exit(0);
    usleep(us_to_look_again);
  }
  joined_ = true;
  return connect(page->next++, ranks_, last_meeting());
}

void Rejoin::trains_on(const Communicator& ranks) {
  if (ranks.rank() != 0) return;
  if (ranks.size() == ranks_) page->waiting = 0;  // of a job that has started again
  page->over = false;
  page->rank0 = getpid();
  page->trains = ranks.size();
}

void Rejoin::regroups(const Communicator& ranks) {
  if (ranks.rank() == 0) page->trains = 0;
}

void Rejoin::ends(const Communicator& ranks) {
  if (ranks.rank() == 0) page->over = true;
}

bool Rejoin::is_complete(const Communicator& ranks) const {
  if (ranks.size() == ranks_) return false;
  std::int64_t complete = page->waiting == ranks_ - ranks.size() ? 1 : 0;
  ranks.broadcast(&complete, &complete, 1, DType::i64, 0, Stream::inline_(), {.tag = "whether ranks join"}).wait();
  return complete != 0;
}

Communicator Rejoin::take_in(const Communicator& ranks) {
  int listener = -1;
  if (ranks.rank() == 0) {
    const MeetingPoint point = open_meeting(this_host);
    listener = point.listener;
    page->port = point.port;
    std::strncpy(page->secret.data(), point.secret.c_str(), page->secret.size() - 1);
    page->next = ranks.size();
    page->waiting = 0;
    ++page->meetings;
  }
  ranks.barrier(Stream::inline_(), {.tag = "ranks join"}).wait();  // rank 0 has opened the meeting
  MeetingPoint point = last_meeting();
  point.listener = listener;
  return grow(ranks, ranks_, point);
}

}  // namespace apps
