#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "program/control/control_links.hpp"
#include "program/control/inbox.hpp"
#include "program/packed_parts.hpp"
#include "program/program_text.hpp"

namespace stretto {

// Does this rank's actions of the runs, in the order of the scheduler.
class Executor {
 public:
  // executors: the group of all executors, which serves this object alone, and has no operations: one that is lost would
  // end them.
  // clients: their ranks.
  Executor(ControlLinks& links, Communicator executors, FunctionTable functions, std::set<int> clients)
      : links_(links),
        executors_(std::move(executors)),
        functions_(std::move(functions)),
        clients_(std::move(clients)),
        scheduler_has_left_(executors_.rank() == 0) {}

  // Any thread may call these two.
  void handle(const ReceivedMessage& message) { inbox_.put(message); }
  void lose(const std::exception_ptr& why) { inbox_.lose(why); }

  // Returns when all clients have left.
  void serve();

 private:
  struct ExecutedProgram {
    std::uint32_t number = 0;
    int client = 0;  // its rank
    ProgramSetup setup;
    ProgramPlan plan;
    Tensor place;                              // as it was sent: reserved in vain if the program is refused
    Communicator ranks;                        // of all executors of the program; only other groups are made of it
    std::vector<Communicator> groups;          // where this executor is a device
    std::vector<std::unique_ptr<Move>> moves;  // where it takes part
    std::int64_t cancels = 0;                  // that are over
    std::optional<Error> obstacle;             // why there are no groups
  };
  struct Cancelled {};  // ends the waits of a cancelled program
  struct KeptPart {
    Tensor part;
    int client = 0;  // its rank: what it has not freed is freed when it leaves
  };
  class OneRun;

  void set_up(const ReceivedMessage& message);
  void set_up_group(const ReceivedMessage& message);
  void repair(const ReceivedMessage& message);
  // If make() throws, or the program is cancelled for good meanwhile, program.obstacle says why.
  void make_groups(ExecutedProgram& program, const std::function<void()>& make);
  void make_groups_of_ranks(ExecutedProgram& program);
  void forget_client(int client);
  void say_goodbye(int to);
  std::optional<Error> obstacle(const ExecutedProgram& program) const;
  void report_ready(const ReceivedMessage& message, const std::optional<Error>& obstacle);
  void do_run(const ReceivedMessage& message);
  // part: as ControlKind says.
  void report(ControlKind kind, const ReceivedMessage& grant, const std::string& text = "", std::int64_t part = 0);

  ControlLinks& links_;
  Communicator executors_;
  FunctionTable functions_;
  std::set<int> clients_;  // that have not left
  bool scheduler_has_left_;
  Inbox inbox_;
  std::map<std::uint32_t, ExecutedProgram> programs_;
  std::map<KeptName, KeptPart> kept_;
  Stream moves_{"program moves"};

  static constexpr double seconds_between_looks = 0.02;  // until a wait of a cancelled program ends
};

}  // namespace stretto
