#include <fmt/format.h>
#include <poll.h>
#include <sodium.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "core/fail.hpp"
#include "stretto/stream.hpp"
#include "transport/bootstrap/admission.hpp"
#include "transport/bootstrap/frames.hpp"
#include "transport/bootstrap/handshake.hpp"
#include "transport/bootstrap/job.hpp"
#include "transport/bootstrap/questions.hpp"

namespace stretto {
namespace {

constexpr double seconds_between_signs = 1;  // of life, in both directions
constexpr double seconds_to_be_silent = 3;   // after which a rank is said to be silent
constexpr double seconds_to_part = 1;        // for what is still under way when a job ends

struct SilentRank {
  RankIntroduction who;
  double seconds;
};

std::string begins_sentence(const RankIntroduction& who) { return "R" + who.to_string().substr(1); }

std::string describe_silence(const RankIntroduction& who, double seconds) {
  return fmt::format("{} has given no sign of life for {:.0f} s: it is stopped, or its host or the network to it is gone.",
                     begins_sentence(who), seconds);
}

class TcpJob : public Job {
 public:
  TcpJob(int rank, int size, const Meeting& meeting)
      : rank_(rank),
        size_(size),
        limit_(meeting.timeout),
        silence_limit_(meeting.silence),
        left_(size),
        parts_(size),
        came_(size),
        goes_on_(size),
        named_(size) {
    const RankIntroduction self = introduce(rank, size, meeting.job);
    if (rank == 0) {
      key_of(meeting.secret);  // readies libsodium
      randombytes_buf(&identity_, sizeof identity_);
      try {
        admit_ranks(self, meeting, identity_, [&](const RankIntroduction& who, Socket socket) {
          connections_.push_back(std::make_unique<FrameConnection>(std::move(socket), who));
        });
      } catch (const Error& error) {  // ranks that came must not think that this rank crashed
        const bool one_died = error.code() == ErrorCode::peer_lost;
        send_failure(one_died ? ErrorCode::peer_lost : ErrorCode::peer_gave_up,
                     one_died ? error.what() : fmt::format("Rank 0 gave up: {}", error.what()), nullptr);
        closing_ = true;
        serve();
        throw;
      }
    } else {
      Admission admission = arrive(meeting, self);
      identity_ = admission.identity;
      connections_.push_back(std::make_unique<FrameConnection>(std::move(admission.socket), admission.rank0));
    }
    begin_serving();
  }

