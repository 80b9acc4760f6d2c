#pragma once
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "program/control/busy_seconds.hpp"
#include "program/control/control_links.hpp"
#include "program/control/stride_order.hpp"
#include "program/program_text.hpp"

namespace stretto {

// Puts the runs of all clients into one order. Every executor gets its part of this order, over one link, so that all
// executors of a program come to its runs in the same order. Any thread may call handle().
class Scheduler {
 public:
  Scheduler(ControlLinks& links, int executors, std::vector<int> nodes)
      : links_(links),
        executors_(executors),
        nodes_(std::move(nodes)),
        load_(static_cast<std::size_t>(executors)),
        bound_(static_cast<std::size_t>(executors)) {}

  // Messages to the scheduler, those of executor 0 among them.
  void handle(const ReceivedMessage& message);
  // What runs, what waits, and how busy executors are for whom, as text.
  std::string state() const;

 private:
  struct Submission {
    std::uint64_t request = 0;
    std::int64_t waiting = 0, under_way = 0;  // runs
    bool was_cut = false;                     // its client has left before all had begun
  };
  struct Run {
    std::uint64_t request = 0;
    std::set<int> missing;  // executors that have not done it
    int step = 0;           // of the other ways of dispatch
    std::set<int> missing_in_step;
  };
  struct Lost {
    int executor = -1;
    std::string how;
  };
  struct ScheduledProgram {
    int client = 0;  // its rank
    std::uint64_t compile_request = 0;
    ProgramSetup setup;
    std::vector<int> executors;             // that do something in it
    std::vector<std::vector<int>> of_step;  // the executors of each step
    std::set<int> not_ready;                // executors
    std::map<int, Tensor> places;           // by executor, while it is prepared
    bool makes_groups = false;              // all of its executors have the places
    double begun = 0;                       // when executors were asked to prepare it
    bool is_given_up = false;               // compile() has been answered before all of them were ready
    std::string refusal;
    ErrorCode refusal_code = ErrorCode::invalid_argument;
    Lost lost;  // an executor without which it cannot run any more
    std::deque<Submission> submissions;
    std::map<std::int64_t, Run> runs;  // under way
    std::int64_t next_run = 0, cancels = 0;
    std::string failure;  // not empty: its runs are being ended
  };

  void compile(const ReceivedMessage& message);
  void ready(const ReceivedMessage& message);
  void give_up(const ReceivedMessage& message);
  // Executors on which its preparation waits: not those that have given their places and wait for the others' themselves.
  static std::set<int> awaited_of(const ScheduledProgram& program);
  // Nobody waits for this program any more: executors that prepare it end.
  void refuse(std::uint32_t number, ErrorCode code, const std::string& sentence);
  std::vector<std::vector<int>> bind(const Program& program) const;
  void got_place(const ReceivedMessage& message);
  void answer_compile(std::uint32_t number);
  void submit(const ReceivedMessage& message);
  void did_step(const ReceivedMessage& message);
  // The runs under way end; every executor reports so. for_good: the program has no further ones.
  void cancel_runs(std::uint32_t number, const std::string& sentence, bool for_good = false);
  void did_run(std::uint32_t number, std::int64_t run, int executor);
  void end_failed(std::uint32_t number);
  void abandon(int client);
  void lose_client(int client, const std::string& how);
  void forget_lost_client(int client);
  void lose_executor(int executor, const std::string& how);
  void lose_executor_of(std::uint32_t number, int executor, const std::string& how);
  static std::string sentence_of(const ScheduledProgram& program, const Lost& lost);
  static std::string state_of(const ScheduledProgram& program);
  std::string busy_for(int executor, double now) const;
  std::vector<std::uint32_t> programs_of(const std::function<bool(const ScheduledProgram&)>& is_wanted) const;
  std::vector<int> live_executors() const;
  void tell_of_cut(const ScheduledProgram& program, const MessageHead& head);
  void drop(std::uint32_t number);
  void grant_what_can_begin();
  void begin_run(std::uint32_t number);
  bool has_waiting_runs(int client) const;
  void tell(int to, ControlKind kind, MessageHead head, const std::string& text = "");

  ControlLinks& links_;
  int executors_;
  std::vector<int> nodes_;
  std::vector<int> load_;   // by executor: runs that it has not done
  std::vector<int> bound_;  // by executor: virtual devices
  struct KnownClient {
    std::size_t in_order = 0;
    std::string name;
    double weight = 1;
    std::int64_t runs = 0;  // that are over
  };
  StrideOrder order_;
  std::map<int, KnownClient> clients_;                       // by rank
  std::map<std::pair<int, int>, BusySeconds> busy_seconds_;  // by executor and client
  std::map<int, std::string> lost_executors_;                // and how
  std::set<int> lost_clients_;
  std::map<std::uint32_t, ScheduledProgram> programs_;
  std::uint32_t next_program_ = 0;
  mutable std::mutex mutex_;
};

}  // namespace stretto
