#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "transport/bootstrap/frames.hpp"
#include "transport/bootstrap/handshake.hpp"
#include "transport/bootstrap/job.hpp"
#include "transport/bootstrap/questions.hpp"

namespace stretto {

// A job whose ranks are processes, in a star around rank 0. tcp_job.cpp has the calls of a rank, tcp_job_server.cpp the
// thread that reads the connections and notices failures, tcp_job_shrink.cpp how a smaller job takes over.
class TcpJob final : public JobControl {
 public:
  TcpJob(int rank, int size, const Meeting& meeting);
  ~TcpJob() override;
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::uint64_t identity() const override { return identity_; }
  std::vector<Bytes> exchange(const Bytes& mine) override;
  void check() const override;
  void do_without(const std::vector<int>& ranks) override { spare(ranks, 1); }
  void need(const std::vector<int>& ranks) override { spare(ranks, -1); }
  std::string loss_of(int rank) const override;
  void abort(const std::string& reason) override;
  bool any_left() const override { return any_left_.load(std::memory_order_relaxed); }
  bool has_left(int rank) const override;
  std::string news_of(int rank) const override;
  void leave(double timeout) override;
  std::vector<RankAccount> ask(const std::vector<int>& ranks, double seconds, const OperationId& wanted) override;
  Survivors shrink(const std::vector<int>& lost, double patience) override;

 private:
  static constexpr double seconds_to_be_silent = 3;  // after which a rank is said to be silent
  static std::string begins_sentence(const RankIntroduction& who);
  static std::string describe_silence(const RankIntroduction& who, double seconds);

  struct SilentRank {
    RankIntroduction who;
    double seconds;
  };

  // ---- a smaller job, which takes over the connections of its ranks

  struct Frame {
    FrameKind kind;
    Bytes body;
  };
  struct SmallerJob {
    std::uint64_t identity = 0;
    std::vector<int> survivors;  // their ranks in the larger job
    std::vector<std::unique_ptr<FrameConnection>> connections;
    std::vector<Frame> came_early;
  };
  TcpJob(const TcpJob& larger, SmallerJob smaller, int rank);
  SmallerJob admit_survivors(const std::vector<std::int32_t>& names, double patience);
  SmallerJob follow_rank_0(const std::vector<std::int32_t>& names, double patience);
  void note_survivor(int rank, const std::vector<std::int32_t>& names);  // with the mutex held
  void begin_serving();
  // Ends the thread for ever, without closing the connections. The job counts as failed from then on.
  void end_serving();

  // ---- the thread that reads, and sends the bytes that sockets did not take at once; it sleeps in poll() otherwise

  void serve();
  void receive(FrameConnection& connection, bool only_to_its_end);
  void read_from(FrameConnection& connection, const std::function<void()>& reads);
  void take(const FrameConnection& connection, FrameKind kind, const Bytes& body);
  // Keeps a frame that rank 0 has sent after its notice of the smaller job: it belongs to that job. Returns whether it is
  // one.
  bool keep_for_smaller_job(FrameKind kind, const Bytes& body);
  // Once a second every rank tells rank 0 that its process runs, and rank 0 tells every rank which ones it does not hear.
  void give_signs();
  // Fails the job if a rank has given no sign of life for too long. Returns when the next one will have.
  double give_up_silent(double now);
  void wake() const;
  void tell(FrameConnection& connection, FrameKind kind, const Bytes& body);
  // A question goes to the rank that it is about, an answer to the rank that has asked, both by way of rank 0.
  void pass_on(FrameKind kind, Question question);

  // ---- failures

  void spare(const std::vector<int>& ranks, int calls);
  void note_end_of(const FrameConnection& connection);
  // A rank is lost. All ranks hear of it, and if the job does not do without it, it has failed.
  void note_loss(int rank, ErrorCode code, const std::string& sentence, const FrameConnection* heard_from);
  // The first failure is the job's; every rank learns of it through rank 0.
  void note_failure(ErrorCode code, const std::string& sentence, const FrameConnection* heard_from);
  bool note_failure_here(ErrorCode code, const std::string& sentence);
  void send_failure(ErrorCode code, const std::string& sentence, const FrameConnection* except);
  [[noreturn]] void throw_failure() const { throw Error(failure_code_, failure_); }

  // ---- the rest is called with the mutex held

  // Whether an exchange takes too long. Rank 0 waits for the parts of the others. The others wait for rank 0: longer, since
  // it may have begun later, unless it is silent.
  bool is_late(double seconds) const;
  std::string name_late() const;
  std::string news_of_locked(int rank) const;
  std::optional<SilentRank> silence_of(int rank) const;  // by its connection to this rank, else by rank 0
  static bool is_silent(const FrameConnection& connection);
  void contribute(int rank, const Bytes& part);
  void note_left(int rank);
  // Called on rank 0. Once the job has failed, silent ranks are not waited for.
  void announce_if_all_left();

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
  std::vector<int> spared_;            // rank 0, by rank: calls of do_without() that need() has not taken back
  std::map<int, std::string> losses_;  // by rank: of those that the job does without
  std::vector<SilentRank> silent_;     // as rank 0 said last
  std::vector<Bytes> parts_;           // of the exchange in flight, by rank
  std::vector<bool> came_;             // by rank: whether its part has come
  std::vector<Bytes> result_;
  std::vector<bool> goes_on_, named_;   // rank 0, by rank: has said that it remains; is named as lost
  std::optional<SmallerJob> shrunk_;    // the smaller job, as rank 0 has announced it
  std::vector<Frame> early_;            // frames of a smaller job that this one has received
  std::mutex asking_;                   // held by the thread that asks
  std::map<int, RankAccount> answers_;  // by the rank that was asked about
  std::uint64_t exchanges_ = 0;
  bool all_left_ = false;
  std::atomic<bool> any_left_ = false;
  std::atomic<bool> failed_ = false;
  bool failure_is_told_ = false;
  ErrorCode failure_code_ = ErrorCode::peer_lost;
  std::string failure_;
};

}  // namespace stretto