  ~TcpJob() override {
    closing_ = true;
    wake();
    if (server_.joinable()) server_.join();
    close(wake_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::uint64_t identity() const override { return identity_; }

  std::vector<Bytes> exchange(const Bytes& mine) override {
    const double begin = now_seconds();
    check();
    std::unique_lock lock(mutex_);
    const std::uint64_t number = exchanges_;
    if (rank_ == 0) {
      contribute(0, mine);
    } else {
      tell(*connections_.front(), FrameKind::contribution, mine);
    }
    const auto over = [&] { return exchanges_ != number || failed_; };
    while (!changed_.wait_for(lock, std::chrono::milliseconds(100), over)) {
      if (!is_late(now_seconds() - begin)) continue;
      const std::string sentence = name_late();
      lock.unlock();
      note_failure(ErrorCode::timeout, sentence, nullptr);
      lock.lock();
    }
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

  bool any_left() const override { return any_left_.load(std::memory_order_relaxed); }
  bool has_left(int rank) const override {
    const std::lock_guard lock(mutex_);
    return left_[rank];
  }

  std::string news_of(int rank) const override {
    const std::lock_guard lock(mutex_);
    return news_of_locked(rank);
  }

  void leave(double timeout) override {
    std::unique_lock lock(mutex_);
    if (has_shrunk_) return;
    if (rank_ == 0) {
      note_left(0);
    } else {
      tell(*connections_.front(), FrameKind::bye, {});
    }
    const std::chrono::duration<double> patience(timeout);
    if (!changed_.wait_for(lock, patience, [&] { return all_left_ || failed_; })) {
      lock.unlock();
      return abort(left_early(timeout));
    }
    changed_.wait_for(lock, grace_after_failure, [&] { return all_left_; });
  }

  std::vector<RankAccount> ask(const std::vector<int>& ranks, double seconds) override {
    {
      const std::lock_guard lock(mutex_);
      answers_.clear();
    }
    for (const int rank : ranks) pass_on(FrameKind::question, {rank_, rank, {}});
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] {
      return std::all_of(ranks.begin(), ranks.end(), [&](int rank) { return answers_.count(rank) > 0 || silence_of(rank); });
    });
    std::vector<RankAccount> accounts;
    for (const int rank : ranks) accounts.push_back(answers_[rank]);
    return accounts;
  }

  std::unique_ptr<Job> shrink(const std::vector<int>& lost, double patience) override {
    require(!has_shrunk_, "{}", went_on);
    const std::vector<std::int32_t> names(lost.begin(), lost.end());
    SmallerJob smaller = rank_ == 0 ? admit_survivors(names, patience) : follow_rank_0(names, patience);
    const auto place = std::find(smaller.survivors.begin(), smaller.survivors.end(), rank_);
    if (place == smaller.survivors.end()) fail(ErrorCode::peer_gave_up, "{}", left_behind(rank_));
    return std::unique_ptr<Job>(new TcpJob(*this, std::move(smaller), static_cast<int>(place - smaller.survivors.begin())));
  }

 private:
  // ---- a smaller job, which takes over the connections of its ranks

  struct Frame {
    FrameKind kind;
    Bytes body;
  };
  struct SmallerJob {
    std::uint64_t identity = 0;
    std::vector<std::int32_t> survivors;  // by their ranks in the larger job
    std::vector<std::unique_ptr<FrameConnection>> connections;
    std::vector<Frame> came_early;
  };

  TcpJob(const TcpJob& larger, SmallerJob smaller, int rank)
      : rank_(rank),
        size_(static_cast<int>(smaller.survivors.size())),
        limit_(larger.limit_),
        silence_limit_(larger.silence_limit_),
        identity_(smaller.identity),
        connections_(std::move(smaller.connections)),
        left_(size_),
        parts_(size_),
        came_(size_),
        goes_on_(size_),
        named_(size_),
        early_(std::move(smaller.came_early)) {
    for (const auto& connection : connections_) {
      const auto place = std::find(smaller.survivors.begin(), smaller.survivors.end(), connection->who().rank);
      connection->renumber(static_cast<int>(place - smaller.survivors.begin()), size_);
    }
    begin_serving();
  }

  SmallerJob admit_survivors(const std::vector<std::int32_t>& names, double patience) {
    const double deadline = now_seconds() + patience;
    std::unique_lock lock(mutex_);
    note_survivor(0, names);
    const auto is_known = [&](const std::unique_ptr<FrameConnection>& connection) {
      const int rank = connection->who().rank;
      const bool silent = now_seconds() - connection->heard_at() > limit_;
      return goes_on_[rank] || named_[rank] || left_[rank] || !connection->open() || silent || now_seconds() > deadline;
    };
    while (!std::all_of(connections_.begin(), connections_.end(), is_known)) {
      changed_.wait_for(lock, std::chrono::milliseconds(100));
    }
    lock.unlock();
    end_serving();  // so that what the survivors say from now on is read by the smaller job
    lock.lock();
    SmallerJob smaller;
    randombytes_buf(&smaller.identity, sizeof smaller.identity);
    smaller.survivors = {0};
    for (const auto& connection : connections_) {
      const int rank = connection->who().rank;
      if (goes_on_[rank] && !named_[rank] && !left_[rank] && connection->open()) smaller.survivors.push_back(rank);
    }
    std::sort(smaller.survivors.begin(), smaller.survivors.end());
    Bytes body = bytes_of(std::vector<std::uint64_t>{smaller.identity});
    const Bytes ranks = bytes_of(smaller.survivors);
    body.insert(body.end(), ranks.begin(), ranks.end());
    for (auto& connection : connections_) {
      tell(*connection, FrameKind::shrunk, body);
      if (std::binary_search(smaller.survivors.begin(), smaller.survivors.end(), connection->who().rank)) {
        smaller.connections.push_back(std::move(connection));
      } else {
        connection->end_writing();
      }
    }
    std::erase(connections_, nullptr);
    return smaller;
  }

  SmallerJob follow_rank_0(const std::vector<std::int32_t>& names, double patience) {
    const double begin = now_seconds();
    std::unique_lock lock(mutex_);
    const FrameConnection& rank0 = *connections_.front();
    tell(*connections_.front(), FrameKind::remain, bytes_of(names));
    while (!shrunk_ && rank0.open() && now_seconds() - begin < 2 * patience + 1) {  // rank 0 may come, and wait, later
      changed_.wait_for(lock, std::chrono::milliseconds(100));
    }
    if (!shrunk_) {
      fail(ErrorCode::unavailable,
           "The job cannot go on without its rank 0, through which the ranks meet, and which {}; start the job again.",
           rank0.open() ? fmt::format("has not called shrink() for {:.0f} s", now_seconds() - begin) : "is lost");
    }
    lock.unlock();
    end_serving();
    lock.lock();
    SmallerJob smaller = std::move(*shrunk_);
    smaller.connections = std::move(connections_);
    connections_.clear();
    smaller.came_early = std::move(early_);
    return smaller;
  }

  void note_survivor(int rank, const std::vector<std::int32_t>& names) {  // with the mutex held
    for (const std::int32_t name : names) {
      ensure(name > 0 && name < size_, "it named rank {} as lost, of {}.", name, size_);
      named_[name] = true;
    }
    goes_on_[rank] = true;
  }

  void begin_serving() {
    wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ensure(wake_ >= 0, "eventfd failed: {}.", errno_text(errno));
    server_ = std::thread([this] { serve(); });
  }

  // For ever, without closing the connections. The job counts as failed, if it has not.
  void end_serving() {
    note_failure_here(ErrorCode::peer_gave_up, went_on);
    has_shrunk_ = true;
    wake();
    server_.join();
  }

  // ---- the thread that reads, and sends what sockets did not take at once; it sleeps in poll() otherwise

  void serve() {
    double next_signs = now_seconds() + seconds_between_signs;
    double end = 0;                                // 0: not closing
    for (const auto& connection : connections_) {  // a larger job may have read from it, and seen its end
      read_from(*connection, [&] {
        for (const Frame& frame : std::exchange(early_, {})) take(*connection, frame.kind, frame.body);
      });
      if (!connection->open()) note_end_of(*connection);
    }
    while (!has_shrunk_) {
      const double now = now_seconds();
      if (closing_ && end == 0) end = now + seconds_to_part;
      std::vector<pollfd> wanted{{wake_, POLLIN, 0}};
      std::vector<FrameConnection*> open;
      for (const auto& connection : connections_) {
        if (!connection->open()) continue;
        const bool writes = connection->has_unsent();
        // Without reading to the end, what the other side has not read yet could be lost.
        if (end != 0 && !writes) connection->end_writing();
        wanted.push_back({connection->descriptor(), static_cast<short>(writes ? POLLIN | POLLOUT : POLLIN), 0});
        open.push_back(connection.get());
      }
      if (end != 0 && (open.empty() || now >= end)) return;
      if (end == 0 && now >= next_signs) {
        give_signs();
        next_signs = now + seconds_between_signs;
      }
      poll(wanted.data(), wanted.size(), static_cast<int>(((end != 0 ? end : next_signs) - now) * 1000) + 1);
      std::uint64_t rings = 0;
      if (wanted[0].revents != 0) [[maybe_unused]]
        const ssize_t taken = read(wake_, &rings, sizeof rings);
      for (std::size_t i = 0; i < open.size(); ++i) {
        if ((wanted[i + 1].revents & POLLOUT) != 0) open[i]->flush();
        if ((wanted[i + 1].revents & ~POLLOUT) != 0) receive(*open[i], end != 0);
      }
    }
  }

  void receive(FrameConnection& connection, bool only_to_its_end) {
    read_from(connection, [&] {
      const bool goes_on = connection.receive([&](FrameKind kind, const Bytes& body) {
        if (!only_to_its_end) take(connection, kind, body);
      });
      if (goes_on) return;
      connection.close();
      if (!only_to_its_end) note_end_of(connection);
    });
  }

  void read_from(FrameConnection& connection, const std::function<void()>& reads) {
    try {
      reads();
    } catch (const std::exception& error) {
      connection.close();
      note_failure(ErrorCode::peer_lost,
                   fmt::format("The connection to {} was given up: {}", connection.who().to_string(), error.what()),
                   nullptr);
    }
  }

  void take(const FrameConnection& connection, FrameKind kind, const Bytes& body) {
    if (keep_for_smaller_job(kind, body)) return;
    const bool to_rank_0 =
        kind == FrameKind::contribution || kind == FrameKind::bye || kind == FrameKind::alive || kind == FrameKind::remain;
    const bool either_way = kind == FrameKind::failed || kind == FrameKind::question || kind == FrameKind::answer;
    ensure(either_way || to_rank_0 == (rank_ == 0), "it sent a message that only rank {} 0 sends.",
           to_rank_0 ? "other than" : "");
    if (kind == FrameKind::failed) {
      std::uint32_t code = 0;
      ensure(body.size() >= sizeof code, "its last message is truncated.");
      std::memcpy(&code, body.data(), sizeof code);
      const std::string sentence(reinterpret_cast<const char*>(body.data()) + sizeof code, body.size() - sizeof code);
      return note_failure(static_cast<ErrorCode>(code), sentence, &connection);
    }
    if (kind == FrameKind::question || kind == FrameKind::answer) {
      return pass_on(kind, question_of(body, size_));
    }
    const std::lock_guard lock(mutex_);
    switch (kind) {
      case FrameKind::contribution: return contribute(connection.who().rank, body);
      case FrameKind::bye: return note_left(connection.who().rank);
      case FrameKind::remain: note_survivor(connection.who().rank, values_of<std::int32_t>(body)); break;
      case FrameKind::result:
        result_ = unpacked(body, size_);
        ++exchanges_;
        break;
      case FrameKind::left:
        for (const std::int32_t rank : values_of<std::int32_t>(body)) {
          ensure(rank >= 0 && rank < size_, "it said that rank {} has left, of {}.", rank, size_);
          left_[rank] = true;
        }
        any_left_ = true;
        break;
      case FrameKind::silent: silent_ = values_of<SilentRank>(body); break;
      case FrameKind::all_left: all_left_ = left_[0] = true; break;
      case FrameKind::alive:
      case FrameKind::question:
      case FrameKind::answer:
      case FrameKind::shrunk:
      case FrameKind::failed: break;
    }
    changed_.notify_all();
  }

  // What rank 0 sends behind its notice of the smaller job belongs to that one.
  bool keep_for_smaller_job(FrameKind kind, const Bytes& body) {
    std::unique_lock lock(mutex_);
    if (shrunk_) {
      early_.push_back({kind, body});
      return true;
    }
    if (kind != FrameKind::shrunk || rank_ == 0) return false;
    SmallerJob smaller;
    ensure(body.size() >= sizeof smaller.identity, "its list of the ranks that go on is truncated.");
    std::memcpy(&smaller.identity, body.data(), sizeof smaller.identity);
    smaller.survivors = values_of<std::int32_t>(Bytes(body.begin() + sizeof smaller.identity, body.end()));
    const bool goes_on = std::find(smaller.survivors.begin(), smaller.survivors.end(), rank_) != smaller.survivors.end();
    shrunk_ = std::move(smaller);
    changed_.notify_all();
    lock.unlock();
    if (!goes_on) note_failure_here(ErrorCode::peer_gave_up, left_behind(rank_));
    return true;
  }

  // Once a second every rank tells rank 0 that its process runs, and rank 0 tells every rank whom it does not hear.
  void give_signs() {
    const double now = now_seconds();
    std::vector<SilentRank> silent;
    std::vector<std::int32_t> left;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& connection : connections_) {
        const double seconds = now - connection->heard_at();
        if (connection->open() && !left_[connection->who().rank] && seconds > seconds_to_be_silent) {
          silent.push_back({connection->who(), seconds});
        }
      }
      std::swap(left, newly_left_);
    }
    for (const auto& connection : connections_) {
      if (!left.empty()) tell(*connection, FrameKind::left, bytes_of(left));
      if (connection->has_unsent()) continue;
      if (rank_ == 0) {
        tell(*connection, FrameKind::silent, bytes_of(silent));
      } else {
        tell(*connection, FrameKind::alive, {});
      }
    }
    for (const SilentRank& one : silent) {
      if (one.seconds > silence_limit_) note_failure(ErrorCode::timeout, describe_silence(one.who, one.seconds), nullptr);
    }
  }

