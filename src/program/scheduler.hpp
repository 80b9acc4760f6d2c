#pragma once
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "program/control_links.hpp"
#include "program/program_text.hpp"
#include "program/stride_order.hpp"

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
  struct ScheduledProgram {
    int client = 0;  // its rank
    std::uint64_t compile_request = 0;
    ProgramSetup setup;
    std::vector<int> executors;             // that do something in it
    std::vector<std::vector<int>> of_step;  // the executors of each step
    int not_ready = 0;                      // executors
    std::string refusal;
    std::deque<Submission> submissions;
    std::map<std::int64_t, Run> runs;  // under way
    std::int64_t next_run = 0, cancels = 0;
    std::string failure;  // not empty: its runs are being ended
  };

  void compile(const ReceivedMessage& message);
  std::vector<std::vector<int>> bind(const Program& program) const;
  void got_ready(const ReceivedMessage& message);
  void submit(const ReceivedMessage& message);
  void did_run(const ReceivedMessage& message);
  void did_step(const ReceivedMessage& message);
  void end_failed(std::uint32_t number, ScheduledProgram& program);
  void abandon(int client);
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
  StrideOrder order_;
  std::map<int, std::size_t> clients_;  // by rank: in order_
  std::map<std::uint32_t, ScheduledProgram> programs_;
  std::uint32_t next_program_ = 0;
  std::mutex mutex_;
};

}  // namespace stretto
