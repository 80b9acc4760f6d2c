#include "apps/train/run/rejoin.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <string>

#include "apps/common/fail.hpp"
#include "stretto/grow.hpp"

namespace apps {

using namespace stretto;

namespace {

constexpr const char* this_host = "127.0.0.1";
constexpr useconds_t us_to_look_again = 5000;  // us

// A process that has come. It is in the table until it is taken in, or lost.
struct Newcomer {
  std::atomic<pid_t> process = 0;  // 0: none
  std::atomic<int> rank = -1;      // with which it is to come to a meeting; 0: it waits for one; -1: neither
  std::atomic<int> meeting = 0;    // to that one
};

struct Board {
  std::atomic<int> trains = 0;               // ranks
  std::atomic<int> meetings = 0, ended = 0;  // that were opened, and the last one that has ended
  std::atomic<bool> was_whole = false;       // that one: all came
  std::atomic<int> port = 0;                 // of the last one that was opened
  std::atomic<pid_t> rank0 = 0;              // its process
  std::atomic<bool> over = false;            // nobody will be taken in any more
  std::array<char, 128> secret{};            // of the last meeting; written before it is counted
};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

Board* board = nullptr;
std::span<Newcomer> newcomers;  // as many as the job has ranks; in the same memory

bool lives(pid_t process) { return kill(process, 0) == 0; }

bool waits(const Newcomer& one) { return one.process != 0 && one.rank == 0 && lives(one.process); }

int count_of(bool (*is_counted)(const Newcomer&)) {
  return static_cast<int>(std::count_if(newcomers.begin(), newcomers.end(), is_counted));
}

void strike(Newcomer& one) {
  one.rank = -1;
  one.process = 0;
}

// Called where they have been reaped: others may still see them as processes.
void strike_lost() {
  for (Newcomer& each : newcomers) {
    if (each.process != 0 && !lives(each.process)) strike(each);
  }
}

// For this process, which waits from now on.
Newcomer& new_entry() {
  for (Newcomer& each : newcomers) {
    pid_t nobody = 0;
    if (!each.process.compare_exchange_strong(nobody, getpid())) continue;
    each.rank = 0;
    return each;
  }
  fail(ErrorCode::unavailable, "More processes have come than the job has ranks, {}.", newcomers.size());
}

void invite(int first, int ranks) {
  ++board->meetings;
  for (Newcomer& each : newcomers) {
    if (first == ranks || !waits(each)) continue;
    each.meeting = board->meetings.load();
    each.rank = first++;
  }
}

void end_meeting(bool was_whole) {
  board->was_whole = was_whole;
  board->secret = {};
  board->ended = board->meetings.load();
}

bool has_ended(int meeting) { return board->ended >= meeting; }

// Waits as long as there is a job that may take this process in.
template <class Condition>
void wait_until(const Condition& condition) {
  while (!condition()) {
    if (board->over || !lives(board->rank0)) _exit(0);
    usleep(us_to_look_again);
  }
}

MeetingPoint last_meeting() {
  MeetingPoint point{this_host, board->port, board->secret.data()};
  point.may_pin = true;  // these processes are the launcher's
  return point;
}

}  // namespace

Rejoin::Rejoin(int ranks, int most) : ranks_(ranks), most_(most) {
  if (most == 0) return;
  const auto count = static_cast<std::size_t>(ranks);
  const std::size_t bytes = sizeof(Board) + count * sizeof(Newcomer);
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    fail(ErrorCode::unavailable, "Cannot share {} bytes of memory between ranks: {}.", bytes, std::strerror(errno));
  }
  board = new (memory) Board;
  auto* const table = reinterpret_cast<Newcomer*>(board + 1);
  std::uninitialized_default_construct_n(table, count);
  newcomers = {table, count};
}

int Rejoin::wanted(int left) {
  strike_lost();
  const int trains = board->trains;
  const int came = count_of([](const Newcomer& one) { return one.process != 0; });
  const bool others_have_left = trains > 0 && left - trains == came;
  if (!others_have_left || left >= ranks_) return 0;
  if (starts_ == most_) {
    board->over = true;
    return -1;
  }
  ++starts_;
  return ranks_ - left;
}

void Rejoin::starts_again() {
  if (!any()) return;
  board->trains = 0;
  board->over = false;
  for (Newcomer& each : newcomers) strike(each);
}

Communicator Rejoin::join() {
  Newcomer& entry = new_entry();
  while (true) {
    wait_until([&] { return entry.rank > 0; });
    const int meeting = entry.meeting;
    Communicator all;
    try {
      if (!has_ended(meeting)) all = connect(entry.rank, ranks_, last_meeting());
    } catch (const Error&) {  // rank 0 says why the others do not meet, and how they go on
    }
    wait_until([&] { return has_ended(meeting); });
    if (all && board->was_whole && board->ended == meeting) {
      strike(entry);
      joined_ = true;
      return all;
    }
    all = Communicator();
    entry.rank = 0;
  }
}

void Rejoin::trains_on(const Communicator& ranks) {
  if (!any() || ranks.rank() != 0) return;
  board->rank0 = getpid();
  board->trains = ranks.size();
}

void Rejoin::regroups(const Communicator& ranks) {
  if (any() && ranks.rank() == 0) board->trains = 0;
}

void Rejoin::ends(const Communicator& ranks) {
  if (any() && ranks.rank() == 0) board->over = true;
}

bool Rejoin::is_complete(const Communicator& ranks) const {
  if (ranks.size() == ranks_) return false;
  std::int64_t complete = count_of(waits) >= ranks_ - ranks.size() ? 1 : 0;
  ranks.broadcast(&complete, &complete, 1, DType::i64, 0, Stream::inline_(), {.tag = "whether ranks join"}).wait();
  return complete != 0;
}

Communicator Rejoin::take_in(const Communicator& ranks) {
  const bool is_first = ranks.rank() == 0;
  std::string why;
  int listener = -1;
  if (is_first) {
    board->trains = 0;
    try {
      const MeetingPoint point = open_meeting(this_host);
      listener = point.listener;
      board->port = point.port;
      point.secret.copy(board->secret.data(), board->secret.size() - 1);
    } catch (const std::exception& error) {
      why = error_sentence(error);
    }
  }
  const auto together = [&](bool succeeded) {
    std::int64_t all_did = succeeded ? 1 : 0;
    ranks.all_reduce(&all_did, &all_did, 1, DType::i64, ReduceOp::min, Stream::inline_(), {.tag = "ranks join"}).wait();
    return all_did != 0;
  };
  bool is_open = false;
  try {
    is_open = together(why.empty());
  } catch (...) {
    if (listener >= 0) close(listener);
    throw;
  }
  if (!is_open) fail(ErrorCode::unavailable, "{}", is_first ? why : "Rank 0 cannot open a meeting.");
  MeetingPoint point = last_meeting();
  point.listener = listener;
  if (is_first) invite(ranks.size(), ranks_);
  Communicator all;
  bool is_whole = false;
  const auto end = [&] {
    if (is_first) end_meeting(is_whole);
  };
  try {
    all = grow(ranks, ranks_, point);
  } catch (const std::exception& error) {
    why = error_sentence(error);
  }
  try {
    is_whole = together(static_cast<bool>(all));  // else some would wait for the others in a job that these have left
  } catch (...) {
    end();
    throw;
  }
  end();
  if (!is_whole) fail(ErrorCode::unavailable, "{}", why.empty() ? "Another rank did not meet the ranks that join." : why);
  return all;
}

}  // namespace apps