  void wake() const {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof one);
  }

  void tell(FrameConnection& connection, FrameKind kind, const Bytes& body) {
    if (!connection.send(kind, body.data(), body.size())) wake();
  }

  // A question goes to the rank that it is about, an answer to the rank that has asked, both by way of rank 0.
  void pass_on(FrameKind kind, Question question) {
    const int to = kind == FrameKind::question ? question.about : question.from;
    if (to == rank_ && kind == FrameKind::question) {
      question.answer = observed()->account();
      return pass_on(FrameKind::answer, std::move(question));
    }
    if (to == rank_) {
      const std::lock_guard lock(mutex_);
      answers_[question.about] = std::move(question.answer);
      changed_.notify_all();
      return;
    }
    const Bytes body = bytes_of(question);
    for (const auto& connection : connections_) {
      if ((rank_ != 0 || connection->who().rank == to) && connection->open()) tell(*connection, kind, body);
    }
  }

  // ---- failures

  void note_end_of(const FrameConnection& connection) {
    const RankIntroduction& who = connection.who();
    {
      const std::lock_guard lock(mutex_);
      if (left_[who.rank]) return;
      note_left(who.rank);
      if (rank_ != 0) all_left_ = true;  // rank 0, which would announce it, is gone
    }
    const int error = connection.end_error();
    const bool unreachable = error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH;
    note_failure(ErrorCode::peer_lost,
                 unreachable ? fmt::format("{} can no longer be reached ({}): its host or the network to it is gone.",
                                           begins_sentence(who), errno_text(error))
                             : fmt::format("{} ended without a word: it was killed or crashed, or has called exit.",
                                           begins_sentence(who)),
                 nullptr);
  }

