#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "core/fail.hpp"
#include "stretto/stream.hpp"
#include "transport/bootstrap/handshake.hpp"
#include "transport/bootstrap/job.hpp"
#include "transport/bootstrap/socket.hpp"

namespace stretto {
namespace {

// Everything after the handshake is a frame. One thread of each rank reads frames, and sleeps in poll() otherwise.
enum class FrameKind : std::uint32_t {
  contribution,  // to rank 0: this rank's part of an exchange
  result,        // from rank 0: all parts
  gave_up,       // either way: which rank, and the reason
  died,          // from rank 0: which rank
  bye,           // to rank 0: this rank leaves
  all_left,      // from rank 0: all ranks have said bye
  question,      // through rank 0: what is this rank doing?
  answer,        // through rank 0
};
struct FrameHead {
  FrameKind kind;
  std::uint32_t bytes;
};
// The head of a question, and of the answer, which then has the text behind it.
struct Question {
  std::int32_t from = 0, about = 0;
};
constexpr std::uint32_t longest_frame = 1U << 28;

struct Connection {
  Socket socket;
  RankIntroduction who;
  std::mutex writing;
  bool left = false;  // said bye, or is lost
  std::atomic<bool> broken = false;

  void send(FrameKind kind, const void* data, std::size_t bytes) {
    const std::lock_guard lock(writing);
    const FrameHead head{kind, static_cast<std::uint32_t>(bytes)};
    // A failure shows as the end of the connection to the thread that reads.
    if (socket.write_all(&head, sizeof head)) socket.write_all(data, bytes);
  }
};

Bytes packed(const std::vector<Bytes>& parts) {
  Bytes all;
  for (const Bytes& part : parts) {
    const std::uint64_t length = part.size();
    const auto* head = reinterpret_cast<const std::byte*>(&length);
    all.insert(all.end(), head, head + sizeof length);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

std::vector<Bytes> unpacked(const Bytes& all, int size) {
  std::vector<Bytes> parts(size);
  std::size_t at = 0;
  for (Bytes& part : parts) {
    std::uint64_t length = 0;
    ensure(at + sizeof length <= all.size(), "An exchange of {} parts came truncated.", size);
    std::memcpy(&length, all.data() + at, sizeof length);
    at += sizeof length;
    ensure(length <= all.size() - at, "An exchange of {} parts came truncated.", size);
    part.assign(all.begin() + static_cast<std::ptrdiff_t>(at), all.begin() + static_cast<std::ptrdiff_t>(at + length));
    at += length;
  }
  return parts;
}

class TcpJob : public Job {
 public:
  TcpJob(int rank, int size, const Meeting& meeting) : rank_(rank), size_(size), contributions_(size) {
    if (rank == 0) {
      try {
        gather_ranks(meeting);
      } catch (const Error& error) {  // ranks that came must not think that this rank crashed
        const std::string sentence = fmt::format("Rank 0 gave up: {}", error.what());
        for (const auto& connection : connections_) connection->send(FrameKind::gave_up, sentence.data(), sentence.size());
        throw;
      }
    } else {
      const std::string address = fmt::format("{}:{}", meeting.host, meeting.port);
      auto connection = std::make_unique<Connection>();
      connection->socket = connect_to(meeting.host, meeting.port, meeting.timeout);
      connection->socket.give_up_after(meeting.timeout);
      arrive(connection->socket, meeting.secret, introduce(rank, size), address);
      connection->socket.give_up_after(0);
      connection->who.rank = 0;
      connections_.push_back(std::move(connection));
    }
    wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ensure(wake_ >= 0, "eventfd failed: {}.", errno_text(errno));
    reader_ = std::thread([this] { read_frames(); });
  }

  ~TcpJob() override {
    closing_ = true;
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof one);
    reader_.join();
    close(wake_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::vector<Bytes> exchange(const Bytes& mine) override {
    std::unique_lock lock(mutex_);
    const std::uint64_t number = exchanges_;
    if (rank_ == 0) {
      contribute(0, mine);
    } else {
      lock.unlock();
      connections_.front()->send(FrameKind::contribution, mine.data(), mine.size());
      lock.lock();
    }
    changed_.wait(lock, [&] { return exchanges_ != number || failed_; });
    if (exchanges_ == number) throw_failure();
    return result_;
  }

  void check() const override {
    if (!failed_.load(std::memory_order_acquire)) return;
    const std::lock_guard lock(mutex_);
    throw_failure();
  }

  void abort(const std::string& reason) override {
    note_failure(ErrorCode::peer_gave_up, fmt::format("Rank {} gave up: {}", rank_, reason), nullptr);
  }

  void leave(double timeout) override {
    std::unique_lock lock(mutex_);
    if (rank_ == 0) {
      ++left_;
      announce_end_if_all_left();
    } else {
      lock.unlock();
      connections_.front()->send(FrameKind::bye, nullptr, 0);
      lock.lock();
    }
    const std::chrono::duration<double> patience(timeout);
    if (!changed_.wait_for(lock, patience, [&] { return all_left_ || failed_; })) {
      lock.unlock();
      return abort(left_early(timeout));
    }
    changed_.wait_for(lock, grace_after_failure, [&] { return all_left_; });
  }

  std::vector<std::string> ask(const std::vector<int>& ranks, double seconds) override {
    {
      const std::lock_guard lock(mutex_);
      answers_.clear();
    }
    for (const int rank : ranks) pass_on(FrameKind::question, {rank_, rank}, "");
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] {
      return std::all_of(ranks.begin(), ranks.end(), [&](int rank) { return answers_.count(rank) > 0; });
    });
    std::vector<std::string> texts;
    for (const int rank : ranks) texts.push_back(answers_[rank]);
    return texts;
  }

 private:
  // Rank 0 waits for the others; strangers are dropped without disturbing it.
  void gather_ranks(const Meeting& meeting) {
    const Listener listener =
        meeting.listener >= 0 ? Listener{meeting.listener, meeting.port} : listen_on(meeting.host, meeting.port);
    const Socket closes(listener.socket);
    const double deadline = now_seconds() + meeting.timeout;
    std::vector<bool> here(size_, false);
    here[0] = true;
    int strangers = 0;
    while (static_cast<int>(connections_.size()) < size_ - 1) {
      pollfd wanted{listener.socket, POLLIN, 0};
      poll(&wanted, 1, 100);
      if (now_seconds() > deadline) {
        std::vector<int> missing;
        for (int rank = 0; rank < size_; ++rank) {
          if (!here[rank]) missing.push_back(rank);
        }
        const char* hint = strangers > 0 ? "; some came with another STRETTO_JOB_SECRET or were no ranks" : "";
        fail(ErrorCode::timeout, "Of {} ranks, {} did not come to {}:{} within {} s{}.", size_, fmt::join(missing, ", "),
             meeting.host, listener.port, meeting.timeout, hint);
      }
      if (wanted.revents == 0) continue;  // the caller's listener may block
      auto connection = std::make_unique<Connection>();
      connection->socket = accept_on(listener.socket);
      if (!connection->socket) continue;
      const Arrival arrival = receive_arrival(connection->socket, meeting.secret);
      if (!arrival.genuine) {
        ++strangers;
        continue;
      }
      const int rank = arrival.who.rank;
      std::string refusal;
      if (arrival.who.size != size_) {
        refusal = fmt::format("Rank {} believes in {} ranks, rank 0 in {}.", rank, arrival.who.size, size_);
      } else if (rank <= 0 || rank >= size_ || here[rank]) {
        refusal = fmt::format("Rank {} came twice or is outside 0..{}.", rank, size_ - 1);
      }
      answer_arrival(connection->socket, refusal);
      if (!refusal.empty()) fail(ErrorCode::invalid_argument, "{}", refusal);
      here[rank] = true;
      connection->who = arrival.who;
      connections_.push_back(std::move(connection));
    }
  }

  void read_frames() {
    while (!closing_) {
      std::vector<pollfd> wanted{{wake_, POLLIN, 0}};
      std::vector<Connection*> open;
      for (const auto& connection : connections_) {
        if (connection->broken) continue;
        wanted.push_back({connection->socket.descriptor(), POLLIN, 0});
        open.push_back(connection.get());
      }
      poll(wanted.data(), wanted.size(), -1);
      for (std::size_t i = 0; i < open.size(); ++i) {
        if (wanted[i + 1].revents != 0) read_frame(*open[i]);
      }
    }
  }

  void read_frame(Connection& connection) {
    FrameHead head{};
    Bytes body;
    bool whole = connection.socket.read_all(&head, sizeof head) && head.bytes <= longest_frame;
    if (whole) {
      body.resize(head.bytes);
      whole = connection.socket.read_all(body.data(), body.size());
    }
    if (!whole) return note_end_of(connection);
    const std::string text(reinterpret_cast<const char*>(body.data()), body.size());
    switch (head.kind) {
      case FrameKind::contribution: {
        const std::lock_guard lock(mutex_);
        return contribute(connection.who.rank, body);
      }
      case FrameKind::result: {
        const std::lock_guard lock(mutex_);
        result_ = unpacked(body, size_);
        ++exchanges_;
        changed_.notify_all();
        return;
      }
      case FrameKind::gave_up: return note_failure(ErrorCode::peer_gave_up, text, &connection);
      case FrameKind::died: return note_failure(ErrorCode::peer_lost, text, &connection);
      case FrameKind::bye: {
        const std::lock_guard lock(mutex_);
        connection.left = true;
        ++left_;
        return announce_end_if_all_left();
      }
      case FrameKind::all_left: {
        const std::lock_guard lock(mutex_);
        connection.left = true;
        all_left_ = true;
        changed_.notify_all();
        return;
      }
      case FrameKind::question:
      case FrameKind::answer: {
        Question question;
        if (body.size() < sizeof question) return note_end_of(connection);
        std::memcpy(&question, body.data(), sizeof question);
        return pass_on(head.kind, question, text.substr(sizeof question));
      }
    }
  }

  // A question goes to the rank that it is about, an answer to the rank that has asked, both by way of rank 0.
  void pass_on(FrameKind kind, const Question& question, const std::string& text) {
    const int to = kind == FrameKind::question ? question.about : question.from;
    if (to == rank_ && kind == FrameKind::question) {
      return pass_on(FrameKind::answer, question, observed()->account());
    }
    if (to == rank_) {
      const std::lock_guard lock(mutex_);
      answers_[question.about] = text;
      changed_.notify_all();
      return;
    }
    Bytes body(sizeof question + text.size());
    std::memcpy(body.data(), &question, sizeof question);
    std::memcpy(body.data() + sizeof question, text.data(), text.size());
    for (const auto& connection : connections_) {
      if ((rank_ != 0 || connection->who.rank == to) && !connection->broken)
        connection->send(kind, body.data(), body.size());
    }
  }

  void note_end_of(Connection& connection) {
    connection.broken = true;
    {
      const std::lock_guard lock(mutex_);
      if (connection.left) return;
      ++left_;
      if (rank_ == 0) announce_end_if_all_left();
      if (rank_ != 0) all_left_ = true;  // rank 0, which would announce it, is gone
    }
    const std::string where =
        rank_ == 0 ? fmt::format(" (process {} on {})", connection.who.pid, connection.who.host.data()) : std::string();
    note_failure(ErrorCode::peer_lost,
                 fmt::format("Rank {}{} ended without a word: it was killed or crashed.", connection.who.rank, where),
                 nullptr);
  }

  // The first failure is the job's; every rank learns of it through rank 0.
  void note_failure(ErrorCode code, const std::string& sentence, const Connection* heard_from) {
    {
      const std::lock_guard lock(mutex_);
      if (failed_) return;
      failure_code_ = code;
      failure_ = sentence;
      failed_.store(true, std::memory_order_release);
      changed_.notify_all();
    }
    const FrameKind kind = code == ErrorCode::peer_lost ? FrameKind::died : FrameKind::gave_up;
    for (const auto& connection : connections_) {
      if (connection.get() != heard_from && !connection->broken) connection->send(kind, sentence.data(), sentence.size());
    }
    observed()->trouble(sentence);
  }

  [[noreturn]] void throw_failure() const { throw Error(failure_code_, failure_); }

  // The mutex is held.
  void contribute(int rank, const Bytes& part) {
    contributions_[rank] = part;
    if (++arrived_ < size_) return;
    arrived_ = 0;
    result_ = contributions_;
    ++exchanges_;
    const Bytes all = packed(result_);
    for (const auto& connection : connections_) connection->send(FrameKind::result, all.data(), all.size());
    changed_.notify_all();
  }

  // The mutex is held.
  void announce_end_if_all_left() {
    if (left_ < size_) return;
    all_left_ = true;
    for (const auto& connection : connections_) connection->send(FrameKind::all_left, nullptr, 0);
    changed_.notify_all();
  }

  int rank_;
  int size_;
  std::vector<std::unique_ptr<Connection>> connections_;  // rank 0: to all others; the others: to rank 0
  int wake_ = -1;
  std::thread reader_;
  std::atomic<bool> closing_ = false;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Bytes> contributions_;
  std::vector<Bytes> result_;
  std::map<int, std::string> answers_;  // by the rank that was asked about
  int arrived_ = 0;
  std::uint64_t exchanges_ = 0;
  int left_ = 0;
  bool all_left_ = false;
  std::atomic<bool> failed_ = false;
  ErrorCode failure_code_ = ErrorCode::peer_lost;
  std::string failure_;
};

}  // namespace

std::unique_ptr<Job> join_tcp_job(int rank, int size, const Meeting& meeting) {
  return std::make_unique<TcpJob>(rank, size, meeting);
}

}  // namespace stretto