  // The first failure is the job's; every rank learns of it through rank 0.
  void note_failure(ErrorCode code, const std::string& sentence, const FrameConnection* heard_from) {
    if (!note_failure_here(code, sentence)) return;
    send_failure(code, sentence, heard_from);
    observed()->trouble(sentence);
  }

  bool note_failure_here(ErrorCode code, const std::string& sentence) {
    const std::lock_guard lock(mutex_);
    if (failed_) return false;
    failure_code_ = code;
    failure_ = sentence;
    failed_.store(true, std::memory_order_release);
    changed_.notify_all();
    return true;
  }

  void send_failure(ErrorCode code, const std::string& sentence, const FrameConnection* except) {
    Bytes body = bytes_of(std::vector<std::uint32_t>{static_cast<std::uint32_t>(code)});
    const auto* text = reinterpret_cast<const std::byte*>(sentence.data());
    body.insert(body.end(), text, text + sentence.size());
    for (const auto& connection : connections_) {
      if (connection.get() != except && connection->open()) tell(*connection, FrameKind::failed, body);
    }
  }

  [[noreturn]] void throw_failure() const { throw Error(failure_code_, failure_); }

  // ---- the rest is called with the mutex held

  // Rank 0 judges who has not taken part. The others judge rank 0: it may have begun later, but not if it is silent.
  bool is_late(double seconds) const {
    if (rank_ == 0) return seconds > limit_;
    const bool silent = now_seconds() - connections_.front()->heard_at() > seconds_to_be_silent;
    return seconds > (silent ? limit_ : 2 * limit_) + 1;
  }

  std::string name_late() const {
    std::string sentence = fmt::format("Rank {} waited {} s in the start of the job.", rank_, limit_);
    for (int rank = 0; rank < size_; ++rank) {
      if (rank_ == 0 ? !came_[rank] : rank == 0)
        sentence += fmt::format(" Rank {} did not take part. {}", rank, news_of_locked(rank));
    }
    return sentence;
  }

  std::string news_of_locked(int rank) const {
    if (rank == rank_) return "";
    if (left_[rank]) return fmt::format("Rank {} has left the job.", rank);
    if (const auto silent = silence_of(rank)) return describe_silence(silent->who, silent->seconds);
    for (const auto& connection : connections_) {
      if (connection->who().rank != rank) continue;
      return fmt::format("{} is alive: it computes, or waits for something else.", begins_sentence(connection->who()));
    }
    return fmt::format("Rank {} is alive: it computes, or waits for something else.", rank);
  }

  // As this rank hears, or rank 0 has said last.
  std::optional<SilentRank> silence_of(int rank) const {
    for (const auto& connection : connections_) {
      if (connection->who().rank != rank) continue;
      const double seconds = now_seconds() - connection->heard_at();
      return seconds > seconds_to_be_silent ? std::optional(SilentRank{connection->who(), seconds}) : std::nullopt;
    }
    const auto found = std::ranges::find(silent_, rank, [](const SilentRank& one) { return one.who.rank; });
    return found == silent_.end() ? std::nullopt : std::optional(*found);
  }

  void contribute(int rank, const Bytes& part) {
    ensure(!came_[rank], "rank {} contributed twice to one exchange.", rank);
    came_[rank] = true;
    parts_[rank] = part;
    if (std::find(came_.begin(), came_.end(), false) != came_.end()) return;
    came_.assign(came_.size(), false);
    result_ = parts_;
    ++exchanges_;
    const Bytes all = packed(result_);
    for (const auto& connection : connections_) tell(*connection, FrameKind::result, all);
    changed_.notify_all();
  }

  void note_left(int rank) {
    left_[rank] = true;
    any_left_ = true;
    if (rank_ != 0) return;
    newly_left_.push_back(rank);
    if (std::find(left_.begin(), left_.end(), false) != left_.end()) return;
    all_left_ = true;
    newly_left_.clear();
    for (const auto& connection : connections_) tell(*connection, FrameKind::all_left, {});
    changed_.notify_all();
  }

  int rank_;
  int size_;
  double limit_;
  double silence_limit_;
  std::uint64_t identity_ = 0;
  std::vector<std::unique_ptr<FrameConnection>> connections_;  // rank 0: to all others; the others: to rank 0
  int wake_ = -1;
  std::thread server_;
  std::atomic<bool> closing_ = false;
  std::atomic<bool> has_shrunk_ = false;  // the connections are a smaller job's

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> left_;  // by rank: said bye, or is lost
  std::vector<std::int32_t> newly_left_;
  std::vector<SilentRank> silent_;  // as rank 0 said last
  std::vector<Bytes> parts_;        // of the exchange that goes on, by rank
  std::vector<bool> came_;          // likewise
  std::vector<Bytes> result_;
  std::vector<bool> goes_on_, named_;   // rank 0, by rank: has said that it remains; is named as lost
  std::optional<SmallerJob> shrunk_;    // what rank 0 has said of the smaller job
  std::vector<Frame> early_;            // frames of a smaller job that this one has received
  std::map<int, RankAccount> answers_;  // by the rank that was asked about
  std::uint64_t exchanges_ = 0;
  bool all_left_ = false;
  std::atomic<bool> any_left_ = false;
  std::atomic<bool> failed_ = false;
  ErrorCode failure_code_ = ErrorCode::peer_lost;
  std::string failure_;
};

}  // namespace

std::unique_ptr<Job> join_tcp_job(int rank, int size, const Meeting& meeting) {
  return std::make_unique<TcpJob>(rank, size, meeting);
}

}  // namespace stretto
